//! Finds the flow of a packet, or decides what becomes of the packet without one.

use super::egress::{masquerades, may_be_ours};
use super::{
    Found, Refusal, Role, Step, accelerated, begin, choose, direct, follow, host, inherited, life,
    ready, short_cut,
};
use crate::config::Settings;
use crate::event::{PassReason, Verdict};
use crate::flow::{Kind, Tuple};
use crate::packet::Packet;
use crate::scratch::{Next, Scratch};
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::{Headers, View};

const NOT_OURS: Step<()> = Err(Verdict::Pass(PassReason::NotOurs));

/// Packets that come in.
#[inline(always)]
pub(super) fn ingress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers, found, exit, choice, begin, next, role, .. } = &mut *scratch;
    let Headers { view, key, .. } = &*headers;
    let is_answer = is_to_translated_source(tables, settings, &key.tuple, view.v4, *role);
    *next = Next::Follow;
    (exit.may_bypass, exit.bypasses) = (false, false);
    if *role == Role::Host && !is_answer {
        return NOT_OURS;
    }
    if !is_answer && short_cut::is_answer(packet, tables, settings, headers, found, exit) {
        exit.bypasses = true;
        return Ok(());
    }
    let Headers { view, key, .. } = &*headers;
    let (ip, port) = (&key.tuple.destination, key.tuple.destination_port);
    let is_near = choose::is_near(settings, ip, port, view.v4);
    // A flow that may be there is asked for first, and most packets need no more.
    let is_asked = is_answer || is_near || settings.may_be_other(ip);
    if is_asked && accelerated::is(packet, tables, settings, (headers, found), (*role, is_answer)) {
        return Err(Verdict::Pass(PassReason::Accelerated));
    }
    let is_there = is_asked && found.look_up(tables, key);
    begin.renews = is_there && found.flow.is_forward();
    let known = is_there && !life::is_expired(tables, settings, found);
    exit.may_bypass =
        settings.has(if packet.is_frame() { Settings::SENDS } else { Settings::SHORT_CUTS });
    if known && follow::is_current(tables, settings, &found.flow, view, is_answer) {
        return Ok(());
    }
    if !is_asked {
        return without_service(packet, tables, scratch);
    }
    choice.frontend = Frontend::new(*ip, port, view.protocol);
    let located = choose::locate(tables, settings, choice, is_near);
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

/// A packet to no frontend: perhaps one of a client that speaks to a backend by its own address.
#[inline(always)]
fn without_service<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let Scratch { headers, found, choice, begin, next, role, .. } = scratch;
    if !is_to_backend(tables, &headers.key.tuple, &headers.view, *role) {
        return NOT_OURS;
    }
    if *role == Role::Edge {
        direct::note_outside(tables, headers, found);
        return NOT_OURS;
    }
    *next = direct::find(packet, tables, headers, found, choice, begin)?;
    Ok(())
}

/// Whether a pod may be speaking straight to a backend, or a client outside begins to. The latter is of interest only for
/// backends that flows of this node go to.
#[inline(always)]
pub(super) fn is_to_backend<T: Tables>(tables: &T, tuple: &Tuple, view: &View, role: Role) -> bool {
    let (ip, port) = (&tuple.destination, tuple.destination_port);
    match role {
        Role::Pod => tables.may_be_backend(ip, port),
        Role::Edge => view.is_syn() && tables.is_in_use(ip, port),
        Role::Host => false,
    }
}

/// Whether a packet may be the answer to a source that we made up: a backend to an address of this node with a port of our
/// range, or to the address that stands for a pod that reaches itself.
#[inline(always)]
pub(super) fn is_to_translated_source<T: Tables>(
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
    v4: bool,
    role: Role,
) -> bool {
    if role == Role::Pod && tuple.destination == begin::hairpin_address(settings, v4) {
        return true;
    }
    settings.is_source_port(tuple.destination_port)
        && settings.may_be_own(&tuple.destination)
        && tables.is_in_use(&tuple.source, tuple.source_port)
}

/// A packet that goes out and is of no flow.
#[inline(always)]
fn without_flow<T: Tables>(
    tables: &T,
    settings: &Settings,
    headers: &Headers,
    found: &mut Found,
    role: Role,
) -> Step<()> {
    if direct::may_be_own(settings, &headers.key.tuple, role) {
        direct::note_own(tables, settings, headers, found);
    }
    NOT_OURS
}

/// Packets that go out.
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
    let may_ask = host::may_ask(packet, settings, tuple, view.v4, role);
    // A server of this host answers from an address that flows go to, and its client's port may be that of a NodePort.
    if may_ask && (role == Role::Host || !tables.is_in_use(&tuple.source, tuple.source_port)) {
        *next = Next::Host;
        return Ok(());
    }
    if !may_ask && !may_be_ours(tables, settings, tuple, role) {
        return without_flow(tables, settings, headers, found, role);
    }
    // A SYN answers nothing.
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
        // The backend may turn out to be behind a pod's device: then its answer comes back this way.
        Kind::MASQUERADE if masquerades(settings, role) => {
            if found.flow.to.source.is_unspecified() { Next::Masquerade } else { Next::Follow }
        }
        _ => return Err(Verdict::Pass(PassReason::Unchanged)),
    };
    Ok(())
}
