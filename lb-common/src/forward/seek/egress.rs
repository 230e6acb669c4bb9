//! The search for packets that go out: the flow that a packet follows, or whether a process of this host sent it.

use super::shape::Shape;
use super::{GIVE_UP, NOT_OURS, NOT_READY};
use crate::config::Settings;
use crate::event::{PassReason, Verdict};
use crate::flow::{Flow, Kind, Side};
use crate::forward::classify::{self, Class};
use crate::forward::exit;
use crate::forward::life::{self, close, flows, follow};
use crate::forward::rare::host;
use crate::forward::{Found, Next, Role, Scratch, Step, own};
use crate::packet::Packet;
use crate::tables::{Clock, Tables};
use crate::wire::{Headers, Piece, View};

/// Decides about a packet that goes out: which flow it follows, or whether a process of this host sent it.
#[inline(always)]
pub(in crate::forward) fn egress<S: Shape, P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    shape: &mut S,
    scratch: &mut Scratch,
) -> Step<Next> {
    let Some(settings) = tables.settings() else {
        return if S::PLAIN { GIVE_UP } else { NOT_READY };
    };
    if S::PLAIN && exit::has_choice(packet, settings, Side::EGRESS) {
        return GIVE_UP;
    }
    let Scratch { headers, found, role, .. } = scratch;
    let (tuple, view) = (&headers.key.tuple, shape.view(headers));
    let class = classify::egress(packet, tables, settings, tuple, view.v4, shape.role(*role));
    if class == Class::NoService {
        let role = shape.role(*role);
        return without_flow::<S, P, T>(packet, tables, settings, headers, found, view, role);
    }
    let may_ask = class != Class::Backend
        && (S::PLAIN || !is_forwarded_piece(tables, headers, shape.role(*role)));
    // A SYN may need a source or a record, and a FIN or RST is marked in its entry. The whole path does that, and would
    // repeat the lookup of a packet that is given up later (ADR 0023).
    if S::PLAIN && (may_ask || close::begins_or_ends(view)) {
        return GIVE_UP;
    }
    // A server of this host answers from an address that is also a backend of flows, and the port of its client may be
    // a NodePort's number.
    if may_ask && (shape.role(*role) == Role::Host || !classify::is_from_backend(tables, tuple)) {
        return Ok(Next::Host);
    }
    let is_there = shape.look_up(packet, tables, &headers.key, found);
    let (flow, view) = (shape.flow(packet, found), shape.view(headers));
    if S::PLAIN && is_there && !suffices_out(packet, tables, view, flow) {
        return GIVE_UP;
    }
    let known = is_there && (S::PLAIN || is_alive(tables, settings, &headers.view, found));
    // Only a reply entry shows that a server of this host answers a client. Any other packet of a process to a possible
    // frontend is a request, also if its source looks like that of a backend.
    if may_ask && !(known && shape.flow(packet, found).kind == Kind::REPLY) {
        return Ok(Next::Host);
    }
    if !known {
        let (view, role) = (shape.view(headers), shape.role(*role));
        // The masquerade precedes the record of an own connection: a packet that gets another source has answers in a
        // flow, and needs no record (ADR 0035).
        if !S::PLAIN
            && own::may_have_our_source(settings, tuple, view, role)
            && own::has_our_source(packet, tables, settings, headers, found)
        {
            return Ok(Next::Masquerade);
        }
        return without_flow::<S, P, T>(packet, tables, settings, headers, found, view, role);
    }
    let flow = shape.flow(packet, found);
    match flow.kind {
        Kind::REPLY if follow::is_translated_later(packet, flow, shape.role(*role)) => {
            Err(Verdict::Pass(PassReason::Unchanged))
        }
        Kind::REPLY => Ok(Next::Follow),
        // A backend has seen the source of its flow, whatever the settings are now.
        Kind::MASQUERADE
            if !flow.to.source.is_unspecified()
                && classify::may_be_masqueraded(settings, shape.role(*role)) =>
        {
            Ok(Next::Follow)
        }
        // The backend may be behind a pod's interface: then its reply comes back this way.
        Kind::MASQUERADE
            if flow.to.source.is_unspecified()
                && classify::masquerades(settings, shape.role(*role)) =>
        {
            Ok(Next::Masquerade)
        }
        // A pending masquerade stays pending at a pod's interface where the node no longer masquerades towards pods
        // (`ANY_MASQUERADE_AT_PODS` of an earlier run).
        _ => Err(Verdict::Pass(PassReason::Unchanged)),
    }
}

/// Whether a packet that looks like one of this host is a fragment that it forwards: the fragments that IPv6
/// builds again name no interface by which they came in (`ip6_copy_metadata` in `net/ipv6/ip6_output.c`).
#[inline(always)]
fn is_forwarded_piece<T: Tables>(tables: &T, headers: &Headers, role: Role) -> bool {
    headers.view.piece != Piece::Whole && !host::is_of_host(tables, &headers.key.tuple.source, role)
}

/// Whether the found entry is all that an outgoing packet needs (as `suffices` in `seek/ingress`). A masquerade without
/// a service is checked again for each packet ([`own::is_stale`]).
#[inline(always)]
fn suffices_out<P: Packet, T: Clock>(packet: &P, tables: &T, view: &View, flow: &Flow) -> bool {
    flows::is_up_to_date(packet, tables, view, flow) && !own::is_own_masquerade(flow)
}

/// Whether a packet that goes out may follow the entry that was found. A SYN is never a reply, whatever flow it meets.
#[inline(always)]
fn is_alive<T: Tables>(tables: &T, settings: &Settings, view: &View, found: &mut Found) -> bool {
    let begins = found.flow.is_answer() && view.is_syn();
    !begins && !life::is_expired(tables, settings, found) && !own::is_stale(tables, found)
}

/// Handles a packet that goes out and belongs to no flow.
#[inline(always)]
fn without_flow<S: Shape, P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    headers: &Headers,
    found: &mut Found,
    view: &View,
    role: Role,
) -> Step<Next> {
    let tuple = &headers.key.tuple;
    if own::may_be_recorded(settings, tuple, view, role) {
        // The whole path also finds out whether the packet has the source of a masqueraded flow.
        if S::PLAIN {
            return GIVE_UP;
        }
        // During an upgrade the program of another layout may have translated the packet right before: then its answers
        // have a flow (ADR 0035).
        if !packet.is_masqueraded() && own::is_recorded(tables, settings, tuple) {
            own::record_own(tables, settings, headers, found);
        }
    }
    NOT_OURS
}
