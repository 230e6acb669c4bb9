//! ICMP: errors about translated flows, with the packet they quote; echo to a ClusterIP; redirects.
//!
//! An error travels in one direction of a flow and quotes a packet of the other. So its flow is found
//! by the quoted tuple turned round, and what that half becomes says what the quoted packet was.

use super::rewrite::{Header, TCP_CHECKSUM, UDP_CHECKSUM};
use super::{Refusal, Role, Step, ingress::refuse, pass, rewrite};
use crate::addr::{Ip, Port, Protocol};
use crate::checksum::Difference;
use crate::config::Settings;
use crate::event::{DropReason, PassReason, Translation, Turn, Verdict};
use crate::flow::{Kind, Side};
use crate::packet::{Covered, Packet};
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::{ETHERNET, FRAGMENT, IPV4, IPV6, Piece, View};

const HEADER: usize = 8;
const CHECKSUM: usize = 2;
/// Bytes that matter of a quoted transport header: up to and with the checksum of TCP.
const QUOTE: usize = TCP_CHECKSUM + 2;
/// Bytes of IPv6's extension header of a fragment.
const FRAGMENT_HEADER: usize = 8;

/// A packet that an error quotes.
#[derive(Clone, Copy)]
struct Quoted {
    header: Header,
    /// IPv6: an extension header says that it is the first fragment.
    is_piece: bool,
}

/// What an ICMP message is to us.
enum Message {
    EchoRequest,
    Error,
    Redirect,
    Other,
}

#[inline(always)]
const fn message(view: &View) -> Message {
    let [kind, _] = view.icmp;
    match (view.v4, kind) {
        (true, 8) | (false, 128) => Message::EchoRequest,
        (true, 3 | 4 | 11 | 12) | (false, 1..=4) => Message::Error,
        (true, 5) | (false, 137) => Message::Redirect,
        (_, _) => Message::Other,
    }
}

/// ICMP that comes in.
#[inline(always)]
pub(super) fn ingress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    match message(&scratch.view) {
        Message::Error => error(packet, tables, scratch),
        Message::EchoRequest => echo(packet, tables, settings, scratch),
        Message::Redirect | Message::Other => pass(PassReason::NotOurs),
    }
}

/// ICMP that goes out; of echo requests, those of this host's own processes.
#[inline(always)]
pub(super) fn egress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    role: Role,
) -> Step<Verdict> {
    match message(&scratch.view) {
        Message::Error => error(packet, tables, scratch),
        Message::Redirect => redirect(packet, tables, scratch),
        Message::EchoRequest if role == Role::Edge && packet.is_from_host() => {
            echo(packet, tables, settings, scratch)
        }
        Message::EchoRequest | Message::Other => pass(PassReason::NotOurs),
    }
}

/// Reads the quoted packet: its tuple turned round, the key of the flow it belongs to, into
/// `scratch.twin_key`; one with options, other extension headers than that of a first fragment, or without ports is not
/// told apart. What IPv6 has cut where it was sent is too big for a link further on as a fragment.
#[inline(always)]
fn quoted<P: Packet>(packet: &P, scratch: &mut Scratch) -> Option<Quoted> {
    let view = &scratch.view;
    if !view.plain || view.piece != Piece::Whole {
        return None;
    }
    packet.reach(ETHERNET + IPV6 + HEADER + IPV6 + FRAGMENT_HEADER + QUOTE);
    let at = view.transport(packet) + HEADER;
    let v4 = view.v4;
    let tuple = &mut scratch.twin_key.tuple;
    let (mut checksum, mut is_piece) = ([0; 2], false);
    let [ports] = if v4 {
        let header: [u32; IPV4 / 4] = packet.words(at)?;
        let [w0, w1, w2, source, destination] = header;
        let [version, ..] = w0.to_ne_bytes();
        let [_, _, f0, f1] = w1.to_ne_bytes();
        let [_, protocol, c0, c1] = w2.to_ne_bytes();
        if version != 0x45 || u16::from_be_bytes([f0, f1]) & 0x1fff != 0 {
            return None;
        }
        tuple.source = Ip::v4_word(destination);
        tuple.destination = Ip::v4_word(source);
        scratch.twin_key.protocol = Protocol(protocol);
        checksum = [c0, c1];
        packet.words(at + IPV4)?
    } else {
        let [protocol]: [u8; 1] = packet.read(at + 6)?;
        tuple.source = Ip::from_words(packet.words(at + 24)?);
        tuple.destination = Ip::from_words(packet.words(at + 8)?);
        is_piece = protocol == FRAGMENT;
        if is_piece {
            let [next, _, high, low]: [u8; 4] = packet.read(at + IPV6)?;
            if u16::from_be_bytes([high, low]) & 0xfff8 != 0 {
                return None;
            }
            scratch.twin_key.protocol = Protocol(next);
            packet.words(at + IPV6 + FRAGMENT_HEADER)?
        } else {
            scratch.twin_key.protocol = Protocol(protocol);
            packet.words(at + IPV6)?
        }
    };
    (tuple.destination_port, tuple.source_port) = Port::pair(ports);
    scratch.twin_key.side = scratch.key.side;
    Some(Quoted { header: Header { v4, at, checksum }, is_piece })
}

/// Translates an error about a flow, on the way of that flow's other direction.
#[inline(never)]
fn error<P: Packet, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> Step<Verdict> {
    let Some(inside) = quoted(packet, scratch) else {
        return pass(PassReason::NotOurs);
    };
    if !tables.flow(&scratch.twin_key, &mut scratch.flow) {
        return pass(PassReason::NotOurs);
    }
    if scratch.flow.to.source == Ip::UNSPECIFIED {
        return pass(PassReason::Unchanged);
    }
    let done = outside(packet, scratch).and_then(|()| inner(packet, scratch, inside));
    done.ok_or(Verdict::Drop(DropReason::RewriteFailed))?;
    if scratch.flow.kind == Kind::HAIRPIN {
        let is_hosts = scratch.key.side == Side::EGRESS;
        return rewrite::turn_round(packet, if is_hosts { Turn::Host } else { Turn::Hairpin });
    }
    Ok(Verdict::Translated(Translation::IcmpError))
}

/// Translates the outer addresses: an end of the flow is translated, a router on the way keeps its own.
#[inline(always)]
fn outside<P: Packet>(packet: &mut P, scratch: &mut Scratch) -> Option<()> {
    let old = &scratch.key.tuple;
    let new = &mut scratch.twin.to;
    *new = *old;
    if old.source == scratch.twin_key.tuple.source {
        new.source = scratch.flow.to.source;
    }
    if old.destination == scratch.twin_key.tuple.destination {
        new.destination = scratch.flow.to.destination;
    }
    let view = &scratch.view;
    let header = rewrite::header(packet, view);
    let change = rewrite::write_addresses(packet, header, old, new)?;
    if view.v4 {
        return Some(());
    }
    view.checksum(packet, CHECKSUM, change, Covered::PseudoHeader)
}

/// Translates the quoted packet back to what its sender sent.
#[inline(always)]
fn inner<P: Packet>(packet: &mut P, scratch: &mut Scratch, quoted: Quoted) -> Option<()> {
    let inside = quoted.header;
    scratch.twin_key.tuple.write_reversed(&mut scratch.other.to);
    scratch.flow.to.write_reversed(&mut scratch.twin.to);
    let (old, new) = (&scratch.other.to, &scratch.twin.to);
    let addresses = rewrite::write_addresses(packet, inside, old, new)?;
    let header = if inside.v4 { IPV4 } else { IPV6 };
    let before = Port::word(old.source_port, old.destination_port);
    let after = Port::word(new.source_port, new.destination_port);
    let transport = if quoted.is_piece {
        packet.set_words(inside.at + IPV6 + FRAGMENT_HEADER, [after])?;
        inside.at + IPV6 + FRAGMENT_HEADER
    } else {
        packet.set_words(inside.at + header, [after])?;
        inside.at + header
    };

    let ports = Difference::NONE.word(before, after);
    let both = ports.and(addresses);
    let end = scratch.view.end(packet)?;
    let field = match scratch.twin_key.protocol {
        Protocol::TCP => quoted_checksum(packet, (transport + TCP_CHECKSUM, end), both, false),
        Protocol::UDP => quoted_checksum(packet, (transport + UDP_CHECKSUM, end), both, true),
        _ => Difference::NONE,
    };
    // In IPv4 the quoted header's own checksum changed against its addresses: the sum over it stays.
    let change = if inside.v4 { ports } else { both };
    scratch.view.checksum(packet, CHECKSUM, change.and(field), Covered::Payload)
}

/// Brings the transport checksum of a quoted packet up to date, where the quote is long enough to have one.
/// Returns how that changes the sum over the quote. What lies behind its `end` is no part of the packet.
///
/// VERIFIER: where it lies depends on the protocol, so it is read as from an offset known only at run time.
#[inline(never)]
fn quoted_checksum<P: Packet>(
    packet: &mut P,
    (at, end): (usize, usize),
    change: Difference,
    zero_is_none: bool,
) -> Difference {
    if at + size_of::<u16>() > end {
        return Difference::NONE;
    }
    let old: [u8; 2] = match packet.read_at(at) {
        Some(old) if !zero_is_none || old != [0; 2] => old,
        _ => return Difference::NONE,
    };
    let mut new = change.apply(old);
    if zero_is_none && new == [0; 2] {
        new = [0xff; 2];
    }
    match packet.write_at(at, new) {
        Some(()) => Difference::NONE.half(old, new),
        None => Difference::NONE,
    }
}

/// Answers an echo request to a ClusterIP, or rejects it; any other address is not ours.
#[inline(never)]
fn echo<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    if !tables.knows(&Frontend::cluster_address(scratch.key.tuple.destination)) {
        return pass(PassReason::NotOurs);
    }
    if !settings.has(Settings::ANSWER_ECHO) {
        return refuse(packet, tables, scratch, Refusal::Reject(Turn::UnknownPort));
    }
    if !scratch.view.plain || scratch.view.piece != Piece::Whole {
        return pass(PassReason::UnknownFragment);
    }
    scratch.key.tuple.write_reversed(&mut scratch.twin.to);
    reply(packet, scratch).ok_or(Verdict::Drop(DropReason::RewriteFailed))?;
    rewrite::turn_round(packet, Turn::Echo)
}

#[inline(always)]
fn reply<P: Packet>(packet: &mut P, scratch: &Scratch) -> Option<()> {
    let view = &scratch.view;
    let header = rewrite::header(packet, view);
    let _: Difference =
        rewrite::write_addresses(packet, header, &scratch.key.tuple, &scratch.twin.to)?;
    let [kind, code] = view.icmp;
    let answer = if view.v4 { 0 } else { 129 };
    let at = view.transport(packet);
    packet.write(at, [answer])?;
    let change = Difference::NONE.half([kind, code], [answer, code]);
    view.checksum(packet, CHECKSUM, change, Covered::Payload)
}

/// Stops a redirect about a translated flow: its client must not be told to go around us. The last packet of
/// a flow takes it away before the stack sees that packet, so one about any backend is stopped.
#[inline(never)]
fn redirect<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> Step<Verdict> {
    // ICMPv6 redirects carry the packet in an option; the kernel sends none about off-link targets.
    if quoted(packet, scratch).is_none() {
        return pass(PassReason::NotOurs);
    }
    let to = &scratch.twin_key.tuple;
    if tables.may_be_backend(&to.source, to.source_port)
        || tables.flow(&scratch.twin_key, &mut scratch.flow)
    {
        return Err(Verdict::Drop(DropReason::IcmpRedirect));
    }
    pass(PassReason::NotOurs)
}
