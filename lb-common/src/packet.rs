//! Access to a packet: a trait with one adapter for each kind (skb, XDP frame, bytes).

use crate::checksum::{Difference, crc32c};
use crate::flow::Held;
use crate::hook::Hooked;

/// How a field takes part in a transport checksum: the kind decides whether a partial checksum, which an interface
/// still has to complete, covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// An address: part of the pseudo-header, which even a partial checksum contains.
    PseudoHeader,
    /// A field of the transport header or payload: a partial checksum does not contain it yet.
    Payload,
}

/// A packet from its link-layer header on. Offsets count from there, in bytes.
///
/// Access at a constant offset sees the linear part of an skb, or the first buffer of an XDP frame: the packet's own
/// headers lie there from the start. Functions that take an offset known only at run time see all of it.
pub trait Packet: Hooked {
    /// Whether a VLAN tag lies in the bytes (XDP) and not in the packet's metadata (tc).
    fn has_tags(&self) -> bool;

    /// Whether a VLAN tag lies in the packet's metadata, where the bytes of the packet do not show it.
    fn is_tagged(&self) -> bool;

    /// Whether that tag names a VLAN, so that an interface over this one receives the packet. The number 0 gives the
    /// packet a priority only.
    fn is_of_vlan(&self) -> bool;

    /// Copies `N` bytes. `at` must be a constant on each path of the program (`VERIFIER:` packet
    /// pointers with a variable part lose their bounds when the compiler adds them up twice).
    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]>;

    /// Copies `N` words of four bytes, in memory order; the same rule for `at`.
    fn words<const N: usize>(&self, at: usize) -> Option<[u32; N]>;

    /// Copies `N` u64s of eight bytes, in memory order; the same rule for `at`.
    fn u64s<const N: usize>(&self, at: usize) -> Option<[u64; N]>;

    /// Copies `N` bytes from an offset known only at run time (options, extension headers). Slower.
    fn read_at<const N: usize>(&self, at: usize) -> Option<[u8; N]>;

    /// Overwrites `N` bytes; the same rule for `at` as [`Packet::read`].
    fn write<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()>;

    /// Overwrites `N` words of four bytes, in memory order; the same rule for `at`.
    fn set_words<const N: usize>(&mut self, at: usize, words: [u32; N]) -> Option<()>;

    /// Overwrites `N` u64s of eight bytes, in memory order; the same rule for `at`.
    fn set_u64s<const N: usize>(&mut self, at: usize, u64s: [u64; N]) -> Option<()>;

    /// Overwrites `N` bytes at an offset known only at run time.
    fn write_at<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()>;

    /// Brings the transport checksum at `at` up to date with a change already made; the same rule for `at`.
    /// `zero_is_none`: a zero field means "no checksum" and stays (UDP over IPv4, RFC 768).
    fn checksum(
        &mut self,
        at: usize,
        change: Difference,
        covered: Covered,
        zero_is_none: bool,
    ) -> Option<()>;

    /// Tells the kernel that bytes changed which no checksum in the packet balances: an skb may carry a sum over all of
    /// its bytes (`CHECKSUM_COMPLETE`), which is then corrected by `change`.
    fn summed(&mut self, change: Difference);

    /// The raw CRC32c of a word followed by `behind` zero bytes ([`crc32c::shifted`]): in the kernel a function of its
    /// own, which the verifier walks once.
    #[inline(always)]
    fn shifted(&self, word: u32, behind: u16) -> u32 {
        crc32c::shifted(word, behind)
    }

    /// [`Packet::checksum`] at an offset known only at run time. Slower.
    fn checksum_at(
        &mut self,
        at: usize,
        change: Difference,
        covered: Covered,
        zero_is_none: bool,
    ) -> Option<()>;

    /// Cuts the packet to `keep` bytes and opens `room` bytes right behind the `link` bytes of the link-layer header.
    /// The content of the opened bytes is not defined.
    fn reshape(&mut self, keep: usize, link: usize, room: usize) -> Option<()>;

    /// Copies the whole packet. `None` at XDP, which has no such copy, and where the packet is too large.
    fn keep(&self, into: &mut Held) -> Option<()>;

    /// Replaces the packet by one that was held.
    fn become_held(&mut self, held: &Held) -> Option<()>;

    /// Length of the packet in bytes, link-layer header included. Before segmentation it may exceed the MTU.
    fn length(&self) -> usize;

    /// Payload bytes of each packet into which the interface will split this one (`gso_size`); 0 where it will not be
    /// split.
    fn segment(&self) -> usize;
}
