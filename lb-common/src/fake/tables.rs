//! The traits of the data path's tables, implemented over the tables of a node in memory.

use super::Fake;
use crate::addr::{Ip, Port};
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, DIRECT_SEEN, Flow, FlowKey, Fragment, Held, Ports};
use crate::hash;
use crate::service::{Backend, BackendId, Frontend, Line, Service, Source};
use crate::tables::{Added, Clock, Filters, Flows, Fragments, Node, Services, Touch};

fn part<const N: usize>(line: &Line, index: u32) -> Option<[u8; N]> {
    line.get(index as usize * N..)?.first_chunk().copied()
}

/// The bytes of a trie key that the prefix length counts.
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

impl Services for Fake {
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

    fn slot_u16(&self, line: u32, index: u32) -> Option<u16> {
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

    fn affinity(&self, client: &Client) -> Option<Affinity> {
        self.looks_up();
        self.affinity.borrow().get(client).copied()
    }

    fn put_affinity(&self, client: &Client, affinity: &Affinity) -> bool {
        let mut table = self.affinity.borrow_mut();
        let fits = table.len() < self.affinity_capacity || table.contains_key(client);
        if fits {
            table.insert(*client, *affinity);
        }
        fits
    }

    fn allows(&self, source: &Source) -> bool {
        let asked = trie_bits(source);
        self.sources.iter().any(|(bits, prefix)| agree(&trie_bits(prefix), &asked, *bits))
    }
}

impl Flows for Fake {
    fn flow(&self, key: &FlowKey, into: &mut Flow) -> bool {
        self.looks_up();
        let found = self.flow_at(key);
        found.map(|flow| *into = flow).is_some()
    }

    fn add_flow(&self, key: &FlowKey, flow: &Flow) -> Added {
        self.writes_flow(key);
        if self.flow_at(key).is_some() {
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

    fn touch_flow(&self, key: &FlowKey, touch: &Touch) {
        self.change_flow(key, |flow| {
            flow.seen = touch.seen;
            flow.shown = flow.shown.with(touch.shown);
            if touch.expected != 0 {
                flow.expected = touch.expected;
            }
            flow.shown.clear_ends(touch.cleared);
        });
    }

    fn confirm_flow(&self, key: &FlowKey, frontends_epoch: u32, noted: u16) {
        self.change_flow(key, |flow| (flow.frontends_epoch, flow.noted) = (frontends_epoch, noted));
    }

    fn remove_flow(&self, key: &FlowKey) {
        self.remove_protected(key);
        self.transient.borrow_mut().remove(key);
    }

    fn remove_protected(&self, key: &FlowKey) {
        self.writes_flow(key);
        self.flows.borrow_mut().remove(key);
    }
}

impl Filters for Fake {
    fn is_in_use(&self, ip: &Ip, port: Port) -> bool {
        self.in_use.borrow().contains(&hash::backend_byte(ip, port))
    }

    fn put_in_use(&self, ip: &Ip, port: Port) {
        self.in_use.borrow_mut().insert(hash::backend_byte(ip, port));
    }

    fn may_be_backend(&self, ip: &Ip, port: Port) -> bool {
        self.endpoints.contains(&hash::endpoint(ip, port))
    }

    fn is_direct(&self, hash: u64) -> bool {
        self.direct.borrow().get(&(hash as u32 % DIRECT_SEEN)) == Some(&hash)
    }

    fn put_direct(&self, hash: u64) {
        self.direct.borrow_mut().insert(hash as u32 % DIRECT_SEEN, hash);
    }

    fn own_answer(&self, hash: u64) -> Option<u32> {
        self.own_answers.borrow().get(&hash).copied()
    }

    fn put_own_answer(&self, hash: u64, moment: u32) {
        self.own_answers.borrow_mut().insert(hash, moment);
    }

    fn is_inherited(&self, hash: u64) -> bool {
        self.looks_up();
        self.inherited.contains(&hash)
    }
}

impl Fragments for Fake {
    fn fragment(&self, fragment: &Fragment) -> Option<Ports> {
        self.looks_up();
        self.fragments.borrow().get(fragment).copied()
    }

    fn put_fragment(&self, fragment: &Fragment, ports: &Ports) -> bool {
        self.fragments.borrow_mut().insert(*fragment, *ports);
        true
    }

    fn read_held<R>(&self, key: &Fragment, read: impl FnOnce(&Held) -> R) -> Option<R> {
        self.held.borrow().get(key).map(read)
    }

    fn put_held(&self, key: &Fragment, fill: impl FnOnce(&mut Held) -> Option<()>) -> bool {
        let mut held = Held::default();
        held.fragment = *key;
        let filled = fill(&mut held).is_some();
        if filled {
            self.held.borrow_mut().insert(*key, held);
        }
        filled
    }

    fn remove_held(&self, key: &Fragment) {
        self.held.borrow_mut().remove(key);
    }
}

impl Node for Fake {
    fn settings(&self) -> Option<&Settings> {
        (self.settings.node.source_port_high.get() != 0).then_some(&self.settings)
    }

    fn address(&self, ip: &Ip) -> u32 {
        self.looks_up();
        self.addresses.get(ip).copied().unwrap_or(0)
    }

    fn device(&self, index: u32) -> Option<Device> {
        self.looks_up();
        self.devices.get(&index).copied()
    }
}

impl Clock for Fake {
    fn now(&self) -> u64 {
        self.clock.get()
    }

    fn tick(&self) -> u16 {
        self.ticks.get().unwrap_or_else(|| (self.clock.get() >> 30) as u16)
    }

    fn may_reject(&self, _: u32) -> bool {
        self.rejects.get()
    }

    fn count(&self, event: Event) {
        *self.events.borrow_mut().entry(event).or_default() += 1;
    }
}
