//! Finds the flow of a packet, or decides what becomes of the packet without one.

pub(super) mod accelerated;
pub(super) mod follow;
pub(super) mod found;
pub(super) mod inherited;

use crate::config::Settings;
use crate::event::{PassReason, Verdict};
use crate::flow::Kind;
use crate::forward::classify::{self, Class};
use crate::forward::exit::{ExitTo, bypass};
use crate::forward::rare::direct;
use crate::forward::{Found, Next, Refusal, Role, Scratch, Step, choose, life, ready};
use crate::packet::Packet;
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::Headers;

const NOT_OURS: Step<()> = Err(Verdict::Pass(PassReason::NotOurs));

/// Decides about packets that come in: which flow they follow, or what they begin.
#[inline(always)]
pub(super) fn ingress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers, found, exit, choice, begin, next, role, .. } = &mut *scratch;
    let Headers { view, key, .. } = &*headers;
    let class = classify::ingress(packet, tables, settings, (&key.tuple, view), *role);
    *next = Next::Follow;
    (exit.may_bypass, exit.to) = (false, ExitTo::Stack);
    let is_answer = class == Class::Answer;
    if class == Class::NoService {
        return NOT_OURS;
    }
    if !is_answer && bypass::is_answer(packet, tables, settings, headers, found, exit) {
        exit.to = ExitTo::NextHop;
        return Ok(());
    }
    let Headers { view, key, .. } = &*headers;
    // The lookup of a flow comes first: most packets belong to one, and need no more.
    let is_asked = class != Class::Backend;
    if is_asked && accelerated::is(packet, tables, settings, (headers, found), (class, *role)) {
        return Err(Verdict::Pass(PassReason::Accelerated));
    }
    let is_there = is_asked && found.look_up(tables, key);
    begin.renews = is_there && found.flow.is_forward();
    let known = is_there && !life::is_expired(tables, settings, found);
    exit.may_bypass =
        settings.has(if packet.is_at_xdp() { Settings::REDIRECTS } else { Settings::BYPASSES });
    if known && follow::is_current(tables, settings, &found.flow, view, is_answer) {
        return Ok(());
    }
    if !is_asked {
        return without_service(packet, tables, scratch);
    }
    let (ip, port) = (&key.tuple.destination, key.tuple.destination_port);
    choice.frontend = Frontend::new(*ip, port, view.protocol);
    let is_in_ranges = match class {
        Class::Frontend { is_in_ranges } => is_in_ranges,
        // A translated source may be a frontend as well.
        Class::Answer | Class::Backend | Class::NoService => {
            classify::is_in_ranges(settings, ip, port, view.v4)
        }
    };
    let located = choose::locate(tables, settings, choice, is_in_ranges);
    if located == Err(Refusal::Pass(PassReason::NotOurs)) {
        return without_service(packet, tables, scratch);
    }
    if !known && direct::is_own_answer(tables, settings, headers) {
        return NOT_OURS;
    }
    if located.is_ok()
        && known
        && follow::still_good(tables, settings, view, found, &choice.service)
    {
        return Ok(());
    }
    inherited::leaves(tables, settings, headers)?;
    if let Err(refusal) = located {
        (scratch.next, scratch.refusal) = (Next::Refuse, refusal);
    } else {
        scratch.next = Next::First;
    }
    Ok(())
}

/// Handles a packet to no frontend. Its client may be sending to a backend by the backend's own address.
#[inline(always)]
fn without_service<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let Scratch { headers, found, choice, begin, next, role, .. } = scratch;
    if !classify::is_to_backend(tables, &headers.key.tuple, &headers.view, *role) {
        return NOT_OURS;
    }
    if *role == Role::External {
        direct::record_outside(tables, headers, found);
        return NOT_OURS;
    }
    *next = direct::find(packet, tables, headers, found, choice, begin)?;
    Ok(())
}

/// Handles a packet that goes out and belongs to no flow.
#[inline(always)]
fn without_flow<T: Tables>(
    tables: &T,
    settings: &Settings,
    headers: &Headers,
    found: &mut Found,
    role: Role,
) -> Step<()> {
    if direct::may_be_own(settings, &headers.key.tuple, role) {
        direct::record_own(tables, settings, headers, found);
    }
    NOT_OURS
}

/// Decides about packets that go out: which flow they follow, or whether a process of this host sent them.
#[inline(always)]
pub(super) fn egress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers, found, next, role, .. } = scratch;
    let Headers { view, key, .. } = &*headers;
    let (tuple, role) = (&key.tuple, *role);
    let class = classify::egress(packet, tables, settings, (tuple, view.v4), role);
    if class == Class::NoService {
        return without_flow(tables, settings, headers, found, role);
    }
    let may_ask = class != Class::Backend;
    // A server of this host answers from an address that is also a backend of flows, and the port of its client may be
    // a NodePort's number.
    if may_ask && (role == Role::Host || !classify::is_from_backend(tables, tuple)) {
        *next = Next::Host;
        return Ok(());
    }
    // A SYN is never a reply: it begins a connection, whatever flow has its tuple.
    let known = found.look_up(tables, key)
        && !(found.flow.is_answer() && view.is_syn())
        && !life::is_expired(tables, settings, found);
    let known = known && !direct::is_stale(tables, found);
    if may_ask && !(known && found.flow.kind == Kind::REPLY) {
        *next = Next::Host;
        return Ok(());
    }
    if !known {
        if packet.is_from_host() && direct::has_our_source(tables, settings, headers, found, role) {
            *next = Next::Masquerade;
            return Ok(());
        }
        return without_flow(tables, settings, headers, found, role);
    }
    *next = match found.flow.kind {
        Kind::REPLY => Next::Follow,
        // The backend may be behind a pod's interface: then its reply comes back this way.
        Kind::MASQUERADE if classify::masquerades(settings, role) => {
            if found.flow.to.source.is_unspecified() { Next::Masquerade } else { Next::Follow }
        }
        _ => return Err(Verdict::Pass(PassReason::Unchanged)),
    };
    Ok(())
}
