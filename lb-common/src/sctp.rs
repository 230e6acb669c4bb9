//! SCTP port changes: the CRC32c of RFC 9260 appendix A, brought up to date without reading the packet.
//!
//! CRC is linear: the change of a word followed by `n` unchanged bytes changes the CRC by that word's own remainder,
//! multiplied by x^(8n) modulo the polynomial.

use crate::addr::Port;
use crate::checksum::Difference;
use crate::flow::Tuple;
use crate::packet::Packet;
use crate::wire::{Piece, View};

/// The Castagnoli polynomial, bits reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The most that [`shifted`] can go back.
const LONGEST: usize = 0xfffb;
/// Offset of the checksum in the common header, ...
const CHECKSUM: usize = 8;
/// ... and bytes of that header behind its ports.
const REST: usize = 8;

/// Whether the ports can change: all that the checksum covers
/// is in the packet, neither in other pieces of it nor cut off.
#[inline(never)]
pub fn can_change<P: Packet>(packet: &P, view: &View) -> bool {
    behind(packet, view).is_some()
}

/// The change of the common header.
#[derive(Clone, Copy)]
pub struct Changed {
    /// Its checksum, as on the wire.
    pub sum: [u8; 4],
    /// The effect of ports and checksum on a sum over the whole packet.
    pub change: Difference,
}

/// The change of the header when the ports become those of `to`; nothing where they cannot change.
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

/// Writes the ports of `to`, and the checksum that they make.
#[inline(always)]
pub fn write<P: Packet>(packet: &mut P, view: &View, to: &Tuple, sum: [u8; 4]) -> Option<()> {
    view.write(packet, 0, Port::word(to.source_port, to.destination_port).to_ne_bytes())?;
    view.write(packet, CHECKSUM, sum)
}

/// Bytes that the checksum covers behind the ports: up to where the IP header says that the packet ends. A short one
/// lies in a longer frame, filled up to the 60 bytes of a wire.
#[inline(always)]
fn behind<P: Packet>(packet: &P, view: &View) -> Option<u16> {
    if view.piece != Piece::Whole {
        return None;
    }
    let behind = view.end(packet)?.checked_sub(view.transport(packet) + size_of::<u32>())?;
    // Four bytes less than 64 KiB, for the word itself; longer ones are not changed.
    if !(REST..=LONGEST).contains(&behind) {
        return None;
    }
    Some(behind as u16)
}

/// x^(8 * n), reflected (bit 31 is x^0), for the low byte of a length ...
const LOW: [u32; 256] = powers(1 << (31 - 8));
/// ... and x^(8 * 256 * n) for its high byte.
const HIGH: [u32; 256] = powers(multiply(LOW[255], LOW[1]));

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [1 << 31; 256];
    let mut at = 1;
    while at < 256 {
        powers[at] = multiply(powers[at - 1], base);
        at += 1;
    }
    powers
}

/// The sum after the change of a word that so many bytes follow.
///
/// Zero is one that is left to whoever sends the packet out, and who computes it over what stands in its place
/// (`skb_crc32c_csum_help`): it must stay. One in four thousand million whole sums looks the same.
#[inline(always)]
fn corrected<P: Packet>(packet: &P, old: u32, delta: u32, behind: u16) -> u32 {
    if old == 0 { 0 } else { old ^ packet.shifted(delta, behind) }
}

/// The raw CRC of four bytes followed by `behind` zero bytes, of a packet below 64 KiB.
///
/// VERIFIER: two multiplications by tables, and no branch that depends on data: as a loop over the
/// bits of the length this was nine tenths of what the verifier had to walk.
#[must_use]
#[inline(always)]
pub fn shifted(word: u32, behind: u16) -> u32 {
    static TABLES: [[u32; 256]; 2] = [LOW, HIGH];
    // The word itself takes x^32 to go through the register, each byte behind it x^8.
    let [high, low] = behind.wrapping_add(4).to_be_bytes();
    let [lows, highs] = &TABLES;
    multiply(multiply(word, lows[low as usize]), highs[high as usize])
}

/// Product of two polynomials modulo [`POLYNOMIAL`], reflected.
#[inline(always)]
const fn multiply(left: u32, right: u32) -> u32 {
    let mut product = 0;
    let mut factor = left;
    let mut rest = right;
    let mut bit = 0;
    while bit < 32 {
        product ^= factor & 0_u32.wrapping_sub(rest >> 31);
        rest <<= 1;
        factor = (factor >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(factor & 1));
        bit += 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, from the RFC.
    fn crc32c(bytes: &[u8]) -> u32 {
        let mut crc = !0_u32;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1));
            }
        }
        !crc
    }

    #[test]
    fn check_value_is_right() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn update_equals_recomputation(
            mut bytes in proptest::collection::vec(any::<u8>(), 4..300),
            new: [u8; 4],
        ) {
            let before = crc32c(&bytes);
            let delta = [bytes[0] ^ new[0], bytes[1] ^ new[1], bytes[2] ^ new[2], bytes[3] ^ new[3]];
            let behind = bytes.len() as u16 - 4;
            bytes[..4].copy_from_slice(&new);
            prop_assert_eq!(before ^ shifted(u32::from_le_bytes(delta), behind), crc32c(&bytes));
        }
    }
}
