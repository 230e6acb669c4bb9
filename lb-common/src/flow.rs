//! Flows: what the data path remembers of a translated packet, and for how long.
//!
//! Every translation is two *halves*, one per direction. Each half says what its packet becomes, and
//! the key of the other half follows from that by turning it round ([`FlowKey::other`]); so no half needs a pointer, and a
//! half without its twin can be told. A flow of an outside client to a remote backend has a second
//! pair, made where it leaves the node: the *masquerade*.

mod affinity;
mod fragment;

pub use affinity::{Affinity, Client};
pub use fragment::{Fragment, HELD, Held, Ports};

use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::layout::plain;
use crate::service::{BackendId, ServiceId};

/// Source and destination of a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// Source address.
    pub source: Ip,
    /// Destination address.
    pub destination: Ip,
    /// Source port.
    pub source_port: Port,
    /// Destination port.
    pub destination_port: Port,
}

plain!(Tuple = 36 { source, destination, source_port, destination_port });

impl Tuple {
    /// Nothing.
    pub const NONE: Self = Self {
        source: Ip::UNSPECIFIED,
        destination: Ip::UNSPECIFIED,
        source_port: Port::NONE,
        destination_port: Port::NONE,
    };

    /// From two ends.
    #[inline(always)]
    pub const fn new(source: Endpoint, destination: Endpoint) -> Self {
        Self {
            source: source.ip,
            destination: destination.ip,
            source_port: source.port,
            destination_port: destination.port,
        }
    }

    /// Writes the tuple of an answer.
    #[inline(always)]
    pub const fn write_reversed(&self, into: &mut Self) {
        into.source = self.destination;
        into.destination = self.source;
        into.source_port = self.destination_port;
        into.destination_port = self.source_port;
    }

    /// Whether this is the tuple of an answer to the other.
    #[inline(always)]
    pub fn is_reverse_of(&self, other: &Self) -> bool {
        self.source == other.destination
            && self.destination == other.source
            && self.source_port == other.destination_port
            && self.destination_port == other.source_port
    }

    /// The tuple of an answer.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// Where a half of a flow is looked up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Side(pub u8);

plain!(Side = 1 { 0 });

impl Side {
    /// Packets that come in by a device.
    pub const INGRESS: Self = Self(0);
    /// Packets that go out by a device.
    pub const EGRESS: Self = Self(1);
    /// A socket's own view (sendmsg, recvmsg): its end is [`Ip::cookie`].
    pub const SOCKET: Self = Self(2);
}

/// Key of `FLOWS`: the packet as it is before translation, and where.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Source and destination before translation.
    pub tuple: Tuple,
    /// IP protocol.
    pub protocol: Protocol,
    /// Where this half is looked up.
    pub side: Side,
    pad: u16,
}

plain!(FlowKey = 40 { tuple, protocol, side, pad });

impl FlowKey {
    /// Key of a packet seen on a side.
    #[inline(always)]
    pub const fn new(tuple: Tuple, protocol: Protocol, side: Side) -> Self {
        Self { tuple, protocol, side, pad: 0 }
    }

    /// Key of the other half, given what this half's packets become and this half's kind.
    #[inline(always)]
    #[must_use]
    pub const fn other(&self, flow: &Flow) -> Self {
        let mut other = Self::new(flow.to, self.protocol, self.side);
        self.write_other(flow, &mut other);
        other
    }

    /// [`FlowKey::other`], in place.
    #[inline(always)]
    pub const fn write_other(&self, flow: &Flow, other: &mut Self) {
        other.tuple.source = flow.to.destination;
        other.tuple.destination = flow.to.source;
        other.tuple.source_port = flow.to.destination_port;
        other.tuple.destination_port = flow.to.source_port;
        other.protocol = self.protocol;
        other.side = match (flow.kind, self.side) {
            (Kind::HAIRPIN, side) | (_, side @ Side::SOCKET) => side,
            (_, Side::INGRESS) => Side::EGRESS,
            (_, _) => Side::INGRESS,
        };
    }

    /// Key of the masquerade of the flow whose forward half is `forward`, in place.
    #[inline(always)]
    pub const fn write_mark(&self, forward: &Flow, mark: &mut Self) {
        mark.tuple = forward.to;
        mark.protocol = self.protocol;
        mark.side = Side::EGRESS;
    }
}

/// Which translation a half stands for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

plain!(Kind = 1 { 0 });

impl Kind {
    /// Client to frontend: the destination becomes the backend.
    pub const FORWARD: Self = Self(1);
    /// Backend to client: the source becomes the frontend.
    pub const REPLY: Self = Self(2);
    /// Client to backend, leaving by an outside device: the source becomes ours. `to.source` is
    /// unspecified until the first packet leaves.
    pub const MASQUERADE: Self = Self(3);
    /// Backend to our address: the destination becomes the client again.
    pub const UNMASQUERADE: Self = Self(4);
    /// Both halves of a pod that reaches itself: both addresses change, and the packet turns round.
    pub const HAIRPIN: Self = Self(5);
}

/// What one direction of a flow has shown so far. Bits of [`Flow::state`].
pub mod state {
    /// A packet other than the first has passed in this direction (TCP: without SYN).
    pub const ESTABLISHED: u8 = 1;
    /// TCP: this direction sent FIN.
    pub const FIN: u8 = 2;
    /// TCP: this direction sent RST.
    pub const RST: u8 = 4;
}

/// Value of `FLOWS`: what packets of this half become.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Source and destination after translation.
    pub to: Tuple,
    /// The service it was made for.
    pub service: ServiceId,
    /// The chosen backend.
    pub backend: BackendId,
    /// The backend's epoch when it was chosen.
    pub epoch: u32,
    /// Last packet of this half, nanoseconds of `CLOCK_MONOTONIC`, about a second exact. Its last 16 bits are
    /// no time, but [`Flow::tick`].
    pub seen: u64,
    /// Which translation.
    pub kind: Kind,
    /// [`state`] bits of this direction.
    pub state: u8,
    /// [`Flow::MASQUERADED`].
    pub flags: u8,
    pad: u8,
    /// Forward halves: [`crate::config::Settings::removals`] when the frontend was last looked up. Replies: index of the device
    /// by which their client came, where it is known.
    pub note: u32,
}

plain!(Flow = 64 { to, service, backend, epoch, seen, kind, state, flags, pad, note });
const _: () = assert!(align_of::<Flow>() == 8);

impl Flow {
    /// What [`Flow::seen`] becomes: the time, and the tick at which it was asked for.
    #[inline(always)]
    pub const fn seen_at(now: u64, tick: u16) -> u64 {
        now & !(u16::MAX as u64) | tick as u64
    }

    /// [`crate::tables::Tables::tick`] when `seen` was written.
    #[inline(always)]
    pub const fn tick(&self) -> u16 {
        self.seen as u16
    }

    /// A masquerade pair belongs to this flow.
    pub const MASQUERADED: u8 = 1;

    /// A fresh half.
    #[inline(always)]
    pub const fn new(to: Tuple, kind: Kind, now: u64) -> Self {
        Self {
            to,
            service: 0,
            backend: 0,
            epoch: 0,
            seen: now,
            kind,
            state: 0,
            flags: 0,
            pad: 0,
            note: 0,
        }
    }

    /// Makes `other` another half of the same flow: same service, backend and flags, nothing shown
    /// yet, nothing noted. What its packets become is left to the caller.
    #[inline(always)]
    pub const fn write_half(&self, kind: Kind, other: &mut Self) {
        other.service = self.service;
        other.backend = self.backend;
        other.epoch = self.epoch;
        other.seen = self.seen;
        other.kind = kind;
        other.state = 0;
        other.flags = self.flags;
        other.pad = self.pad;
        other.note = 0;
    }
}

/// Value of `SOCKETS`, keyed by socket cookie: what a connected socket believes it talks to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The frontend that was asked for.
    pub frontend: Endpoint,
    /// The backend the kernel's socket is connected to.
    pub backend: Endpoint,
    /// Row of the backend.
    pub id: BackendId,
    /// Its epoch then.
    pub epoch: u32,
}

plain!(Peer = 56 { frontend, backend, id, epoch });

/// Elements of `DIRECT`, a power of two: hashes of packets from pods straight to a backend, each at its last bits.
pub const DIRECT: u32 = 16_384;
