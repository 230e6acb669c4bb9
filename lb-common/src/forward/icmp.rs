//! ICMP: errors about translated flows, with the packet they quote; echo to a ClusterIP; redirects.
//!
//! An error travels in one direction of a flow and quotes a packet of the other. So its flow is found
//! by the quoted tuple turned round, and what that half becomes says what the quoted packet was.

use super::{Refusal, Role, Step, choose, ingress::refuse, pass, quoted, rewrite};
use crate::addr::Ip;
use crate::checksum::Difference;
use crate::config::Settings;
use crate::event::{DropReason, PassReason, Translation, Turn, Verdict};
use crate::flow::{Kind, Side};
use crate::packet::{Covered, Packet};
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::{Piece, View};

/// Where the checksum lies in an ICMP header.
pub(super) const CHECKSUM: usize = 2;

/// What an ICMP message is to us.
enum Message {
    EchoRequest,
    /// A later fragment, which does not say of what.
    Piece,
    Error,
    Redirect,
    Other,
}

#[inline(always)]
const fn message(view: &View) -> Message {
    let [kind, _] = view.icmp;
    if matches!(view.piece, Piece::Later) {
        return Message::Piece;
    }
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
        Message::EchoRequest | Message::Piece => echo(packet, tables, settings, scratch),
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
        Message::EchoRequest | Message::Piece if role == Role::Edge && packet.is_from_host() => {
            echo(packet, tables, settings, scratch)
        }
        Message::EchoRequest | Message::Piece | Message::Other => pass(PassReason::NotOurs),
    }
}

/// Translates an error about a flow, on the way of that flow's other direction.
#[inline(never)]
fn error<P: Packet, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> Step<Verdict> {
    let at = scratch.view.transport(packet) + quoted::ICMP;
    if quoted::read(packet, scratch, at).is_none() {
        return pass(PassReason::NotOurs);
    }
    if !tables.flow(&scratch.twin_key, &mut scratch.flow) {
        return pass(PassReason::NotOurs);
    }
    if scratch.flow.to.source == Ip::UNSPECIFIED {
        return pass(PassReason::Unchanged);
    }
    let done = outside(packet, scratch).and_then(|()| quoted::write(packet, scratch));
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

/// Answers an echo request to a ClusterIP, or rejects it; to an address of a service range that no Service has it is dropped
/// as anything else is (contract 13); any other address is not ours. Each piece of a request is answered with one of the answer:
/// what nobody had asked would never become whole. Options and extension headers go back as they came.
#[inline(never)]
fn echo<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    let to = scratch.key.tuple.destination;
    if !tables.knows(&Frontend::cluster_address(to)) {
        if settings.has(Settings::RANGES_KNOWN) && choose::in_ranges(settings, &to) {
            return Err(Verdict::Drop(DropReason::UnallocatedAddress));
        }
        return pass(PassReason::NotOurs);
    }
    if !settings.has(Settings::ANSWER_ECHO) {
        return refuse(packet, tables, scratch, Refusal::Reject(Turn::UnknownPort));
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
    if view.piece == Piece::Later {
        return Some(());
    }
    let [kind, code] = view.icmp;
    let answer = if view.v4 { 0 } else { 129 };
    view.write(packet, 0, [answer])?;
    let change = Difference::NONE.half([kind, code], [answer, code]);
    view.checksum(packet, CHECKSUM, change, Covered::Payload)
}

/// Where a redirect has the packet that it is about: over IPv6 in an option, behind target and destination and maybe the
/// target's link-layer address (RFC 4861 4.5, 4.6).
#[inline(always)]
fn redirected<P: Packet>(packet: &P, view: &View) -> Option<usize> {
    const ADDRESSES: usize = 32;
    const OPTION: usize = 8;
    const TARGET: [u8; 2] = [2, 1];
    const REDIRECTED: u8 = 4;
    let at = view.transport(packet) + quoted::ICMP;
    if view.v4 {
        return Some(at);
    }
    let mut at = at + ADDRESSES;
    if packet.read_at(at)? == TARGET {
        at += OPTION;
    }
    let [kind]: [u8; 1] = packet.read_at(at)?;
    (kind == REDIRECTED).then_some(at + OPTION)
}

/// Stops a redirect about a translated flow: its client must not be told to go around us. The last packet of
/// a flow takes it away before the stack sees that packet, so one about any backend is stopped.
#[inline(never)]
fn redirect<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> Step<Verdict> {
    let Some(at) = redirected(packet, &scratch.view) else { return pass(PassReason::NotOurs) };
    if quoted::read(packet, scratch, at).is_none() {
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
