//! The tables of a node in memory, asked as the data path asks.

use super::Fake;
use crate::addr::{Ip, Port};
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, DIRECT, Flow, FlowKey, Fragment, Held, Peer, Ports};
use crate::hash;
use crate::service::{Backend, BackendId, Frontend, Line, Service, Source};
use crate::tables::{Added, Tables};

fn part<const N: usize>(line: &Line, index: u32) -> Option<[u8; N]> {
    line.get(index as usize * N..)?.first_chunk().copied()
}

/// The bytes of a key of the trie that prefixes count.
const fn trie_bits(source: &Source) -> [u8; 20] {
    let mut bytes = [0; 20];
    let (service, ip) = bytes.split_at_mut(4);
    service.copy_from_slice(&source.service.to_ne_bytes());
    ip.copy_from_slice(&source.ip.octets());
    bytes
}

fn agree(left: &[u8; 20], right: &[u8; 20], bits: u32) -> bool {
    let whole = (bits / 8) as usize;
    let rest = bits % 8;
    let same = left.get(..whole) == right.get(..whole);
    let last = |bytes: &[u8; 20]| bytes.get(whole).map(|byte| byte >> (8 - rest));
    same && (rest == 0 || last(left) == last(right))
}

impl Tables for Fake {
    fn settings(&self) -> Option<&Settings> {
        (self.settings.source_port_high.get() != 0).then_some(&self.settings)
    }

    fn service(&self, frontend: &Frontend, into: &mut Service) -> bool {
        self.looks_up();
        self.services.get(frontend).map(|service| *into = *service).is_some()
    }

    fn knows(&self, frontend: &Frontend) -> bool {
        self.looks_up();
        self.services.contains_key(frontend)
    }

    fn slot_word(&self, line: u32, index: u32) -> Option<u32> {
        part(&self.line(line)?, index & 15).map(u32::from_ne_bytes)
    }

    fn slot_half(&self, line: u32, index: u32) -> Option<u16> {
        part(&self.line(line)?, index & 31).map(u16::from_ne_bytes)
    }

    fn slot_byte(&self, line: u32, index: u32) -> Option<u8> {
        part(&self.line(line)?, index & 63).map(u8::from_ne_bytes)
    }

    fn backend(&self, id: BackendId, into: &mut Backend) -> bool {
        self.row(id).map(|row| *into = row).is_some()
    }

    fn epoch(&self, id: BackendId) -> u32 {
        self.row(id).map_or(0, |row| row.epoch)
    }

    fn flow(&self, key: &FlowKey, into: &mut Flow) -> bool {
        self.looks_up();
        self.flows.borrow().get(key).map(|flow| *into = *flow).is_some()
    }

    fn add_flow(&self, key: &FlowKey, flow: &Flow) -> Added {
        self.writes_flow(key);
        if self.flows.borrow().contains_key(key) {
            Added::Taken
        } else if self.insert_flow(key, flow) {
            Added::Yes
        } else {
            Added::Full
        }
    }

    fn put_flow(&self, key: &FlowKey, flow: &Flow) -> bool {
        self.writes_flow(key);
        self.insert_flow(key, flow)
    }

    fn touch_flow(&self, key: &FlowKey, now: u64, state: u8) {
        if let Some(flow) = self.flows.borrow_mut().get_mut(key) {
            flow.seen = now;
            flow.state |= state;
        }
    }

    fn confirm_flow(&self, key: &FlowKey, removals: u32) {
        if let Some(flow) = self.flows.borrow_mut().get_mut(key) {
            flow.note = removals;
        }
    }

    fn remove_flow(&self, key: &FlowKey) {
        self.writes_flow(key);
        let _: Option<Flow> = self.flows.borrow_mut().remove(key);
    }

    fn may_be_backend(&self, ip: &Ip, port: Port) -> bool {
        self.endpoints.contains(&hash::endpoint(ip, port))
    }

    fn is_direct(&self, hash: u64) -> bool {
        self.direct.borrow().get(&(hash as u32 % DIRECT)) == Some(&hash)
    }

    fn put_direct(&self, hash: u64) {
        let _: Option<u64> = self.direct.borrow_mut().insert(hash as u32 % DIRECT, hash);
    }

    fn affinity(&self, client: &Client) -> Option<Affinity> {
        self.looks_up();
        self.affinity.borrow().get(client).copied()
    }

    fn put_affinity(&self, client: &Client, affinity: &Affinity) -> bool {
        let mut table = self.affinity.borrow_mut();
        let room = table.len() < self.affinity_capacity || table.contains_key(client);
        if room {
            let _: Option<Affinity> = table.insert(*client, *affinity);
        }
        room
    }

    fn allows(&self, source: &Source) -> bool {
        let asked = trie_bits(source);
        self.sources.iter().any(|(bits, prefix)| agree(&trie_bits(prefix), &asked, *bits))
    }

    fn address(&self, ip: &Ip) -> u32 {
        self.looks_up();
        self.addresses.get(ip).copied().unwrap_or(0)
    }

    fn device(&self, index: u32) -> Option<Device> {
        self.looks_up();
        self.devices.get(&index).copied()
    }

    fn fragment(&self, fragment: &Fragment) -> Option<Ports> {
        self.looks_up();
        self.fragments.borrow().get(fragment).copied()
    }

    fn put_fragment(&self, fragment: &Fragment, ports: &Ports) -> bool {
        let _: Option<Ports> = self.fragments.borrow_mut().insert(*fragment, *ports);
        true
    }

    fn read_held<R>(&self, key: u32, read: impl FnOnce(&Held) -> R) -> Option<R> {
        self.held.borrow().get(&key).map(read)
    }

    fn put_held(&self, key: u32, fill: impl FnOnce(&mut Held) -> Option<()>) -> bool {
        let mut held = Held::default();
        let filled = fill(&mut held).is_some();
        if filled {
            let _: Option<Held> = self.held.borrow_mut().insert(key, held);
        }
        filled
    }

    fn remove_held(&self, key: u32) {
        let _: Option<Held> = self.held.borrow_mut().remove(&key);
    }

    fn socket(&self, cookie: u64) -> Option<Peer> {
        self.sockets.borrow().get(&cookie).copied()
    }

    fn put_socket(&self, cookie: u64, peer: &Peer) -> bool {
        let _: Option<Peer> = self.sockets.borrow_mut().insert(cookie, *peer);
        true
    }

    fn now(&self) -> u64 {
        self.clock.get()
    }

    fn tick(&self) -> u16 {
        (self.clock.get() >> 30) as u16
    }

    fn may_reject(&self) -> bool {
        self.rejects.get()
    }

    fn count(&self, event: Event) {
        *self.events.borrow_mut().entry(event).or_default() += 1;
    }
}
