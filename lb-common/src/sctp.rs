//! SCTP port changes: the checksum is updated without reading the packet ([`crate::checksum::crc32c`]).

use crate::addr::Port;
use crate::checksum::Difference;
use crate::flow::Tuple;
use crate::packet::Packet;
use crate::wire::{Piece, View};

/// The most bytes behind a word that [`crate::checksum::crc32c::shifted`] can handle.
const LONGEST: usize = 0xfffb;
/// Offset of the checksum in the common header.
const CHECKSUM: usize = 8;
/// Bytes of the common header behind its ports.
const REST: usize = 8;

/// Whether the ports can change: all bytes that the checksum covers are in the packet, neither in other fragments nor
/// cut off.
#[inline(never)]
pub fn can_change<P: Packet>(packet: &P, view: &View) -> bool {
    behind(packet, view).is_some()
}

/// The change of the common header.
#[derive(Clone, Copy)]
pub struct Changed {
    /// The new checksum, as on the wire.
    pub sum: [u8; 4],
    /// The effect of ports and checksum on a sum over the whole packet.
    pub change: Difference,
}

/// The change of the header when the ports become those of `to`; `None` where they cannot change.
#[inline(always)]
pub fn changed<P: Packet>(packet: &P, view: &View, old: &Tuple, to: &Tuple) -> Option<Changed> {
    let before = Port::word(old.source_port, old.destination_port);
    let after = Port::word(to.source_port, to.destination_port);
    let behind = behind(packet, view)?;
    let stored = view.word(packet, CHECKSUM)?;
    let sum = corrected(packet, u32::from_le(stored), u32::from_le(before ^ after), behind);
    let sum = sum.to_le_bytes();
    let change = Difference::NONE.word(before, after).word(stored, u32::from_ne_bytes(sum));
    Some(Changed { sum, change })
}

/// Writes the ports of `to`, and the checksum that follows from them.
#[inline(always)]
pub fn write<P: Packet>(packet: &mut P, view: &View, to: &Tuple, sum: [u8; 4]) -> Option<()> {
    view.write(packet, 0, Port::word(to.source_port, to.destination_port).to_ne_bytes())?;
    view.write(packet, CHECKSUM, sum)
}

/// Bytes that the checksum covers behind the ports, up to the end of the packet by its IP header: a link pads short
/// packets to 60 bytes.
#[inline(always)]
fn behind<P: Packet>(packet: &P, view: &View) -> Option<u16> {
    if view.piece != Piece::Whole {
        return None;
    }
    let behind = view.end(packet)?.checked_sub(view.transport(packet) + size_of::<u32>())?;
    // The limit is four bytes below 64 KiB, for the word itself; longer packets are not changed.
    if !(REST..=LONGEST).contains(&behind) {
        return None;
    }
    Some(behind as u16)
}

/// The checksum after the change of a word that `behind` bytes follow.
///
/// A checksum of zero must stay: the kernel or the interface computes it when the packet is sent, over the field as it
/// stands (`skb_crc32c_csum_help`). One in four thousand million complete checksums is zero as well.
#[inline(always)]
fn corrected<P: Packet>(packet: &P, old: u32, delta: u32, behind: u16) -> u32 {
    if old == 0 { 0 } else { old ^ packet.shifted(delta, behind) }
}
