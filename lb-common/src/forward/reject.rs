//! Tells a client that nobody answers: the packet becomes an ICMP port unreachable about itself
//! (RFC 792; RFC 4443 3.1), sent back by the device it came from.
//!
//! The packet may be one whose transport checksum was left for later (`CHECKSUM_PARTIAL`), and a program
//! can neither see that nor undo it: a device may still write a checksum where the client's was to be.
//! So every answer is made to be right both as it is and completed.

use super::{Step, rewrite};
use crate::addr::{Port, Protocol};
use crate::checksum::Difference;
use crate::event::{DropReason, Turn, Verdict};
use crate::flow::Tuple;
use crate::packet::Packet;
use crate::wire::{self, IPV4, IPV6, View, tcp};

/// Bytes of the ICMP header in front of the quoted packet.
const ICMP: usize = 8;
/// Words quoted of a TCP header: up to and with its checksum, which the kernel refuses to cut off
/// while it is still partial.
const TCP: usize = 5;
/// Where the checksum lies in it.
const TCP_CHECKSUM: usize = 16;
/// Words quoted of an SCTP header: with its checksum, as of TCP.
const SCTP: usize = 3;
/// Words quoted of any other transport header.
const OTHER: usize = 2;
/// Where the checksum lies in a UDP header.
const UDP_CHECKSUM: usize = 6;
/// No internet checksum is quoted.
const NONE: usize = usize::MAX;
/// Hop limit of what we send.
const HOPS: u8 = 64;

/// Turns the packet into its own rejection.
#[inline(never)]
pub(super) fn answer<P: Packet>(
    packet: &mut P,
    asked: &Tuple,
    view: &View,
    why: Turn,
) -> Step<Verdict> {
    // A rejection of a rejection, or of an answer to nobody, helps nobody. Of what has more than the plain headers the quote
    // would have another length.
    if view.is_rst() || !view.plain || view.piece == wire::Piece::Later {
        return Err(Verdict::Drop(DropReason::NotRejected));
    }
    let link = view.network(packet);
    let done = match (view.v4, view.protocol) {
        (true, Protocol::TCP) => unreachable_v4::<P, TCP, TCP_CHECKSUM>(packet, link, asked),
        (true, Protocol::UDP) => unreachable_v4::<P, OTHER, UDP_CHECKSUM>(packet, link, asked),
        (true, Protocol::SCTP) => unreachable_v4::<P, SCTP, NONE>(packet, link, asked),
        (true, _) => unreachable_v4::<P, OTHER, NONE>(packet, link, asked),
        (false, Protocol::TCP) => reset_v6(packet, view, asked),
        (false, Protocol::UDP) => unreachable_v6::<P, OTHER, UDP_CHECKSUM>(packet, link, asked),
        (false, Protocol::SCTP) => unreachable_v6::<P, SCTP, NONE>(packet, link, asked),
        (false, _) => unreachable_v6::<P, OTHER, NONE>(packet, link, asked),
    };
    done.ok_or(Verdict::Drop(DropReason::RewriteFailed))?;
    rewrite::turn_round(packet, why)
}

#[inline(never)]
fn unreachable_v4<P: Packet, const QUOTE: usize, const FIELD: usize>(
    packet: &mut P,
    link: usize,
    asked: &Tuple,
) -> Option<()> {
    let (quote, field) = quoted::<P, { IPV4 / 4 }, QUOTE, FIELD>(packet, link)?;
    let body = quote.add(u32::from_ne_bytes([3, 3, 0, 0]));
    packet.reshape(link + IPV4 + 4 * QUOTE, link, IPV4 + ICMP)?;
    if FIELD != NONE {
        packet.write(link + IPV4 + ICMP + IPV4 + FIELD, field)?;
    }

    let [l0, l1] = ((IPV4 + ICMP + IPV4 + 4 * QUOTE) as u16).to_be_bytes();
    let w0 = u32::from_ne_bytes([0x45, 0, l0, l1]);
    let w1 = u32::from_ne_bytes([0, 0, 0x40, 0]);
    let source = asked.destination.last_word();
    let destination = asked.source.last_word();
    let sum = Difference::NONE
        .add(w0)
        .add(w1)
        .add(u32::from_ne_bytes([HOPS, Protocol::ICMP.0, 0, 0]))
        .add(source)
        .add(destination);
    let [c0, c1] = sum.finish();
    let w2 = u32::from_ne_bytes([HOPS, Protocol::ICMP.0, c0, c1]);
    packet.set_words(link, [w0, w1, w2, source, destination])?;
    let [c0, c1] = body.finish();
    packet.write(link + IPV4, [3, 3, c0, c1, 0, 0, 0, 0])
}

#[inline(never)]
fn unreachable_v6<P: Packet, const QUOTE: usize, const FIELD: usize>(
    packet: &mut P,
    link: usize,
    asked: &Tuple,
) -> Option<()> {
    let (quote, field) = quoted::<P, { IPV6 / 4 }, QUOTE, FIELD>(packet, link)?;
    let body = quote.add(u32::from_ne_bytes([1, 4, 0, 0]));
    packet.reshape(link + IPV6 + 4 * QUOTE, link, IPV6 + ICMP)?;
    if FIELD != NONE {
        packet.write(link + IPV6 + ICMP + IPV6 + FIELD, field)?;
    }

    let length = (ICMP + IPV6 + 4 * QUOTE) as u16;
    let [l0, l1] = length.to_be_bytes();
    packet.write(link, [0x60, 0, 0, 0, l0, l1, Protocol::ICMP6.0, HOPS])?;
    packet.set_words(link + 8, asked.destination.words())?;
    packet.set_words(link + 24, asked.source.words())?;
    let [c0, c1] = pseudo_header(body, asked, length, Protocol::ICMP6).finish();
    packet.write(link + IPV6, [1, 4, c0, c1, 0, 0, 0, 0])
}

/// TCP over IPv6 gets a reset (RFC 9293 3.10.7.1): Linux takes up an ICMP error only when it sends
/// the SYN again, a second later (ADR 0008).
#[inline(never)]
fn reset_v6<P: Packet>(packet: &mut P, view: &View, asked: &Tuple) -> Option<()> {
    const RST_ACK: u8 = tcp::RST | tcp::ACK;
    const LENGTH: u16 = 20;
    let link = view.network(packet);
    let [sequence, acknowledged]: [u32; 2] = packet.words(link + IPV6 + 4)?;
    let (sequence, acknowledgement, flags) = if view.tcp_flags & tcp::ACK == 0 {
        (0, u32::from_be(sequence).wrapping_add(1).to_be(), RST_ACK)
    } else {
        (acknowledged, 0, tcp::RST)
    };
    packet.reshape(link + IPV6 + LENGTH as usize, link, 0)?;
    let [l0, l1] = LENGTH.to_be_bytes();
    packet.write(link, [0x60, 0, 0, 0, l0, l1, Protocol::TCP.0, HOPS])?;
    packet.set_words(link + 8, asked.destination.words())?;
    packet.set_words(link + 24, asked.source.words())?;
    let ports = Port::word(asked.destination_port, asked.source_port);
    let control = u32::from_ne_bytes([0x50, flags, 0, 0]);
    // The checksum field is P, the sum of the pseudo-header, as in any segment to be completed. A window,
    // of which a reset has none, brings the rest to -2P: as it is, P - 2P + P is nothing; and completed,
    // the field becomes -(P - 2P), which is P again.
    let pseudo = pseudo_header(Difference::NONE, asked, LENGTH, Protocol::TCP).fold();
    let rest = Difference::NONE.add(ports).add(sequence).add(acknowledgement).add(control);
    let [w0, w1] = rest.add(pseudo).add(pseudo).finish();
    let control = control | u32::from_ne_bytes([0, 0, w0, w1]);
    packet.set_words(link + IPV6, [ports, sequence, acknowledgement, control, pseudo])
}

/// Adds the pseudo-header of an answer to `tuple` (RFC 8200 8.1). Which end comes first is all one.
#[inline(always)]
const fn pseudo_header(
    sum: Difference,
    tuple: &Tuple,
    length: u16,
    protocol: Protocol,
) -> Difference {
    let [l0, l1] = length.to_be_bytes();
    let sum = sum.words([!0; 4], tuple.source.words());
    let sum = sum.words([!0; 4], tuple.destination.words());
    sum.add(u32::from_ne_bytes([0, 0, l0, l1])).add(u32::from_ne_bytes([0, 0, 0, protocol.0]))
}

/// Sum of the quoted packet, its IP header and the start of what follows, and what to write into its
/// checksum field: F = -S/2, S being the sum of the rest from the transport header on. Completed, the
/// field becomes -(S + F), which is F again.
#[inline(always)]
fn quoted<P: Packet, const HEADER: usize, const QUOTE: usize, const FIELD: usize>(
    packet: &P,
    at: usize,
) -> Option<(Difference, [u8; 2])> {
    let header: [u32; HEADER] = packet.words(at)?;
    let mut quote: [u32; QUOTE] = packet.words(at + HEADER * 4)?;
    if FIELD == NONE {
        return Some((sum_of(&quote, sum_of(&header, Difference::NONE)), [0; 2]));
    }
    let others = if FIELD.is_multiple_of(4) { [0, 0, 0xff, 0xff] } else { [0xff, 0xff, 0, 0] };
    *quote.get_mut(FIELD / 4)? &= u32::from_ne_bytes(others);
    let rest = sum_of(&quote, Difference::NONE);
    let [f0, f1] = rest.halved();
    Some((sum_of(&header, rest).add(u32::from_ne_bytes([f0, f1, 0, 0])), [f0, f1]))
}

#[inline(always)]
fn sum_of<const N: usize>(words: &[u32; N], sum: Difference) -> Difference {
    words.iter().fold(sum, |sum, word| sum.add(*word))
}
