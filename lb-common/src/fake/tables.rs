//! The tables of a node, in memory. Full, slow and rate-limited on demand.

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

use super::Road;
use crate::addr::{Ip, Port};
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, DIRECT, Flow, FlowKey, Fragment, Held, Peer, Ports, Side};
use crate::hash;
use crate::service::{Backend, BackendId, Frontend, LINE, Line, Service, Source};
use crate::tables::{Added, Tables};

/// Right before a half of this key is next added, put or removed, these are, or are gone. One comes after the other.
#[derive(Clone, Debug)]
pub struct Meanwhile {
    /// Key of the half.
    pub before: FlowKey,
    /// What another CPU writes there.
    pub writes: Vec<(FlowKey, Option<Flow>)>,
}

/// Every table of a node. What the agent writes is public; what the data path writes is in cells.
#[derive(Clone, Debug)]
pub struct Fake {
    /// `SETTINGS`.
    pub settings: Settings,
    /// `SERVICES`.
    pub services: BTreeMap<Frontend, Service>,
    /// `SLOTS`, up to the last line written.
    pub lines: Vec<Line>,
    /// `BACKENDS`, up to the last row written.
    pub backends: Vec<Backend>,
    /// `ENDPOINTS`, the bits that are set.
    pub endpoints: BTreeSet<u32>,
    /// `SOURCES`, with prefix lengths as [`Source`] counts them.
    pub sources: Vec<(u32, Source)>,
    /// `ADDRESSES`.
    pub addresses: BTreeMap<Ip, u32>,
    /// `DEVICES`.
    pub devices: BTreeMap<u32, Device>,
    /// What the kernel knows of the world around: no table, but beside them.
    pub roads: BTreeMap<Ip, Road>,
    /// `FLOWS`.
    pub flows: RefCell<BTreeMap<FlowKey, Flow>>,
    /// Most halves that `flows` holds.
    pub flow_capacity: usize,
    /// Halves that there is no memory for, however few there are.
    pub flow_failures: BTreeSet<FlowKey>,
    /// What another CPU does to `flows` meanwhile.
    pub meanwhile: RefCell<VecDeque<Meanwhile>>,
    /// `AFFINITY`.
    pub affinity: RefCell<BTreeMap<Client, Affinity>>,
    /// Most clients that `affinity` holds.
    pub affinity_capacity: usize,
    /// `DIRECT`, the elements that are not 0.
    pub direct: RefCell<BTreeMap<u32, u64>>,
    /// `FRAGMENTS`.
    pub fragments: RefCell<BTreeMap<Fragment, Ports>>,
    /// `HELD`.
    pub held: RefCell<BTreeMap<u32, Held>>,
    /// `SOCKETS`.
    pub sockets: RefCell<BTreeMap<u64, Peer>>,
    /// The clock.
    pub clock: Cell<u64>,
    /// Whether the rate limit lets rejections through.
    pub rejects: Cell<bool>,
    /// How often each event was counted.
    pub events: RefCell<BTreeMap<Event, u64>>,
    /// How often a hash table was asked for a key.
    pub look_ups: Cell<u64>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            services: BTreeMap::new(),
            lines: Vec::new(),
            backends: Vec::new(),
            endpoints: BTreeSet::new(),
            sources: Vec::new(),
            addresses: BTreeMap::new(),
            devices: BTreeMap::new(),
            roads: BTreeMap::new(),
            flows: RefCell::default(),
            flow_capacity: Self::FLOWS,
            flow_failures: BTreeSet::new(),
            meanwhile: RefCell::default(),
            affinity: RefCell::default(),
            affinity_capacity: usize::MAX,
            direct: RefCell::default(),
            fragments: RefCell::default(),
            held: RefCell::default(),
            sockets: RefCell::default(),
            // An hour after boot: timeouts have something to look back on.
            clock: Cell::new(3_600_000_000_000),
            rejects: Cell::new(true),
            events: RefCell::default(),
            look_ups: Cell::new(0),
        }
    }
}

impl Fake {
    /// Lines that `SLOTS` has, written or not.
    pub const LINES: u32 = 4096;
    /// Rows that `BACKENDS` has, written or not.
    pub const BACKENDS: u32 = 4096;
    /// Halves that `FLOWS` holds unless a test says otherwise.
    pub const FLOWS: usize = 4096;

    /// Halves of one side.
    pub fn halves(&self, side: Side) -> usize {
        self.flows.borrow().keys().filter(|key| key.side == side).count()
    }

    /// How often an event was counted.
    pub fn counted(&self, event: Event) -> u64 {
        self.events.borrow().get(&event).copied().unwrap_or(0)
    }

    /// Counts a look-up that is about to be made.
    fn looks_up(&self) {
        self.look_ups.set(self.look_ups.get() + 1);
    }

    /// Lets another CPU have its turn before a half is written.
    fn writes_flow(&self, key: &FlowKey) {
        let turn = self.meanwhile.borrow_mut().pop_front_if(|next| next.before == *key);
        let mut flows = self.flows.borrow_mut();
        for (key, flow) in turn.into_iter().flat_map(|turn| turn.writes) {
            let _: Option<Flow> = match flow {
                Some(flow) => flows.insert(key, flow),
                None => flows.remove(&key),
            };
        }
    }

    /// Writes a half if there is room.
    fn insert_flow(&self, key: &FlowKey, flow: &Flow) -> bool {
        let mut flows = self.flows.borrow_mut();
        let room = flows.len() < self.flow_capacity || flows.contains_key(key);
        if room && self.flow_failures.contains(key) {
            self.count(Event::FlowNoMemory);
            return false;
        }
        if room {
            let _: Option<Flow> = flows.insert(*key, *flow);
        }
        room
    }

    fn line(&self, line: u32) -> Option<Line> {
        let written = self.lines.get(line as usize).copied();
        (line < Self::LINES).then(|| written.unwrap_or([0; LINE]))
    }

    fn row(&self, id: BackendId) -> Option<Backend> {
        let written = self.backends.get(id as usize).copied();
        (id < Self::BACKENDS).then(|| written.unwrap_or_default())
    }
}

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
