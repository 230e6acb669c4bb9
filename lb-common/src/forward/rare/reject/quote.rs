//! The part of a packet that an error about it quotes, with its checksums.

use crate::addr::Protocol;
use crate::checksum::Difference;
use crate::packet::Packet;
use crate::wire::{View, sctp};

/// Bytes quoted of a TCP header: up to and including its checksum, which the kernel refuses to cut off while it is
/// still partial.
pub(super) const TCP: usize = 20;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;
/// Bytes quoted of an SCTP header: including its checksum, as for TCP.
const SCTP: usize = 12;
/// Bytes quoted of an SCTP packet that opens an association: including its initiate tag, without which the client does
/// not take the error for its own (RFC 9260 10, ICMP6; `sctp_err_lookup` in `net/sctp/input.c`).
const INIT: usize = 20;
/// Bytes quoted of any other transport header.
const OTHER: usize = 8;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;

/// The quoted part of a packet: its IP header with options or extension headers, and the start of the transport header.
pub(super) struct Quote {
    /// The sum of its words.
    pub(super) sum: Difference,
    /// Its length in bytes.
    pub(super) length: usize,
    /// Whether the quote has a checksum field to be written.
    has_field: bool,
    /// Offset of that checksum field in the packet.
    at: usize,
    /// The value to write into that field.
    field: [u8; 2],
}

impl Quote {
    /// Cuts everything but the quote off the packet and opens `room` bytes in front of the quote.
    #[inline(always)]
    pub(super) fn keep<P: Packet>(&self, packet: &mut P, link: usize, room: usize) -> Option<()> {
        packet.reshape(link + self.length, link, room)?;
        if self.has_field { packet.write_at(self.at + room, self.field) } else { Some(()) }
    }
}

/// Computes the quote, with at most `most` bytes of options or extension headers.
///
/// The checksum field gets F = -S/2, with S the sum of the rest from the transport header on: completed, the field
/// becomes -(S + F), which is F again.
#[inline(always)]
pub(super) fn quoted<P: Packet, const WORDS: usize>(
    packet: &P,
    view: &View,
    most: usize,
) -> Option<Quote> {
    let (link, behind) = (view.network(packet), view.behind as usize);
    let header: [u32; WORDS] = packet.words(link)?;
    let sum = header.iter().fold(Difference::NONE, |sum, word| sum.add(*word));
    let sum = add(packet, sum, link + 4 * WORDS, behind, most)?;
    // VERIFIER: a flag tells whether there is a field. A comparison of the offset with a special number would keep all
    // paths that lead here apart.
    let (bytes, has_field, field) = match view.protocol {
        Protocol::TCP => (TCP, true, TCP_CHECKSUM),
        Protocol::UDP => (OTHER, true, UDP_CHECKSUM),
        Protocol::SCTP if view.chunk == sctp::INIT => (INIT, false, 0),
        Protocol::SCTP => (SCTP, false, 0),
        _ => (OTHER, false, 0),
    };
    let rest = add(packet, Difference::NONE, behind, behind + bytes, TCP)?;
    let length = behind + bytes - link;
    let at = behind + field;
    if !has_field {
        return Some(Quote { sum: sum.and(rest), length, has_field, at, field: [0; 2] });
    }
    let rest = rest.replace_u16(packet.read_at(at)?, [0; 2]);
    let field = rest.halved();
    let [f0, f1] = field;
    let sum = sum.and(rest).add(u32::from_ne_bytes([f0, f1, 0, 0]));
    Some(Quote { sum, length, has_field, at, field })
}

/// Adds the words from one offset up to another, at most `most` bytes of them.
///
/// VERIFIER: it walks every iteration of the loop, so each iteration adds two words.
#[inline(always)]
fn add<P: Packet>(
    packet: &P,
    mut sum: Difference,
    from: usize,
    to: usize,
    most: usize,
) -> Option<Difference> {
    for pair in 0..most.div_ceil(8) {
        let at = from + 8 * pair;
        if at + 4 >= to {
            break;
        }
        let [a, b, c, d, e, f, g, h] = packet.read_at(at)?;
        sum = sum.add(u32::from_ne_bytes([a, b, c, d])).add(u32::from_ne_bytes([e, f, g, h]));
    }
    // Options may end on an odd number of words, as a transport header may.
    if !(to - from).is_multiple_of(8) {
        sum = sum.add(u32::from_ne_bytes(packet.read_at(to - 4)?));
    }
    Some(sum)
}
