//! The lookups and the few writes that the data path needs, as traits: kernel maps or fakes implement them.

use crate::addr::{Ip, Port};
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, Flow, FlowKey, Fragment, Held, Ports, Shown};
use crate::service::{Backend, BackendId, Frontend, Service, Source};

/// The outcome of adding a flow that must not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    Yes,
    /// An entry with this key exists.
    Taken,
    /// The table has no room.
    Full,
}

/// The change that a packet makes to the entry that it matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// [`Flow::seen`].
    pub seen: u64,
    /// Bytes to be set in [`Flow::shown`].
    pub shown: Shown,
    /// [`Flow::expected`]; 0 leaves it.
    pub expected: u32,
    /// Bytes to be cleared in [`Flow::shown`]: later packets have refuted the FIN or RST that they stand for.
    pub cleared: Shown,
}

/// The tables of one node. Methods take `&self`: kernel maps are shared between CPUs in any case.
pub trait Tables: Services + Flows + Filters + Fragments + Node + Clock {}

impl<T: Services + Flows + Filters + Fragments + Node + Clock> Tables for T {}

/// Services and backends, as the agent writes them, and the clients that stick to a backend.
pub trait Services {
    /// `SERVICES`: copies the service of a frontend; false when there is none. The value is
    /// copied in place, because it is too large for the stack.
    fn service(&self, frontend: &Frontend, into: &mut Service) -> bool;

    /// `SERVICES`: whether the map has an entry for a frontend.
    fn knows(&self, frontend: &Frontend) -> bool;

    /// The `index`-th 4-byte word (0 to 15) of a line of `MAGLEV`, native order.
    fn slot_word(&self, line: u32, index: u32) -> Option<u32>;

    /// The `index`-th `u16` (0 to 31) of a line of `MAGLEV`, native order.
    fn slot_u16(&self, line: u32, index: u32) -> Option<u16>;

    /// The `index`-th byte (0 to 63) of a line of `MAGLEV`.
    fn slot_byte(&self, line: u32, index: u32) -> Option<u8>;

    /// `BACKENDS`: copies a row; false when the index is beyond the table.
    fn backend(&self, id: BackendId, into: &mut Backend) -> bool;

    /// `BACKENDS`: the epoch of a row, 0 when the row has no endpoint.
    fn epoch(&self, id: BackendId) -> u32;

    fn affinity(&self, client: &Client) -> Option<Affinity>;

    /// Remembers a client's backend. False when there is no room.
    fn put_affinity(&self, client: &Client, affinity: &Affinity) -> bool;

    /// `SOURCE_RANGES`: whether a source lies in a prefix allowed for the service.
    fn allows(&self, source: &Source) -> bool;
}

/// The entries of flows.
pub trait Flows {
    /// Copies the entry of a key out of `FLOWS4` or `FLOWS6`, by [`FlowKey::is_v4`], or, where that table has none, out
    /// of `TRANSIENT4` or `TRANSIENT6`; false when there is none.
    fn flow(&self, key: &FlowKey, into: &mut Flow) -> bool;

    /// The same as [`Flows::flow`] where the family is known: no check of the key.
    #[inline(always)]
    fn flow_of<const V4: bool>(&self, key: &FlowKey, into: &mut Flow) -> bool {
        key.is_v4() == V4 && self.flow(key, into)
    }

    /// Adds an entry to the table that its [`Flow::is_protected`] names, if neither table has the key.
    fn add_flow(&self, key: &FlowKey, flow: &Flow) -> Added;

    /// Overwrites an entry in that table, or adds it. False when there is no room.
    fn put_flow(&self, key: &FlowKey, flow: &Flow) -> bool;

    /// Changes an entry in place, in whichever table it is; no effect if the entry is gone.
    fn touch_flow(&self, key: &FlowKey, touch: &Touch);

    /// Sets [`Flow::frontends_epoch`] and [`Flow::noted`] of an entry in place; no effect if the entry is gone.
    fn confirm_flow(&self, key: &FlowKey, frontends_epoch: u32, noted: u16);

    /// Removes the entry of a key from both tables, if it is there.
    fn remove_flow(&self, key: &FlowKey);

    /// Removes the entry of a key from `FLOWS4` or `FLOWS6` only, if it is there.
    fn remove_protected(&self, key: &FlowKey);
}

/// Filters over addresses and tuples: a few bits for each, so false positives are possible.
pub trait Filters {
    /// `IN_USE`: whether a flow of this node goes or went to this backend; false positives are possible.
    fn is_in_use(&self, ip: &Ip, port: Port) -> bool;

    /// `IN_USE`: records that a flow goes to this backend.
    fn put_in_use(&self, ip: &Ip, port: Port);

    /// `BACKEND_FILTER`: whether some backend has or had this address and port; false positives are possible.
    fn may_be_backend(&self, ip: &Ip, port: Port) -> bool;

    /// `DIRECT_SEEN`: whether a packet of this hash ([`crate::hash::whole`]) was seen on its way straight to a backend.
    fn is_direct(&self, hash: u64) -> bool;

    /// `DIRECT_SEEN`: records the hash of such a packet, in place of the hash that its element held.
    fn put_direct(&self, hash: u64);

    /// `OWN_ANSWERS`: the [`Flow::moment`] of a recent packet that a packet of this hash answers, where this node
    /// opened the connection, or masquerades it behind an address of its own.
    fn own_answer(&self, hash: u64) -> Option<u32>;

    /// `OWN_ANSWERS`: records such a hash; a full map displaces the least recently used one.
    fn put_own_answer(&self, hash: u64, moment: u32);

    /// `INHERITED`: whether netfilter translates the datagrams of a tuple of this hash, or their answers.
    fn is_inherited(&self, hash: u64) -> bool;
}

/// Fragments of datagrams: their ports, and fragments held until their ports are known.
pub trait Fragments {
    fn fragment(&self, fragment: &Fragment) -> Option<Ports>;

    /// `FRAGMENTS`: records the ports of a fragmented packet. False when there is no room.
    fn put_fragment(&self, fragment: &Fragment, ports: &Ports) -> bool;

    /// `HELD_FRAGMENTS`: passes a held fragment to `read` in place, because it is too large to copy; `None` when there
    /// is none.
    fn read_held<R>(&self, key: &Fragment, read: impl FnOnce(&Held) -> R) -> Option<R>;

    /// `HELD_FRAGMENTS`: lends `fill` memory for a fragment and stores the result, in place of an earlier one of this
    /// key. False when `fill` failed, or when there is no room.
    fn put_held(&self, key: &Fragment, fill: impl FnOnce(&mut Held) -> Option<()>) -> bool;

    /// `HELD_FRAGMENTS`: removes a held fragment.
    fn remove_held(&self, key: &Fragment);
}

/// The node that the programs run on, as the agent describes it in the maps.
pub trait Node {
    /// `SETTINGS`: the node's settings; `None` before the agent has written them.
    fn settings(&self) -> Option<&Settings>;

    /// `ADDRESSES`: bits of [`crate::config::address`], 0 when the address is not the node's.
    fn address(&self, ip: &Ip) -> u32;

    fn device(&self, index: u32) -> Option<Device>;
}

/// Time, and the counters and limits of the data path.
pub trait Clock {
    /// Nanoseconds of `CLOCK_MONOTONIC` (a coarse clock is enough).
    fn now(&self) -> u64;

    /// A clock that costs next to nothing: its steps last from an eighth of a second to one and a third.
    fn tick(&self) -> u16;

    /// Whether a rejection may be sent now: each of the [`crate::hash::REJECT_LIMIT`] buckets has a limit of its own.
    fn may_reject(&self, bucket: u32) -> bool;

    /// Adds one to the counter of an event.
    fn count(&self, event: Event);
}
