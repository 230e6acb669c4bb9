//! The pinned maps, read as the programs read them. Writes stay in this process: the maps do not change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use lb_common::addr::{Ip, Port};
use lb_common::config::{Device, Settings};
use lb_common::event::Event;
use lb_common::flow::{Affinity, Client, Flow, FlowKey, Fragment, Held, Ports};
use lb_common::service::{Backend, BackendId, Frontend, Line, Service, Source};
use lb_common::tables::{Added, Clock, Filters, Flows, Fragments, Node, Services, Touch};

use crate::maps::{Error, Maps};
use crate::syscall::monotonic;

/// The maps of a node, together with what one packet would write.
pub(super) struct Live<'a> {
    maps: &'a Maps,
    settings: Settings,
    now: u64,
    /// The entries that the packet wrote, and those that it removed (`None`).
    flows: RefCell<BTreeMap<FlowKey, Option<Flow>>>,
    /// The last error of a map that could not be read.
    error: Cell<Option<Error>>,
}

impl<'a> Live<'a> {
    pub(super) fn new(maps: &'a Maps) -> Result<Self, Error> {
        let now = monotonic().as_nanos() as u64;
        let flows = RefCell::default();
        Ok(Self { maps, settings: maps.settings()?, now, flows, error: Cell::new(None) })
    }

    /// Fails if a map could not be read: the verdict is then invalid.
    pub(super) fn finish(self) -> Result<(), Error> {
        self.error.into_inner().map_or(Ok(()), Err)
    }

    /// Returns the result of a read; `None` if it failed.
    fn read<T>(&self, result: Result<Option<T>, Error>) -> Option<T> {
        result.unwrap_or_else(|error| {
            self.error.set(Some(error));
            None
        })
    }

    fn flow_at(&self, key: &FlowKey) -> Option<Flow> {
        let written = self.flows.borrow().get(key).copied();
        written.unwrap_or_else(|| self.read(self.maps.flows().get(key)))
    }

    fn line(&self, line: u32) -> Option<Line> {
        self.read(self.maps.line(line))
    }

    fn part<const N: usize>(&self, line: u32, index: u32) -> Option<[u8; N]> {
        self.line(line)?.get(index as usize * N..)?.first_chunk().copied()
    }
}

impl Services for Live<'_> {
    fn service(&self, frontend: &Frontend, into: &mut Service) -> bool {
        let found = self.read(self.maps.service(frontend));
        found.map(|service| *into = service).is_some()
    }

    fn knows(&self, frontend: &Frontend) -> bool {
        self.read(self.maps.service(frontend)).is_some()
    }

    fn slot_word(&self, line: u32, index: u32) -> Option<u32> {
        self.part(line, index & 15).map(u32::from_ne_bytes)
    }

    fn slot_u16(&self, line: u32, index: u32) -> Option<u16> {
        self.part(line, index & 31).map(u16::from_ne_bytes)
    }

    fn slot_byte(&self, line: u32, index: u32) -> Option<u8> {
        self.part(line, index & 63).map(u8::from_ne_bytes)
    }

    fn backend(&self, id: BackendId, into: &mut Backend) -> bool {
        let found = self.read(self.maps.backend(id).map(Some));
        found.map(|backend| *into = backend).is_some()
    }

    fn epoch(&self, id: BackendId) -> u32 {
        self.read(self.maps.backend(id).map(Some)).map_or(0, |backend| backend.epoch)
    }

    fn affinity(&self, client: &Client) -> Option<Affinity> {
        self.read(self.maps.affinity(client))
    }

    fn put_affinity(&self, _: &Client, _: &Affinity) -> bool {
        true
    }

    fn allows(&self, source: &Source) -> bool {
        self.read(self.maps.allows(source).map(Some)).unwrap_or(false)
    }
}

impl Flows for Live<'_> {
    fn flow(&self, key: &FlowKey, into: &mut Flow) -> bool {
        self.flow_at(key).map(|flow| *into = flow).is_some()
    }

    fn add_flow(&self, key: &FlowKey, flow: &Flow) -> Added {
        if self.flow_at(key).is_some() {
            return Added::Taken;
        }
        self.flows.borrow_mut().insert(*key, Some(*flow));
        Added::Yes
    }

    fn put_flow(&self, key: &FlowKey, flow: &Flow) -> bool {
        self.flows.borrow_mut().insert(*key, Some(*flow));
        true
    }

    fn touch_flow(&self, _: &FlowKey, _: &Touch) {}

    fn confirm_flow(&self, _: &FlowKey, _: u32, _: u16) {}

    fn remove_flow(&self, key: &FlowKey) {
        self.flows.borrow_mut().insert(*key, None);
    }

    fn remove_protected(&self, key: &FlowKey) {
        self.remove_flow(key);
    }
}

impl Filters for Live<'_> {
    // For the first packet of a client, which `explain` makes, these filters only save lookups: an answer of true
    // cannot change its verdict.
    fn is_in_use(&self, _: &Ip, _: Port) -> bool {
        true
    }

    fn put_in_use(&self, _: &Ip, _: Port) {}

    fn may_be_backend(&self, _: &Ip, _: Port) -> bool {
        true
    }

    fn is_direct(&self, hash: u64) -> bool {
        self.read(self.maps.is_direct(hash).map(Some)).unwrap_or(false)
    }

    fn put_direct(&self, _: u64) {}

    fn own_answer(&self, hash: u64) -> Option<u32> {
        self.read(self.maps.own_answer(hash))
    }

    fn put_own_answer(&self, _: u64, _: u32) {}

    fn is_inherited(&self, hash: u64) -> bool {
        self.read(self.maps.is_inherited(hash).map(Some)).unwrap_or(false)
    }
}

impl Fragments for Live<'_> {
    fn fragment(&self, _: &Fragment) -> Option<Ports> {
        None
    }

    fn put_fragment(&self, _: &Fragment, _: &Ports) -> bool {
        true
    }

    fn read_held<R>(&self, _: &Fragment, _: impl FnOnce(&Held) -> R) -> Option<R> {
        None
    }

    fn put_held(&self, _: &Fragment, _: impl FnOnce(&mut Held) -> Option<()>) -> bool {
        false
    }

    fn remove_held(&self, _: &Fragment) {}
}

impl Node for Live<'_> {
    fn settings(&self) -> Option<&Settings> {
        // The programs pass every packet until an agent has written the settings (`settings` in lb-ebpf/src/kernel.rs).
        (self.settings.node.source_port_high != Port::NONE).then_some(&self.settings)
    }

    fn address(&self, ip: &Ip) -> u32 {
        self.read(self.maps.address(ip)).unwrap_or(0)
    }

    fn device(&self, index: u32) -> Option<Device> {
        self.read(self.maps.device(index))
    }
}

impl Clock for Live<'_> {
    fn now(&self) -> u64 {
        self.now
    }

    fn tick(&self) -> u16 {
        // Only one in 65,536 entries has this tick, so all others are judged by the clock.
        u16::MAX
    }

    fn may_reject(&self, _: u32) -> bool {
        // The limit depends on the packets before this one. `explain` shows what happens within the limit.
        true
    }

    fn count(&self, _: Event) {}
}
