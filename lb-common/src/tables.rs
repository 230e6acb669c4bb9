//! The look-ups and the few writes that the data path needs, as one trait: kernel maps or fakes behind it.

use crate::addr::Ip;
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Affinity, Client, Flow, FlowKey, Fragment, Peer, Ports};
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
    /// `SERVICES`.
    fn service(&self, frontend: &Frontend) -> Option<Service>;
    /// The `index`-th 4-byte word (0 to 15) of a line of `SLOTS`, native order.
    fn slot_word(&self, line: u32, index: u32) -> Option<u32>;
    /// The `index`-th 2-byte half (0 to 31) of a line of `SLOTS`, native order.
    fn slot_half(&self, line: u32, index: u32) -> Option<u16>;
    /// The `index`-th byte (0 to 63) of a line of `SLOTS`.
    fn slot_byte(&self, line: u32, index: u32) -> Option<u8>;
    /// `BACKENDS`.
    fn backend(&self, id: BackendId) -> Option<Backend>;

    /// `FLOWS`: a copy of one half.
    fn flow(&self, key: &FlowKey) -> Option<Flow>;
    /// Adds a half if the key is free.
    fn add_flow(&self, key: &FlowKey, flow: &Flow) -> Added;
    /// Overwrites a half, or adds it. False when there is no room.
    fn put_flow(&self, key: &FlowKey, flow: &Flow) -> bool;
    /// Removes a half, if it is there.
    fn remove_flow(&self, key: &FlowKey);

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
    /// `SOCKETS`, by socket cookie.
    fn socket(&self, cookie: u64) -> Option<Peer>;
    /// Remembers what a connected socket asked for.
    fn put_socket(&self, cookie: u64, peer: &Peer) -> bool;

    /// Nanoseconds of `CLOCK_MONOTONIC` (a coarse clock will do).
    fn now(&self) -> u64;
    /// Any 32 bits.
    fn random(&self) -> u32;
    /// Whether a rejection may be sent now (rate limit).
    fn may_reject(&self) -> bool;
    /// Counts something that happened on the way.
    fn count(&self, event: Event);
}
