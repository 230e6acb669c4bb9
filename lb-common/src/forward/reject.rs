//! Tells a client that nobody answers: the packet becomes an ICMP port unreachable about itself
//! (RFC 792; RFC 4443 3.1), sent back by the device it came from.

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
/// Words quoted of any other transport header.
const OTHER: usize = 2;
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
    // A rejection of a rejection, or of an answer to nobody, helps nobody.
    if view.is_rst() || !view.plain || view.piece == wire::Piece::Later {
        return Err(Verdict::Drop(DropReason::RejectLimited));
    }
    let done = match (view.v4, view.protocol) {
        (true, Protocol::TCP) => unreachable_v4::<P, TCP>(packet, view.network(packet), asked),
        (true, _) => unreachable_v4::<P, OTHER>(packet, view.network(packet), asked),
        (false, Protocol::TCP) => reset_v6(packet, view, asked),
        (false, _) => unreachable_v6::<P, OTHER>(packet, view.network(packet), asked),
    };
    done.ok_or(Verdict::Drop(DropReason::RewriteFailed))?;
    rewrite::turn_round(packet, why)
}

#[inline(never)]
fn unreachable_v4<P: Packet, const QUOTE: usize>(
    packet: &mut P,
    link: usize,
    asked: &Tuple,
) -> Option<()> {
    let body =
        quoted_sum::<P, { IPV4 / 4 }, QUOTE>(packet, link)?.add(u32::from_ne_bytes([3, 3, 0, 0]));
    packet.reshape(link + IPV4 + 4 * QUOTE, link, IPV4 + ICMP)?;

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
fn unreachable_v6<P: Packet, const QUOTE: usize>(
    packet: &mut P,
    link: usize,
    asked: &Tuple,
) -> Option<()> {
    let body =
        quoted_sum::<P, { IPV6 / 4 }, QUOTE>(packet, link)?.add(u32::from_ne_bytes([1, 4, 0, 0]));
    packet.reshape(link + IPV6 + 4 * QUOTE, link, IPV6 + ICMP)?;

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
    let sum = pseudo_header(Difference::NONE, asked, LENGTH, Protocol::TCP);
    let sum = sum.add(ports).add(sequence).add(acknowledgement).add(control);
    let [c0, c1] = sum.finish();
    let checksum = u32::from_ne_bytes([c0, c1, 0, 0]);
    packet.set_words(link + IPV6, [ports, sequence, acknowledgement, control, checksum])
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

/// Sum of the quoted packet: its IP header and the start of what follows.
#[inline(always)]
fn quoted_sum<P: Packet, const HEADER: usize, const QUOTE: usize>(
    packet: &P,
    at: usize,
) -> Option<Difference> {
    let header: [u32; HEADER] = packet.words(at)?;
    let quote: [u32; QUOTE] = packet.words(at + HEADER * 4)?;
    Some(sum_of(&quote, sum_of(&header, Difference::NONE)))
}

#[inline(always)]
fn sum_of<const N: usize>(words: &[u32; N], sum: Difference) -> Difference {
    words.iter().fold(sum, |sum, word| sum.add(*word))
}
