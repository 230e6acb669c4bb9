//! ICMP: errors about translated flows, with the packet that they quote; echo to a ClusterIP; redirects.
//!
//! An error travels in one direction of a flow and quotes a packet of the other. So its flow is found by the reverse of
//! the quoted tuple, and the translation in that entry gives the tuple that the sender of the quoted packet used.

use crate::addr::Ip;
use crate::checksum::Difference;
use crate::config::Settings;
use crate::event::{DropReason, PassReason, Return, Translation, Verdict};
use crate::flow::{Flow, FlowKey, Kind, Side, Tuple};
use crate::forward::exit::{self, next_hop, rewrite};
use crate::forward::life::follow;
use crate::forward::rare::host;
use crate::forward::rare::quoted::{self, CHECKSUM};
use crate::forward::rare::reject::HOPS;
use crate::forward::{Found, Quoted, Refusal, Role, Scratch, Step, choose, ready};
use crate::packet::{Covered, Packet};
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::{Headers, Piece, View};

const NOT_OURS: Step<()> = Err(Verdict::Pass(PassReason::NotOurs));

/// The kind of an ICMP message.
enum Message {
    EchoRequest,
    /// A later fragment, which does not carry the type of its message.
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
    // The types are those of RFC 792 and RFC 4443, and for a redirect over IPv6 of RFC 4861 4.5.
    match (view.v4, kind) {
        (true, 8) | (false, 128) => Message::EchoRequest,
        // Source quench (4) is obsolete (RFC 6633), and an error all the same, as in netfilter (`icmp_is_err`).
        (true, 3 | 4 | 11 | 12) | (false, 1..=4) => Message::Error,
        (true, 5) | (false, 137) => Message::Redirect,
        (_, _) => Message::Other,
    }
}

/// Handles an ICMP message, in either direction.
///
/// Echo requests that go out count only if a process of this host sent them. Where this part does not end the path, the
/// message is to be refused.
#[inline(always)]
pub(in crate::forward) fn part<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let Scratch { headers, quoted, found, exit, refusal, role, .. } = scratch;
    let goes_out = headers.key.side == Side::EGRESS;
    let is_asked = if goes_out {
        let source = &headers.key.tuple.source;
        *role != Role::Pod && packet.is_from_host() && host::is_of_host(tables, source, *role)
    } else {
        *role != Role::Host
    };
    match message(&headers.view) {
        Message::Error => error(packet, tables, scratch),
        Message::Redirect if goes_out => redirect(packet, tables, headers, quoted, found),
        Message::EchoRequest | Message::Piece if is_asked => {
            *refusal = echo(packet, tables, headers, &mut exit.outer)?;
            Ok(())
        }
        Message::EchoRequest | Message::Piece | Message::Redirect | Message::Other => NOT_OURS,
    }
}

/// Translates an error about a flow, which travels in the flow's other direction.
#[inline(never)]
fn error<P: Packet, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> Step<()> {
    let Scratch { headers, quoted, found, exit, role, .. } = scratch;
    let at = headers.view.transport(packet) + quoted::ICMP;
    if quoted::read(packet, headers, at, quoted).is_none() {
        return NOT_OURS;
    }
    // An error goes to the sender of the packet that it quotes. Towards any other host its translation would disclose
    // which flows exist (Linux, nf_conntrack_proto_icmp.c since 5.1).
    let is_senders = headers.key.tuple.destination == quoted.key.tuple.destination;
    if !is_senders || !found.look_up(tables, &quoted.key) {
        return NOT_OURS;
    }
    let flow = &found.flow;
    // A masquerade without a source has let no packet out, so the quoted packet is no answer to it.
    if flow.to.source == Ip::UNSPECIFIED {
        return Err(Verdict::Pass(PassReason::Unchanged));
    }
    let is_to_host = flow.kind == Kind::REPLY && headers.key.side == Side::INGRESS;
    // The outer source becomes the frontend if the backend sent the error, or if the client has a loopback address:
    // `lo` accepts no other source.
    let shows_frontend =
        headers.key.tuple.source == quoted.key.tuple.source || flow.to.destination.is_loopback();
    // The stack expects the frontend where the request left, and a router where its packet came in (`rp_filter`).
    exit.to = None;
    if is_to_host && shows_frontend {
        host::find_delivery(packet, tables, flow, *role, exit)?;
    }
    let leaves = headers.key.side == Side::EGRESS && *role == Role::External;
    if leaves && flow.kind == Kind::REPLY && follow::is_translated_later(packet, flow, *role) {
        return Err(Verdict::Pass(PassReason::Unchanged));
    }
    // A tunnel of this host tells the sender of a packet that is too large for it (`icmp_ndo_send`). The sender is this
    // host by then, so the error comes by `lo`, and must be routed again.
    let comes_back =
        *role == Role::Host && headers.key.side == Side::INGRESS && flow.kind != Kind::REPLY;
    // An error of this host about a reply took the route to the frontend; the stack sends it on by the route to the
    // backend.
    if comes_back || leaves && flow.kind == Kind::FORWARD {
        exit.by_loopback();
    }
    let replaces = leaves && matches!(flow.kind, Kind::REPLY | Kind::MASQUERADE);
    let shows_frontend = shows_frontend || replaces;
    outside(packet, headers, flow, shows_frontend, quoted, &mut exit.outer)
        .and_then(|()| quoted::write(packet, headers, flow, quoted))
        .ok_or(Verdict::Drop(DropReason::RewriteFailed))?;
    Err(exit::leave(packet, &headers.view, flow.kind, exit, Translation::IcmpError))
}

/// Translates the outer addresses: an end of the flow is translated.
///
/// A router on the path keeps its own address towards pods. A client outside gets the frontend as the source, since it
/// may accept nothing from the private address of a router between nodes. A backend of another node gets the masquerade
/// address, as from netfilter (`nf_nat_icmp_reply_translation`): a tunnel or a node may accept nothing from a router
/// outside the cluster.
#[inline(always)]
fn outside<P: Packet>(
    packet: &mut P,
    headers: &Headers,
    flow: &Flow,
    shows_frontend: bool,
    quoted: &Quoted,
    new: &mut Tuple,
) -> Option<()> {
    let Headers { view, key: FlowKey { tuple: old, .. }, .. } = headers;
    *new = *old;
    if shows_frontend {
        new.source = flow.to.source;
    }
    if old.destination == quoted.key.tuple.destination {
        new.destination = flow.to.destination;
    }
    let header = rewrite::header(packet, view);
    let change = rewrite::write_addresses(packet, header, old, new)?;
    if view.v4 {
        return Some(());
    }
    view.checksum(packet, CHECKSUM, change, Covered::PseudoHeader)
}

/// Answers an echo request to a ClusterIP, or rejects it.
///
/// A request to an address of a service range that no Service has is dropped like any other packet to it (contract 13);
/// any other address is not handled. Each fragment of a request is answered with one of the reply: fragments of an
/// unrequested reply would never become whole. Options and extension headers go back as they came.
#[inline(never)]
fn echo<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    headers: &Headers,
    new: &mut Tuple,
) -> Step<Refusal> {
    let settings = ready(tables)?;
    let FlowKey { tuple, side, .. } = &headers.key;
    let to = tuple.destination;
    if !tables.knows(&Frontend::cluster_address(to)) {
        let is_range = settings.services.are_known()
            && choose::in_ranges(settings, &to)
            && tables.address(&to) == 0;
        return Err(if is_range {
            Verdict::Drop(DropReason::UnallocatedAddress)
        } else {
            Verdict::Pass(PassReason::NotOurs)
        });
    }
    // No host has the address of another Service. A fragment between two of them would be answered for ever, by two
    // nodes in turn: it names no type that an answer could change.
    if tuple.is_impossible() || tables.knows(&Frontend::cluster_address(tuple.source)) {
        return Err(Verdict::Pass(PassReason::Martian));
    }
    // The mode nftables of kube-proxy refuses a ping (contract 13).
    if !settings.has(Settings::ANSWER_ECHO) {
        return Ok(Refusal::Reject(Return::UnknownPort));
    }
    if next_hop::is_for_another(packet, tables, *side) {
        return Err(Verdict::Pass(PassReason::OtherMachine));
    }
    tuple.write_reversed(new);
    reply(packet, headers, new).ok_or(Verdict::Drop(DropReason::RewriteFailed))?;
    Err(exit::return_packet(packet, Return::Echo))
}

#[inline(always)]
fn reply<P: Packet>(packet: &mut P, headers: &Headers, new: &Tuple) -> Option<()> {
    let view = &headers.view;
    let mut header = rewrite::header(packet, view);
    header.checksum = begin_hops(packet, header)?;
    rewrite::write_addresses(packet, header, &headers.key.tuple, new)?;
    if view.piece == Piece::Later {
        return Some(());
    }
    let [kind, code] = view.icmp;
    let answer = if view.v4 { 0 } else { 129 };
    view.write(packet, 0, [answer])?;
    // The two addresses change places, so the sum of the pseudo-header stays the same.
    let change = Difference::NONE.replace_u16([kind, code], [answer, code]);
    view.checksum(packet, CHECKSUM, change, Covered::Payload)
}

/// Gives a packet the hops of a new one: the sender of a request may have counted them, as `traceroute -I` does.
/// Returns the IPv4 header checksum.
#[inline(always)]
fn begin_hops<P: Packet>(packet: &mut P, header: rewrite::Header) -> Option<[u8; 2]> {
    let at = header.at + if header.v4 { next_hop::HOPS_V4 } else { next_hop::HOPS_V6 };
    let [hops]: [u8; 1] = packet.read(at)?;
    packet.write(at, [HOPS])?;
    if header.v4 {
        return Some(Difference::NONE.replace_u16([hops, 0], [HOPS, 0]).apply(header.checksum));
    }
    packet.summed(Difference::NONE.replace_u16([0, hops], [0, HOPS]));
    Some(header.checksum)
}

/// The offset of the packet that a redirect is about.
///
/// Over IPv6 it lies in an option, after target and destination and possibly the target's link-layer address (RFC 4861
/// 4.5, 4.6).
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

/// Stops a redirect about a translated flow: its client must not be told to send around this node.
///
/// The entry of a closed or transient flow may have been displaced by now, so a redirect about any backend is stopped.
#[inline(never)]
fn redirect<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    headers: &Headers,
    quoted: &mut Quoted,
    found: &mut Found,
) -> Step<()> {
    let Some(at) = redirected(packet, &headers.view) else { return NOT_OURS };
    if quoted::read(packet, headers, at, quoted).is_none() {
        return NOT_OURS;
    }
    // The key is the reversed tuple: its source is the destination of the packet that the redirect is about.
    let to = &quoted.key.tuple;
    if tables.may_be_backend(&to.source, to.source_port) || found.look_up(tables, &quoted.key) {
        return Err(Verdict::Drop(DropReason::IcmpRedirect));
    }
    NOT_OURS
}
