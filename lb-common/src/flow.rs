//! Flows: the data path's memory of the packets that it translates, and how long it lasts.
//!
//! Every translation is two *entries*, one per direction. Each entry holds the tuple that its packets get, and the key
//! of the other entry follows from that tuple reversed ([`FlowKey::opposite`]); so no entry needs a pointer, and an
//! entry without its opposite can be recognised. A masqueraded flow has a second pair. Its first entry is
//! written with the flow; its source and its second entry are made where the flow leaves the node: at an external
//! interface, with `masquerade: kube-proxy` also at a pod's.

mod affinity;
mod entry;
mod fragment;
mod key;
mod lifetime;
mod shown;
mod v4;

pub use affinity::{Affinity, Client};
pub use entry::Entry;
pub use fragment::{Fragment, HELD_FRAGMENTS, Held, Ports};
pub use key::{FlowKey, Side, Tuple};
pub use lifetime::{CLOSED, Life, Lifetimes, has_lasted};
pub use shown::Shown;
pub use v4::{Flow4, FlowKey4, Tuple4};

use crate::addr::Endpoint;
use crate::layout::plain;
use crate::service::{BackendId, ServiceId};

/// The translation that an entry stands for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u8);

plain!(Kind = 1 { 0 });

impl Kind {
    /// Client to frontend: the destination becomes the backend.
    pub const FORWARD: Self = Self(1);
    /// Backend to client: the source becomes the frontend.
    pub const REPLY: Self = Self(2);
    /// Client to backend, where a masqueraded flow leaves: the source becomes an address of this node. `to.source` is
    /// unspecified until the first packet leaves.
    pub const MASQUERADE: Self = Self(3);
    /// Backend to that address of this node: the destination becomes the client again.
    pub const UNMASQUERADE: Self = Self(4);
    /// Both entries of a pod that reaches itself: both addresses change, and the packet returns by the same interface.
    pub const HAIRPIN: Self = Self(5);
}

/// The tuple that the packets of one direction get, and the state of their flow.
///
/// Value of `FLOWS6` and `TRANSIENT6`, and, stored as [`Flow4`], of `FLOWS4` and `TRANSIENT4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Source and destination after translation.
    pub to: Tuple,
    /// The service for which the flow was created.
    pub service: ServiceId,
    /// The chosen backend.
    pub backend: BackendId,
    /// The backend's epoch when it was chosen.
    pub epoch: u32,
    /// Time of the last packet of this direction: nanoseconds of `CLOCK_MONOTONIC`, accurate to about a second. The
    /// last 16 bits are not part of the time but hold [`Flow::tick`].
    pub seen: u64,
    pub kind: Kind,
    /// [`Flow::MASQUERADED`] and the other bits.
    pub flags: u8,
    /// Forward entries of TCP: [`Flow::note`] of a SYN to an idle connection whose backend was removed. It counts for
    /// two minutes, again whenever [`Flow::note`] has wrapped, and until the backend answers. 0: none.
    pub noted: u16,
    /// Flags that packets of this direction have shown.
    pub shown: Shown,
    /// Forward entries of datagrams: [`crate::config::ServiceRanges::frontends_epoch`] when the frontend was last
    /// looked up.
    pub frontends_epoch: u32,
    /// Reply entries: index of the interface by which the client's packets came, where it is known.
    pub client_device: u32,
    /// [`Flow::moment`] of the first packet of the flow.
    pub begun: u32,
    /// TCP: the acknowledgement number of a recent packet of this direction, in host byte order, which is the sequence
    /// number that its sender expected next; 0 where none is known. After a SYN-ACK, the number that the client has to
    /// acknowledge.
    pub expected: u32,
}

plain!(Flow = 80 { to, service, backend, epoch, seen, kind, flags, noted, shown, frontends_epoch, client_device, begun, expected });
const _: () = assert!(align_of::<Flow>() == 8);

impl Flow {
    /// The new value of [`Flow::seen`]: the time, and in the last 16 bits the tick at which the time was read.
    #[inline(always)]
    pub const fn seen_at(now: u64, tick: u16) -> u64 {
        // The 16 bits are 65 microseconds of a time that is exact to a second only (ADR 0016).
        now & !(u16::MAX as u64) | tick as u64
    }

    /// [`crate::tables::Tables::tick`] when `seen` was written.
    #[inline(always)]
    pub const fn tick(&self) -> u16 {
        self.seen as u16
    }

    /// Number of low bits of a time that [`Flow::moment`] leaves out.
    pub const MOMENT_BITS: u32 = 27;

    /// A time in steps of 2^27 ns (0.134 s), as [`Flow::begun`] holds it. The value wraps after 18 years.
    #[inline(always)]
    pub const fn moment(now: u64) -> u32 {
        (now >> Self::MOMENT_BITS) as u32
    }

    /// Number of low bits of a time that [`Flow::note`] leaves out.
    pub const NOTE_BITS: u32 = 30;

    /// A time in steps of 2^30 ns (1.07 s), as [`Flow::noted`] holds it, with the highest bit set: never 0. The value
    /// wraps after 9.8 hours.
    #[inline(always)]
    pub const fn note(now: u64) -> u16 {
        (now >> Self::NOTE_BITS) as u16 | 1 << 15
    }

    /// The number of steps from one such time to another.
    #[inline(always)]
    pub const fn steps(from: u16, to: u16) -> u16 {
        to.wrapping_sub(from) & (u16::MAX >> 1)
    }

    /// A masquerade pair belongs to this flow.
    pub const MASQUERADED: u8 = 1;
    /// The entry is in `FLOWS4` or `FLOWS6`, where only a sweep or the end of its flow removes it. Without the flag it
    /// is in `TRANSIENT4` or `TRANSIENT6`, where newer entries displace it.
    pub const PROTECTED: u8 = 2;

    /// The entry is for packets from the backend to the client.
    pub const ANSWER: u8 = 4;

    /// The service of the flow has affinity.
    pub const STICKY: u8 = 8;

    /// The client may be a pod, and its packets came in by a pod's interface. An external interface translates the
    /// replies only if it is that interface ([`Flow::client_device`]).
    pub const OF_POD: u8 = 16;

    /// Whether the entry is for packets from the backend to the client.
    #[inline(always)]
    pub const fn is_answer(&self) -> bool {
        self.flags & Self::ANSWER != 0
    }

    /// Whether the entry is one of the pair that hides the client behind an address of this node.
    #[inline(always)]
    pub const fn is_masquerade(&self) -> bool {
        matches!(self.kind, Kind::MASQUERADE | Kind::UNMASQUERADE)
    }

    /// Whether the entry is the one that the client's packets meet first.
    #[inline(always)]
    pub const fn is_forward(&self) -> bool {
        matches!(self.kind, Kind::FORWARD | Kind::HAIRPIN) && !self.is_answer()
    }

    /// Whether the entry is safe from displacement by new flows.
    #[inline(always)]
    pub const fn is_protected(&self) -> bool {
        self.flags & Self::PROTECTED != 0
    }

    /// A new entry, with no packet seen yet.
    #[inline(always)]
    pub const fn new(to: Tuple, kind: Kind, now: u64) -> Self {
        Self {
            to,
            service: 0,
            backend: 0,
            epoch: 0,
            seen: now,
            kind,
            flags: 0,
            noted: 0,
            shown: Shown::NOTHING,
            frontends_epoch: 0,
            client_device: 0,
            begun: Self::moment(now),
            expected: 0,
        }
    }

    /// Turns `other` into another entry of the same flow, for the client's packets: same service, backend, flags and
    /// age, nothing shown or recorded yet. The caller sets the translation.
    #[inline(always)]
    pub const fn write_entry(&self, kind: Kind, other: &mut Self) {
        other.service = self.service;
        other.backend = self.backend;
        other.epoch = self.epoch;
        other.seen = self.seen;
        other.kind = kind;
        // `PROTECTED` is taken over as well: all entries of a flow are in one tier (ADR 0025).
        other.flags = self.flags & !Self::ANSWER;
        other.noted = 0;
        other.shown = Shown::NOTHING;
        other.frontends_epoch = 0;
        other.client_device = 0;
        other.begun = self.begun;
        other.expected = 0;
    }

    /// Turns `other` into the entry of the same flow for packets from the backend.
    #[inline(always)]
    pub const fn write_answer(&self, kind: Kind, other: &mut Self) {
        self.write_entry(kind, other);
        other.flags |= Self::ANSWER;
    }
}

/// Value of `PEERS`, the storage of a socket: the peer that its process named.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The frontend that the process named.
    pub frontend: Endpoint,
    /// The backend that the kernel's socket is connected to.
    pub backend: Endpoint,
}

plain!(Peer = 48 { frontend, backend });

/// Elements of `DIRECT_SEEN`, a power of two: hashes of packets from pods straight to a backend, each at the index of
/// its last bits.
pub const DIRECT_SEEN: u32 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_compared_across_their_wrap() {
        let at = |steps: u64| Flow::note(steps << Flow::NOTE_BITS);
        assert_eq!([at(0), at(1), at(1 << 15)], [0x8000, 0x8001, 0x8000]);
        assert_eq!(Flow::steps(at(0), at(1)), 1);
        assert_eq!(Flow::steps(at((1 << 15) - 1), at((1 << 15) + 4)), 5);
    }
}
