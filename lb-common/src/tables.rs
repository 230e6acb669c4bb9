//! The look-ups and the few writes that the data path needs, as traits: kernel maps or fakes behind them.

use crate::addr::{Ip, Port};
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, Flow, FlowKey, Fragment, Held, Ports, Shown};
use crate::service::{Backend, BackendId, Frontend, Service, Source};

/// The outcome of adding a flow that must not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    Yes,
    /// The key is taken.
    Taken,
    /// No room.
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
    /// [`Shown::rst`] is taken back: both ends went on.
    pub is_alive: bool,
}

/// The tables of one node. Methods take `&self`: kernel maps are shared anyway.
pub trait Tables: Services + Flows + Filters + Fragments + Node + Clock {}

impl<T: Services + Flows + Filters + Fragments + Node + Clock> Tables for T {}

/// Services and backends, as the agent writes them, and the clients that stick to a backend.
pub trait Services {
    /// `SERVICES`: copies the service of a frontend; false when there is none. (Copies go straight to where they
    /// are kept: a value returned through the stack is too large for it.)
    fn service(&self, frontend: &Frontend, into: &mut Service) -> bool;

    /// `SERVICES`: whether a frontend is there.
    fn knows(&self, frontend: &Frontend) -> bool;

    /// The `index`-th 4-byte word (0 to 15) of a line of `MAGLEV`, native order.
    fn slot_word(&self, line: u32, index: u32) -> Option<u32>;

    /// The `index`-th `u16` (0 to 31) of a line of `MAGLEV`, native order.
    fn slot_u16(&self, line: u32, index: u32) -> Option<u16>;

    /// The `index`-th byte (0 to 63) of a line of `MAGLEV`.
    fn slot_byte(&self, line: u32, index: u32) -> Option<u8>;

    /// `BACKENDS`: copies a row; false when the index is beyond the table.
    fn backend(&self, id: BackendId, into: &mut Backend) -> bool;

    /// `BACKENDS`: the epoch of a row, 0 when nothing lives there.
    fn epoch(&self, id: BackendId) -> u32;

    fn affinity(&self, client: &Client) -> Option<Affinity>;

    /// Remembers a client's backend. False when there is no room.
    fn put_affinity(&self, client: &Client, affinity: &Affinity) -> bool;

    /// `SOURCE_RANGES`: whether a source lies in a prefix allowed for the service.
    fn allows(&self, source: &Source) -> bool;
}

/// The entries of flows.
pub trait Flows {
    /// Copies the entry of a key out of `FLOWS4` or `FLOWS6`, by [`FlowKey::is_v4`], or, where it is not there, out of
    /// `TRANSIENT4` or `TRANSIENT6`; false when there is none.
    fn flow(&self, key: &FlowKey, into: &mut Flow) -> bool;

    /// The same where the family is known.
    #[inline(always)]
    fn flow_of<const V4: bool>(&self, key: &FlowKey, into: &mut Flow) -> bool {
        key.is_v4() == V4 && self.flow(key, into)
    }

    /// The same as a value, for a reader of some fields only.
    #[inline(always)]
    fn copy_flow<const V4: bool>(&self, key: &FlowKey) -> Option<Flow> {
        let mut flow = Flow::default();
        self.flow_of::<V4>(key, &mut flow).then_some(flow)
    }

    /// Adds an entry to the table that its [`Flow::is_protected`] names, if neither table has the key.
    fn add_flow(&self, key: &FlowKey, flow: &Flow) -> Added;

    /// Overwrites an entry in that table, or adds it. False when there is no room.
    fn put_flow(&self, key: &FlowKey, flow: &Flow) -> bool;

    /// Changes an entry in place, in whichever table it is; nothing if it is gone.
    fn touch_flow(&self, key: &FlowKey, touch: &Touch);

    /// Notes in an entry that its frontend was looked up, in place; nothing if it is gone.
    fn confirm_flow(&self, key: &FlowKey, epoch: u32);

    /// Removes an entry of both tables, if it is there.
    fn remove_flow(&self, key: &FlowKey);

    /// Removes an entry of `FLOWS4` or `FLOWS6` only, if it is there.
    fn remove_protected(&self, key: &FlowKey);
}

/// Addresses and tuples that are known for something: a few bits for each, at times true of others.
pub trait Filters {
    /// `IN_USE`: whether a flow of this node goes or went to this backend; at times true of others.
    fn is_in_use(&self, ip: &Ip, port: Port) -> bool;

    /// Notes that a flow goes to this backend.
    fn put_in_use(&self, ip: &Ip, port: Port);

    /// `BACKEND_FILTER`: whether some backend has or had this address and port; at times true of others.
    fn may_be_backend(&self, ip: &Ip, port: Port) -> bool;

    /// `DIRECT_SEEN`: whether a packet of this hash ([`crate::hash::whole`]) was seen on its way straight to a backend.
    fn is_direct(&self, hash: u64) -> bool;

    /// Remembers one, in place of another.
    fn put_direct(&self, hash: u64);

    /// `OWN_ANSWERS`: whether a packet of this hash answers a connection that this node began, or that is masqueraded
    /// as its own.
    fn is_own_answer(&self, hash: u64) -> bool;

    /// Notes one; where there is no room, the one that was asked for longest ago is forgotten.
    fn put_own_answer(&self, hash: u64);

    /// `INHERITED`: whether netfilter translates the datagrams of a tuple of this hash, or gets answers by it.
    fn is_inherited(&self, hash: u64) -> bool;
}

/// Datagrams in pieces.
pub trait Fragments {
    fn fragment(&self, fragment: &Fragment) -> Option<Ports>;

    /// Remembers the ports of a packet in pieces. False when there is no room.
    fn put_fragment(&self, fragment: &Fragment, ports: &Ports) -> bool;

    /// `HELD_FRAGMENTS`: shows a fragment where it lies, too large to be copied; nothing when there is none.
    fn read_held<R>(&self, key: &Fragment, read: impl FnOnce(&Held) -> R) -> Option<R>;

    /// Lends `fill` memory for a fragment, and keeps what it fills in place of what was there. False when it
    /// could not, or when there is no room.
    fn put_held(&self, key: &Fragment, fill: impl FnOnce(&mut Held) -> Option<()>) -> bool;

    /// Forgets one.
    fn remove_held(&self, key: &Fragment);
}

/// The node that the programs are on, as the agent writes it.
pub trait Node {
    /// The node's settings; nothing before the agent wrote them.
    fn settings(&self) -> Option<&Settings>;

    /// `ADDRESSES`: bits of [`crate::config::address`], 0 when the address is not the node's.
    fn address(&self, ip: &Ip) -> u32;

    fn device(&self, index: u32) -> Option<Device>;
}

/// Time, and what is counted or limited by it.
pub trait Clock {
    /// Nanoseconds of `CLOCK_MONOTONIC` (a coarse clock will do).
    fn now(&self) -> u64;

    /// A clock that costs next to nothing: its steps last from an eighth of a second to one and a third.
    fn tick(&self) -> u16;

    /// Whether a rejection may be sent now: each of [`crate::hash::REJECT_LIMIT`] has a limit of its own.
    fn may_reject(&self, bucket: u32) -> bool;

    /// Counts something that happened on the way.
    fn count(&self, event: Event);
}
