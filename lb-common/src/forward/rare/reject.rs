//! Refuses a packet: its client learns at once that no backend answers.
//!
//! The packet becomes an ICMP port unreachable about itself, sent back by the interface by which it came (RFC 792; RFC
//! 4443 3.1). A process of this host also learns the MTU of the route to its backend this way.
//!
//! The transport checksum of the packet may have been left for later (`CHECKSUM_PARTIAL`), and a program can neither
//! see nor undo that: an interface may still write a checksum where the client's was to be. So every answer is made
//! correct both as it is and after completion.

mod quote;

use self::quote::quoted;
use crate::addr::{Port, Protocol};
use crate::checksum::Difference;
use crate::event::{DropReason, PassReason, Return, Verdict};
use crate::flow::{FlowKey, Side, Tuple};
use crate::forward::exit::next_hop;
use crate::forward::{Refusal, Role, Scratch, Step, exit};
use crate::hash;
use crate::packet::Packet;
use crate::tables::{Clock, Node};
use crate::wire::{self, Headers, IPV4, IPV6, View, tcp};

/// Bytes of the ICMP header in front of the quoted packet.
const ICMP: usize = 8;
/// The largest number of bytes of options or extension headers that are quoted.
///
/// An error may be as long as every IPv6 link carries (RFC 4443 2.4), and without the ports after them no socket can be
/// found for it.
const CHAIN: usize = LEAST_MTU - IPV6 - ICMP - IPV6 - quote::TCP;
/// Bytes of IPv4 options at most (RFC 791 3.1: a header has at most 15 words).
const OPTIONS: usize = 40;
/// The least MTU of an IPv6 link (RFC 8200 5).
const LEAST_MTU: usize = 1_280;
/// An ICMP header without its checksum: type, code, and what follows.
type Message = [u8; 6];
/// ICMP destination unreachable, port unreachable (RFC 792).
const PORT_UNREACHABLE_V4: Message = [3, 3, 0, 0, 0, 0];
/// ICMPv6 destination unreachable, port unreachable (RFC 4443 3.1).
const PORT_UNREACHABLE_V6: Message = [1, 4, 0, 0, 0, 0];
/// Hop limit of the packets that this module makes.
pub(super) const HOPS: u8 = 64;

/// Ends the path of a packet that is refused, as `scratch.refusal` says.
#[inline(always)]
pub(in crate::forward) fn part<P: Packet, T: Clock + Node>(
    packet: &mut P,
    tables: &T,
    Scratch { headers, exit, refusal, role, .. }: &mut Scratch,
) -> Step<()> {
    let why = match *refusal {
        Refusal::Pass(reason) => return Err(Verdict::Pass(reason)),
        Refusal::Drop(reason) => return Err(Verdict::Drop(reason)),
        // Some interfaces cannot send answers of XDP (ADR 0012).
        Refusal::Reject(_) if packet.is_at_xdp() => {
            return Err(Verdict::Pass(PassReason::LeftToTc));
        }
        Refusal::Reject(why) => why,
    };
    let FlowKey { tuple, protocol, side, .. } = &headers.key;
    // No error answers such a source (RFC 1122 3.2.2, RFC 4443 2.4). A process of this host may ask its own address.
    if *side == Side::INGRESS && *role != Role::Host && tuple.is_impossible() {
        return Err(Verdict::Pass(PassReason::Martian));
    }
    if next_hop::is_for_another(packet, tables, *side) {
        return Err(Verdict::Pass(PassReason::OtherMachine));
    }
    // Never answer a RST (RFC 9293 3.10.7.1). For an error that quotes no ports its receiver finds no socket. This test
    // precedes the limit, which counts only packets that get an answer.
    let view = &headers.view;
    if view.is_rst() || view.piece == wire::Piece::Later || chain(packet, view) > CHAIN {
        return Err(Verdict::Drop(DropReason::NotRejected));
    }
    // A group of frontends has the limit and not a client, whose address may be forged.
    let bucket = hash::rejections(&tuple.destination, tuple.destination_port, *protocol);
    // An error about the MTU has no limit: only processes of this host cause it, and without it they would send in
    // vain.
    if why != Return::TooBig && !tables.may_reject(bucket) {
        return Err(Verdict::Drop(DropReason::RejectLimited));
    }
    Err(answer(packet, headers, exit.route.mtu, why))
}

/// Turns the packet into its own rejection, or into the error that tells its sender how large a packet may be (RFC
/// 1191, RFC 8201).
#[inline(always)]
fn answer<P: Packet>(packet: &mut P, headers: &Headers, mtu: u32, why: Return) -> Verdict {
    let Headers { view, key: FlowKey { tuple: asked, .. }, .. } = headers;
    let [_, _, high, low] = mtu.to_be_bytes();
    // kube-proxy answers every protocol with the same message, TCP included (contract 3.7).
    let message = match (view.v4, why) {
        (true, Return::TooBig) => [3, 4, 0, 0, high, low],
        (true, _) => PORT_UNREACHABLE_V4,
        (false, Return::TooBig) => [2, 0, 0, 0, high, low],
        (false, _) => PORT_UNREACHABLE_V6,
    };
    // Behind extension headers an unfinished checksum cannot be moved to its place in a reset (ADR 0008).
    let is_reset = view.protocol == Protocol::TCP && view.plain && why != Return::TooBig;
    // VERIFIER: one call for each family: the verifier walks each call with all of its loops.
    let done = match (view.v4, is_reset) {
        (true, _) => error_v4(packet, view, asked, message),
        (false, true) => reset_v6(packet, view, asked),
        (false, false) => error_v6(packet, view, asked, message),
    };
    match done {
        Some(()) => exit::return_packet(packet, why),
        None => Verdict::Drop(DropReason::RewriteFailed),
    }
}

/// Bytes of options or extension headers between the IP header and the transport header.
#[inline(always)]
fn chain<P: Packet>(packet: &P, view: &View) -> usize {
    let fixed = view.network(packet) + if view.v4 { IPV4 } else { IPV6 };
    (view.behind as usize).saturating_sub(fixed)
}

#[inline(never)]
fn error_v4<P: Packet>(
    packet: &mut P,
    view: &View,
    asked: &Tuple,
    [kind, code, m0, m1, m2, m3]: Message,
) -> Option<()> {
    let link = view.network(packet);
    // The sum is taken before the packet is cut and moved: the offsets are those of the packet as it came.
    let quote = quoted::<P, { IPV4 / 4 }>(packet, view, OPTIONS)?;
    let body = quote.sum.add(u32::from_ne_bytes([kind, code, 0, 0]));
    let body = body.add(u32::from_ne_bytes([m0, m1, m2, m3]));
    quote.keep(packet, link, IPV4 + ICMP)?;

    let [l0, l1] = ((IPV4 + ICMP + quote.length) as u16).to_be_bytes();
    let w0 = u32::from_ne_bytes([0x45, 0, l0, l1]);
    // The identification may be 0 in a packet that is never fragmented (RFC 6864 4.1).
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
    packet.write(link + IPV4, [kind, code, c0, c1, m0, m1, m2, m3])
}

#[inline(never)]
fn error_v6<P: Packet>(
    packet: &mut P,
    view: &View,
    asked: &Tuple,
    [kind, code, m0, m1, m2, m3]: Message,
) -> Option<()> {
    let link = view.network(packet);
    let quote = quoted::<P, { IPV6 / 4 }>(packet, view, CHAIN)?;
    let body = quote.sum.add(u32::from_ne_bytes([kind, code, 0, 0]));
    let body = body.add(u32::from_ne_bytes([m0, m1, m2, m3]));
    quote.keep(packet, link, IPV6 + ICMP)?;

    let length = (ICMP + quote.length) as u16;
    let [l0, l1] = length.to_be_bytes();
    packet.write(link, [0x60, 0, 0, 0, l0, l1, Protocol::ICMP6.0, HOPS])?;
    packet.set_words(link + 8, asked.destination.words())?;
    packet.set_words(link + 24, asked.source.words())?;
    let [c0, c1] = pseudo_header(body, asked, length, Protocol::ICMP6).finish();
    packet.write(link + IPV6, [kind, code, c0, c1, m0, m1, m2, m3])
}

/// Answers TCP over IPv6 with a reset (RFC 9293 3.10.7.1).
///
/// Linux acts on an ICMP error only when it sends the SYN again, a second later (ADR 0008).
#[inline(never)]
fn reset_v6<P: Packet>(packet: &mut P, view: &View, asked: &Tuple) -> Option<()> {
    const RST_ACK: u8 = tcp::RST | tcp::ACK;
    const LENGTH: u16 = 20;
    let link = view.network(packet);
    let [sequence, acknowledged]: [u32; 2] = packet.words(link + IPV6 + 4)?;
    // The numbers follow RFC 9293 3.10.7.1. A segment without ACK is taken for a SYN, whose length is one.
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
    // The checksum field is P, the sum of the pseudo-header, as in any segment whose checksum is still to be completed.
    // A reset needs no window, so the window brings the rest of the sum to -2P. As it is, P - 2P + P is nothing; and
    // completed, the field becomes -(P - 2P), which is P again.
    let pseudo = pseudo_header(Difference::NONE, asked, LENGTH, Protocol::TCP).fold();
    let rest = Difference::NONE.add(ports).add(sequence).add(acknowledgement).add(control);
    let [w0, w1] = rest.add(pseudo).add(pseudo).finish();
    let control = control | u32::from_ne_bytes([0, 0, w0, w1]);
    packet.set_words(link + IPV6, [ports, sequence, acknowledgement, control, pseudo])
}

/// Adds the pseudo-header of an answer to `tuple` (RFC 8200 8.1). The order of the two ends does not change the sum.
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
