//! Fragmented packets: the ports that later fragments lack, and fragments that arrived too early (ADR 0014).

use super::Side;
use crate::addr::{Ip, Port, Protocol};
use crate::layout::plain;

/// Key of `FRAGMENTS`: the packet a fragment belongs to (RFC 791 3.2, RFC 8200 4.5), and where it was seen.
///
/// Also key of `HELD_FRAGMENTS`, with the place of the fragment in the queue of its datagram.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fragment {
    /// Source address.
    pub source: Ip,
    /// Destination address.
    pub destination: Ip,
    /// Identification, as on the wire (IPv4: two bytes, then zero).
    pub id: [u8; 4],
    /// IP protocol.
    pub protocol: Protocol,
    pub side: Side,
    /// In `HELD_FRAGMENTS`: how many fragments of the datagram are held up to this one. In `FRAGMENTS`: 0.
    pub place: u16,
}

plain!(Fragment = 40 { source, destination, id, protocol, side, place });

impl Fragment {
    /// The key of a fragmented packet.
    #[inline(always)]
    pub const fn new(
        source: Ip,
        destination: Ip,
        id: [u8; 4],
        protocol: Protocol,
        side: Side,
    ) -> Self {
        Self { source, destination, id, protocol, side, place: 0 }
    }
}

/// Value of `FRAGMENTS`: the ports that only the first fragment carries.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    pub source: Port,
    /// Destination port; none before the first fragment has arrived.
    pub destination: Port,
    /// How many fragments in `HELD_FRAGMENTS` wait for the first one, or to be sent on behind it; or
    /// [`Ports::NONE_WAITS`].
    pub held: u16,
    /// [`Ports::time`] when it was written.
    pub written: u16,
    /// Number of the datagram's first bytes that have passed in order; 0 if fragments were held.
    pub passed: u16,
}

plain!(Ports = 10 { source, destination, held, written, passed });

impl Ports {
    /// Steps of [`Ports::time`] for which the entry is valid: 30 seconds, as long as Linux waits for the rest of a
    /// datagram (ipv4(7), `ipfrag_time`; RFC 8200 4.5 allows 60 at most).
    const AGE: u16 = 28;
    /// In `held`: the first fragment had no ports, so no other one is to wait for it.
    pub const NONE_WAITS: u16 = Held::QUEUE + 1;

    /// The number of fragments that are held.
    #[inline(always)]
    pub const fn waiting(&self) -> u16 {
        if self.held > Held::QUEUE { 0 } else { self.held }
    }

    /// Makes the entry one of an earlier datagram.
    #[inline(always)]
    pub const fn end(&mut self, now: u64) {
        self.written = Self::time(now).wrapping_sub(Self::AGE + 1);
    }

    /// A time as the entry holds it, in steps of 1.07 seconds. The value wraps after 19 hours.
    #[inline(always)]
    pub const fn time(now: u64) -> u16 {
        (now >> 30) as u16
    }

    /// Whether the entry can still belong to the current datagram, and not to an earlier one with the same
    /// identification.
    #[inline(always)]
    pub const fn is_fresh(&self, now: u64) -> bool {
        Self::time(now).wrapping_sub(self.written) <= Self::AGE
    }
}

/// Entries of `HELD_FRAGMENTS`; the newest one displaces the oldest.
///
/// They suffice for 90 datagrams of 64 KiB, or for an eighth of a second of 30,000 stray fragments a second.
pub const HELD_FRAGMENTS: u32 = 4_096;

/// Value of `HELD_FRAGMENTS`: an unchanged later fragment that arrived before the first one of its datagram.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The fragment's key: it shows a reader when a displaced entry was reused for another fragment meanwhile.
    pub fragment: Fragment,
    /// Length of the packet in bytes, and [`Held::L3`].
    pub length: u32,
    pad: u32,
    /// The packet, from its link-layer header on, if it has one.
    pub bytes: [u8; Self::LARGEST],
}

plain!(Held = 1_584 { fragment, length, pad, bytes });

impl Held {
    /// Bytes of the largest packet that can be held: an Ethernet frame of the usual MTU and two tags.
    pub const LARGEST: usize = 1_536;
    /// In `length`: the packet has no link-layer header. It can only replace a packet that has none either.
    pub const L3: u32 = 1 << 31;
    /// Most fragments of one datagram that are held: 64 KiB in fragments of the smallest MTU of IPv6.
    pub const QUEUE: u16 = 64;
}

impl Default for Held {
    fn default() -> Self {
        Self { fragment: Fragment::default(), length: 0, pad: 0, bytes: [0; Self::LARGEST] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_waits_and_one_for_nothing_does_not() {
        let waiting = |held| Ports { held, ..Ports::default() }.waiting();
        assert_eq!([0, 1, Held::QUEUE].map(waiting), [0, 1, Held::QUEUE]);
        assert_eq!(waiting(Ports::NONE_WAITS), 0);
    }
}
