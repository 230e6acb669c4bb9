//! The look-ups and the few writes that the data path needs, as one trait: kernel maps or fakes behind it.

use crate::addr::{Ip, Port};
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, Flow, FlowKey, Fragment, Held, Peer, Ports};
use crate::service::{Backend, BackendId, Frontend, Service, Source};

/// What came of adding a flow that must not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is in.
    Yes,
    /// The key is taken.
    Taken,
    /// No room.
    Full,
}

/// The tables of one node. Methods take `&self`: kernel maps are shared anyway.
pub trait Tables {
    /// The node's settings; nothing before the agent wrote them.
    fn settings(&self) -> Option<&Settings>;
    /// `SERVICES`: copies the service of a frontend; false when there is none. (Copies go straight to where they
    /// are kept: a value returned through the stack is too large for it.)
    fn service(&self, frontend: &Frontend, into: &mut Service) -> bool;
    /// `SERVICES`: whether a frontend is there.
    fn knows(&self, frontend: &Frontend) -> bool;
    /// The `index`-th 4-byte word (0 to 15) of a line of `SLOTS`, native order.
    fn slot_word(&self, line: u32, index: u32) -> Option<u32>;
    /// The `index`-th 2-byte half (0 to 31) of a line of `SLOTS`, native order.
    fn slot_half(&self, line: u32, index: u32) -> Option<u16>;
    /// The `index`-th byte (0 to 63) of a line of `SLOTS`.
    fn slot_byte(&self, line: u32, index: u32) -> Option<u8>;
    /// `BACKENDS`: copies a row; false when the index is beyond the table.
    fn backend(&self, id: BackendId, into: &mut Backend) -> bool;
    /// `BACKENDS`: the epoch of a row, 0 when nothing lives there.
    fn epoch(&self, id: BackendId) -> u32;

    /// `FLOWS6` or `FLOWS4`, as for all that follows, by [`FlowKey::is_v4`]: copies one half; false when there is none.
    fn flow(&self, key: &FlowKey, into: &mut Flow) -> bool;
    /// The same where the table is known: `FLOWS4`, or, as that of sockets always is (their end is a cookie), `FLOWS6`.
    #[inline(always)]
    fn flow_of<const V4: bool>(&self, key: &FlowKey, into: &mut Flow) -> bool {
        key.is_v4() == V4 && self.flow(key, into)
    }
    /// The same as a value, for who reads but a part of it.
    #[inline(always)]
    fn copy_flow<const V4: bool>(&self, key: &FlowKey) -> Option<Flow> {
        let mut flow = Flow::default();
        self.flow_of::<V4>(key, &mut flow).then_some(flow)
    }
    /// Adds a half if the key is free.
    fn add_flow(&self, key: &FlowKey, flow: &Flow) -> Added;
    /// Overwrites a half, or adds it. False when there is no room.
    fn put_flow(&self, key: &FlowKey, flow: &Flow) -> bool;
    /// Marks a half as seen now and adds bits to its state, in place; nothing if it is gone.
    fn touch_flow(&self, key: &FlowKey, now: u64, state: u8);
    /// Notes in a half that its frontend was looked up, in place; nothing if it is gone.
    fn confirm_flow(&self, key: &FlowKey, removals: u32);
    /// Removes a half, if it is there.
    fn remove_flow(&self, key: &FlowKey);

    /// `ENDPOINTS`: whether some backend has or had this address and port; at times true of others.
    fn may_be_backend(&self, ip: &Ip, port: Port) -> bool;
    /// `ENDPOINTS`, port 0: whether flows are or were given this address of ours as their source; at times true of others.
    #[inline(always)]
    fn may_be_source(&self, ip: &Ip) -> bool {
        self.may_be_backend(ip, Port::NONE)
    }
    /// `DIRECT`: whether a packet of this hash ([`crate::hash::whole`]) was seen on its way straight to a backend.
    fn is_direct(&self, hash: u64) -> bool;
    /// Remembers one, in place of another.
    fn put_direct(&self, hash: u64);

    /// `AFFINITY`.
    fn affinity(&self, client: &Client) -> Option<Affinity>;
    /// Remembers a client's backend. False when there is no room.
    fn put_affinity(&self, client: &Client, affinity: &Affinity) -> bool;
    /// `SOURCES`: whether a source lies in a prefix allowed for the service.
    fn allows(&self, source: &Source) -> bool;
    /// `ADDRESSES`: bits of [`crate::config::address`], 0 when the address is not the node's.
    fn address(&self, ip: &Ip) -> u32;
    /// `DEVICES`.
    fn device(&self, index: u32) -> Option<Device>;
    /// `FRAGMENTS`.
    fn fragment(&self, fragment: &Fragment) -> Option<Ports>;
    /// Remembers the ports of a packet in pieces. False when there is no room.
    fn put_fragment(&self, fragment: &Fragment, ports: &Ports) -> bool;
    /// `HELD`: shows a fragment where it lies, too large to be copied; nothing when there is none.
    fn read_held<R>(&self, key: u32, read: impl FnOnce(&Held) -> R) -> Option<R>;
    /// Lends `fill` memory for a fragment, and keeps what it fills in place of what was there. False when it
    /// could not, or when there is no room.
    fn put_held(&self, key: u32, fill: impl FnOnce(&mut Held) -> Option<()>) -> bool;
    /// Forgets one.
    fn remove_held(&self, key: u32);
    /// `SOCKETS`, by socket cookie.
    fn socket(&self, cookie: u64) -> Option<Peer>;
    /// Remembers what a connected socket asked for.
    fn put_socket(&self, cookie: u64, peer: &Peer) -> bool;

    /// Nanoseconds of `CLOCK_MONOTONIC` (a coarse clock will do).
    fn now(&self) -> u64;
    /// A clock that costs next to nothing: its steps last from an eighth of a second to one and a third.
    fn tick(&self) -> u16;
    /// Whether a rejection may be sent now (rate limit).
    fn may_reject(&self) -> bool;
    /// Counts something that happened on the way.
    fn count(&self, event: Event);
}
