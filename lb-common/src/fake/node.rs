//! The tables of a node, in memory. They can be full, slow and rate-limited on demand.

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

use super::KnownRoute;
use crate::addr::{Endpoint, Ip, Protocol};
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, Flow, FlowKey, Fragment, Held, Ports, Tuple};
use crate::hash;
use crate::service::{Backend, BackendId, Frontend, LINE, Line, Service, Source};
use crate::tables::Clock as _;

/// A write of another CPU: right before an entry of this key is next added, put or removed, the entries below are
/// written, or removed. Several take turns.
#[derive(Clone, Debug)]
pub struct Meanwhile {
    /// Key of the entry that triggers the write.
    pub before: FlowKey,
    /// The entries that another CPU writes there.
    pub writes: Vec<(FlowKey, Option<Flow>)>,
}

/// Every table of a node. Tables that the agent writes are public; those that the data path writes are in cells.
#[derive(Clone, Debug)]
pub struct Fake {
    pub settings: std::boxed::Box<Settings>,
    pub services: BTreeMap<Frontend, Service>,
    /// `MAGLEV`, up to the last line written.
    pub lines: Vec<Line>,
    /// `BACKENDS`, up to the last row written.
    pub backends: Vec<Backend>,
    /// `BACKEND_FILTER`, the bits that are set.
    pub endpoints: BTreeSet<u32>,
    /// `SOURCE_RANGES`, with prefix lengths as [`Source`] counts them.
    pub sources: Vec<(u32, Source)>,
    pub inherited: BTreeSet<u64>,
    pub addresses: BTreeMap<Ip, u32>,
    pub devices: BTreeMap<u32, Device>,
    /// The kernel's knowledge of routes: not a table, but stored beside the tables.
    pub routes: BTreeMap<Ip, KnownRoute>,
    /// The packets that arrive for sockets of the node: no table either.
    pub sockets: BTreeSet<(Protocol, Tuple)>,
    /// Ports of the node at which sockets without a peer wait: TCP listeners and unconnected UDP sockets. The host run
    /// ignores them, as [`crate::hook::Hooked::has_socket`] must.
    pub waiting: Vec<(Protocol, Endpoint)>,
    pub flows: RefCell<BTreeMap<FlowKey, Flow>>,
    /// `TRANSIENT4` and `TRANSIENT6`; an entry is displaced only where a test removes it.
    pub transient: RefCell<BTreeMap<FlowKey, Flow>>,
    pub in_use: RefCell<BTreeSet<(u32, usize)>>,
    /// Most entries that `flows` holds, for IPv4 and for all others.
    pub flow_capacity: usize,
    /// Keys of entries for which there is no memory, even where there is room.
    pub flow_failures: BTreeSet<FlowKey>,
    /// The changes that another CPU makes to `flows` meanwhile.
    pub meanwhile: RefCell<VecDeque<Meanwhile>>,
    pub affinity: RefCell<BTreeMap<Client, Affinity>>,
    /// Most clients that `affinity` holds.
    pub affinity_capacity: usize,
    /// `DIRECT_SEEN`, the elements that are not 0.
    pub direct: RefCell<BTreeMap<u32, u64>>,
    pub own_answers: RefCell<BTreeMap<u64, u32>>,
    pub fragments: RefCell<BTreeMap<Fragment, Ports>>,
    pub held: RefCell<BTreeMap<Fragment, Held>>,
    pub clock: Cell<u64>,
    /// The tick, where it does not follow `clock`.
    pub ticks: Cell<Option<u16>>,
    /// Whether the rate limit allows rejections.
    pub rejects: Cell<bool>,
    /// How often each event was counted.
    pub events: RefCell<BTreeMap<Event, u64>>,
    /// Number of lookups in hash tables.
    pub look_ups: Cell<u64>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            settings: std::boxed::Box::default(),
            services: BTreeMap::new(),
            lines: Vec::new(),
            backends: Vec::new(),
            endpoints: BTreeSet::new(),
            sources: Vec::new(),
            inherited: BTreeSet::new(),
            addresses: BTreeMap::new(),
            devices: BTreeMap::new(),
            routes: BTreeMap::new(),
            sockets: BTreeSet::new(),
            waiting: Vec::new(),
            flows: RefCell::default(),
            transient: RefCell::default(),
            in_use: RefCell::default(),
            flow_capacity: Self::FLOWS,
            flow_failures: BTreeSet::new(),
            meanwhile: RefCell::default(),
            affinity: RefCell::default(),
            affinity_capacity: usize::MAX,
            direct: RefCell::default(),
            own_answers: RefCell::default(),
            fragments: RefCell::default(),
            held: RefCell::default(),
            // An hour after boot, so that timeouts can lie in the past.
            clock: Cell::new(3_600_000_000_000),
            ticks: Cell::new(None),
            rejects: Cell::new(true),
            events: RefCell::default(),
            look_ups: Cell::new(0),
        }
    }
}

impl Fake {
    /// Number of lines of `MAGLEV`, written or not.
    pub const LINES: u32 = 4096;
    /// Number of rows of `BACKENDS`, written or not.
    pub const BACKENDS: u32 = 4096;
    /// Entries that each table of flows holds unless a test sets another number.
    pub const FLOWS: usize = 4096;

    /// The entry of a key as packets find it.
    pub fn flow_at(&self, key: &FlowKey) -> Option<Flow> {
        let protected = self.flows.borrow().get(key).copied();
        protected.or_else(|| self.transient.borrow().get(key).copied())
    }

    /// Every entry as packets find it.
    pub fn all_flows(&self) -> BTreeMap<FlowKey, Flow> {
        let mut all = self.transient.borrow().clone();
        all.extend(self.flows.borrow().iter());
        all
    }

    /// Adds an entry as an earlier packet, or another CPU, would have, and records its backend.
    pub fn put(&self, key: FlowKey, flow: Flow) {
        let table = if flow.is_protected() { &self.flows } else { &self.transient };
        table.borrow_mut().insert(key, flow);
        let tuple = if flow.is_answer() { key.tuple.reversed() } else { flow.to };
        self.in_use
            .borrow_mut()
            .insert(hash::backend_byte(&tuple.destination, tuple.destination_port));
    }

    /// Changes an entry in place.
    pub(super) fn change_flow(&self, key: &FlowKey, change: impl Fn(&mut Flow)) {
        if let Some(flow) = self.flows.borrow_mut().get_mut(key) {
            change(flow);
        } else if let Some(flow) = self.transient.borrow_mut().get_mut(key) {
            change(flow);
        }
    }

    /// How often an event was counted.
    pub fn counted(&self, event: Event) -> u64 {
        self.events.borrow().get(&event).copied().unwrap_or(0)
    }

    /// Counts a lookup that is about to happen.
    pub(super) fn looks_up(&self) {
        self.look_ups.set(self.look_ups.get() + 1);
    }

    /// Applies the pending writes of another CPU before an entry is written.
    pub(super) fn writes_flow(&self, key: &FlowKey) {
        let turn = self.meanwhile.borrow_mut().pop_front_if(|next| next.before == *key);
        for (key, flow) in turn.into_iter().flat_map(|turn| turn.writes) {
            self.flows.borrow_mut().remove(&key);
            self.transient.borrow_mut().remove(&key);
            if let Some(flow) = flow {
                self.put(key, flow);
            }
        }
    }

    /// Writes an entry to the table that it names, if there is room.
    pub(super) fn insert_flow(&self, key: &FlowKey, flow: &Flow) -> bool {
        if self.flow_failures.contains(key) {
            self.count(Event::FlowNoMemory);
            return false;
        }
        let mut table =
            if flow.is_protected() { &self.flows } else { &self.transient }.borrow_mut();
        let entries = || table.keys().filter(|there| there.is_v4() == key.is_v4()).count();
        let fits =
            !flow.is_protected() || table.contains_key(key) || entries() < self.flow_capacity;
        if fits {
            table.insert(*key, *flow);
        }
        fits
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
