//! ICMP: errors about translated flows, with the packet they quote; echo to a ClusterIP; redirects.
//!
//! An error travels in one direction of a flow and quotes a packet of the other. So its flow is found
//! by the quoted tuple turned round, and what that entry becomes says what the quoted packet was.

use super::parts::end;
use super::{Refusal, Role, choose, host, next_hop, quoted, rewrite};
use crate::addr::Ip;
use crate::checksum::Difference;
use crate::config::Settings;
use crate::event::{DropReason, PassReason, Sent, Translation, Turn, Verdict};
use crate::flow::{Kind, Side};
use crate::packet::{Covered, Packet};
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::{Piece, View};

const NOT_OURS: Verdict = Verdict::Pass(PassReason::NotOurs);
/// Where the checksum lies in an ICMP header.
pub(super) const CHECKSUM: usize = 2;

/// The kind of an ICMP message.
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

/// ICMP, in either direction. Echo requests that go out count only if they are of this host's own processes. False: it is to
/// be refused.
#[inline(always)]
pub(super) fn part<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let goes_out = scratch.headers.key.side == Side::EGRESS;
    let is_asked = if goes_out {
        scratch.role != Role::Pod && packet.is_from_host()
    } else {
        scratch.role != Role::Host
    };
    match message(&scratch.headers.view) {
        Message::Error => error(packet, tables, scratch),
        Message::Redirect if goes_out => redirect(packet, tables, scratch),
        Message::EchoRequest | Message::Piece if is_asked => echo(packet, tables, scratch),
        Message::EchoRequest | Message::Piece | Message::Redirect | Message::Other => {
            end(scratch, NOT_OURS)
        }
    }
}

/// Translates an error about a flow, on the way of that flow's other direction.
#[inline(never)]
fn error<P: Packet, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> bool {
    let at = scratch.headers.view.transport(packet) + quoted::ICMP;
    if quoted::read(packet, scratch, at).is_none() {
        return end(scratch, NOT_OURS);
    }
    // An error is told to who sent the packet that it quotes. To anyone else its translation would say which flows there are
    // (Linux, nf_conntrack_proto_icmp.c since 5.1).
    let is_senders = scratch.headers.key.tuple.destination == scratch.quoted.key.tuple.destination;
    if !is_senders || !scratch.found.look_up(tables, &scratch.quoted.key) {
        return end(scratch, NOT_OURS);
    }
    if scratch.found.flow.to.source == Ip::UNSPECIFIED {
        return end(scratch, Verdict::Pass(PassReason::Unchanged));
    }
    let is_to_host =
        scratch.found.flow.kind == Kind::REPLY && scratch.headers.key.side == Side::INGRESS;
    // An end of the flow is shown as the frontend; so is a router to the loopback, which takes nothing from anyone else.
    let shows_frontend = scratch.headers.key.tuple.source == scratch.quoted.key.tuple.source
        || scratch.found.flow.to.destination.is_loopback();
    // The stack expects the frontend where the question left, and a router where its packet came in (`rp_filter`).
    let moves = is_to_host && shows_frontend;
    if moves && host::delivery(packet, tables, scratch) {
        return true;
    }
    let done =
        outside(packet, scratch, shows_frontend).and_then(|()| quoted::write(packet, scratch));
    if done.is_none() {
        return end(scratch, Verdict::Drop(DropReason::RewriteFailed));
    }
    if scratch.found.flow.kind == Kind::HAIRPIN {
        return rewrite::turn_round(packet, scratch, Turn::Hairpin);
    }
    if moves && !scratch.exit.stays {
        return host::deliver(packet, scratch, Sent::ToHost);
    }
    end(scratch, Verdict::Translated(Translation::IcmpError))
}

/// Translates the outer addresses: an end of the flow is translated. A router on the way keeps its own towards pods; a
/// client outside is shown the frontend, for it may not take anything from the private address of a router between nodes.
#[inline(always)]
fn outside<P: Packet>(packet: &mut P, scratch: &mut Scratch, shows_frontend: bool) -> Option<()> {
    let old = &scratch.headers.key.tuple;
    let new = &mut scratch.exit.icmp;
    *new = *old;
    let leaves = scratch.headers.key.side == Side::EGRESS && scratch.role == Role::Edge;
    if shows_frontend || leaves && scratch.found.flow.kind == Kind::REPLY {
        new.source = scratch.found.flow.to.source;
    }
    if old.destination == scratch.quoted.key.tuple.destination {
        new.destination = scratch.found.flow.to.destination;
    }
    let view = &scratch.headers.view;
    let header = rewrite::header(packet, view);
    let change = rewrite::write_addresses(packet, header, old, new)?;
    if view.v4 {
        return Some(());
    }
    view.checksum(packet, CHECKSUM, change, Covered::PseudoHeader)
}

/// Answers an echo request to a ClusterIP, or rejects it; to an address of a service range that no Service has it is dropped
/// as anything else is (contract 13); any other address is not ours. Each piece of a request is answered with one of the
/// answer: what nobody had asked would never become whole. Options and extension headers go back as they came.
#[inline(never)]
fn echo<P: Packet, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    let to = scratch.headers.key.tuple.destination;
    if !tables.knows(&Frontend::cluster_address(to)) {
        if settings.has(Settings::RANGES_KNOWN) && choose::in_ranges(settings, &to) {
            return end(scratch, Verdict::Drop(DropReason::UnallocatedAddress));
        }
        return end(scratch, NOT_OURS);
    }
    if !settings.has(Settings::ANSWER_ECHO) {
        scratch.refusal = Refusal::Reject(Turn::UnknownPort);
        return false;
    }
    if next_hop::is_for_another(packet, tables, scratch) {
        return end(scratch, Verdict::Pass(PassReason::OtherMachine));
    }
    scratch.headers.key.tuple.write_reversed(&mut scratch.exit.icmp);
    if reply(packet, scratch).is_none() {
        return end(scratch, Verdict::Drop(DropReason::RewriteFailed));
    }
    rewrite::turn_round(packet, scratch, Turn::Echo)
}

#[inline(always)]
fn reply<P: Packet>(packet: &mut P, scratch: &Scratch) -> Option<()> {
    let view = &scratch.headers.view;
    let header = rewrite::header(packet, view);
    rewrite::write_addresses(packet, header, &scratch.headers.key.tuple, &scratch.exit.icmp)?;
    if view.piece == Piece::Later {
        return Some(());
    }
    let [kind, code] = view.icmp;
    let answer = if view.v4 { 0 } else { 129 };
    view.write(packet, 0, [answer])?;
    let change = Difference::NONE.replace_u16([kind, code], [answer, code]);
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
fn redirect<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> bool {
    let Some(at) = redirected(packet, &scratch.headers.view) else { return end(scratch, NOT_OURS) };
    if quoted::read(packet, scratch, at).is_none() {
        return end(scratch, NOT_OURS);
    }
    let to = &scratch.quoted.key.tuple;
    if tables.may_be_backend(&to.source, to.source_port)
        || scratch.found.look_up(tables, &scratch.quoted.key)
    {
        return end(scratch, Verdict::Drop(DropReason::IcmpRedirect));
    }
    end(scratch, NOT_OURS)
}
