//! The tables of a node, in memory. Full, slow and rate-limited on demand.

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

use super::Road;
use crate::addr::Ip;
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, Flow, FlowKey, Fragment, Held, Peer, Ports, Side};
use crate::service::{Backend, BackendId, Frontend, LINE, Line, Service, Source};
use crate::tables::Tables as _;

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
    /// `FLOWS4` and `FLOWS6`.
    pub flows: RefCell<BTreeMap<FlowKey, Flow>>,
    /// Most halves that `flows` holds, of IPv4 and of all else.
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
    /// Halves that each table of flows holds unless a test says otherwise.
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
    pub(super) fn looks_up(&self) {
        self.look_ups.set(self.look_ups.get() + 1);
    }

    /// Lets another CPU have its turn before a half is written.
    pub(super) fn writes_flow(&self, key: &FlowKey) {
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
    pub(super) fn insert_flow(&self, key: &FlowKey, flow: &Flow) -> bool {
        let mut flows = self.flows.borrow_mut();
        let beside = || flows.keys().filter(|there| there.is_v4() == key.is_v4()).count();
        let is_there = || flows.contains_key(key);
        let room = flows.len() < self.flow_capacity || is_there() || beside() < self.flow_capacity;
        if room && self.flow_failures.contains(key) {
            self.count(Event::FlowNoMemory);
            return false;
        }
        if room {
            let _: Option<Flow> = flows.insert(*key, *flow);
        }
        room
    }

    /// A line, written or not.
    pub(super) fn line(&self, line: u32) -> Option<Line> {
        let written = self.lines.get(line as usize).copied();
        (line < Self::LINES).then(|| written.unwrap_or([0; LINE]))
    }

    /// A row, written or not.
    pub(super) fn row(&self, id: BackendId) -> Option<Backend> {
        let written = self.backends.get(id as usize).copied();
        (id < Self::BACKENDS).then(|| written.unwrap_or_default())
    }
}
