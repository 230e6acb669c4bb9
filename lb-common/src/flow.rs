//! Flows: what the data path remembers of a translated packet, and for how long.
//!
//! Every translation is two *halves*, one per direction. Each half says what its packet becomes, and
//! the key of the other half follows from that by turning it round ([`FlowKey::other`]); so no half needs a pointer, and a
//! half without its twin can be told. A flow of an outside client to a remote backend has a second
//! pair, made where it leaves the node: the *masquerade*.

mod affinity;
mod fragment;
mod key;
mod v4;

pub use affinity::{Affinity, Client};
pub use fragment::{Fragment, HELD, Held, Ports};
pub use key::{FlowKey, Side, Tuple};
pub use v4::{Flow4, FlowKey4, Tuple4};

use crate::addr::Endpoint;
use crate::layout::plain;
use crate::service::{BackendId, ServiceId};

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

/// Value of `FLOWS6`, and of `FLOWS4` as [`Flow4`]: what packets of this half become.
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
