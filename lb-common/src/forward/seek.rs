//! Finds the flow of a packet, or decides what becomes of the packet without one.

use super::egress::{masquerades, may_be_ours};
use super::parts::end;
use super::{
    Refusal, Role, accelerated, begin, choose, direct, follow, host, inherited, life, short_cut,
};
use crate::config::Settings;
use crate::event::{PassReason, Verdict};
use crate::flow::{Kind, Tuple};
use crate::packet::Packet;
use crate::scratch::{Next, Scratch};
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::View;

const NOT_OURS: Verdict = Verdict::Pass(PassReason::NotOurs);

/// Packets that come in.
#[inline(always)]
pub(super) fn ingress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    let role = scratch.role;
    let v4 = scratch.headers.view.v4;
    let asked = &scratch.headers.key.tuple;
    let (ip, port) = (asked.destination, asked.destination_port);
    let is_answer = is_to_translated_source(tables, settings, asked, v4, role);
    scratch.next = Next::Follow;
    (scratch.exit.may_bypass, scratch.exit.bypasses) = (false, false);
    if role == Role::Host && !is_answer {
        return end(scratch, NOT_OURS);
    }
    if !is_answer && short_cut::is_answer(packet, tables, settings, scratch) {
        scratch.exit.bypasses = true;
        return false;
    }
    let is_near = choose::is_near(settings, &ip, port, v4);
    // A flow that may be there is asked for first, and most packets need no more.
    let is_asked = is_answer || is_near || settings.may_be_other(&ip);
    if is_asked && accelerated::is(packet, tables, settings, scratch, (role, is_answer)) {
        return end(scratch, Verdict::Pass(PassReason::Accelerated));
    }
    let is_there = is_asked && scratch.found.look_up(tables, &scratch.headers.key);
    let known = is_there && !life::is_expired(tables, settings, scratch);
    scratch.exit.may_bypass =
        settings.has(if packet.is_frame() { Settings::SENDS } else { Settings::SHORT_CUTS });
    let (flow, view) = (&scratch.found.flow, &scratch.headers.view);
    if known && follow::is_current(tables, settings, flow, view, is_answer) {
        return false;
    }
    if !is_asked {
        return without_service(packet, tables, scratch);
    }
    scratch.choice.frontend = Frontend::new(ip, port, scratch.headers.view.protocol);
    let located = choose::locate(tables, settings, &mut scratch.choice, is_near);
    if located == Err(Refusal::Pass(PassReason::NotOurs)) {
        return without_service(packet, tables, scratch);
    }
    if !known && direct::is_own_answer(tables, settings, scratch) {
        return end(scratch, NOT_OURS);
    }
    if located.is_ok() && known && follow::still_good(tables, settings, scratch) {
        return false;
    }
    if inherited::ends(tables, settings, scratch) {
        return true;
    }
    if let Err(refusal) = located {
        (scratch.next, scratch.refusal) = (Next::Refuse, refusal);
    } else {
        scratch.begin.renews = is_there && scratch.found.flow.is_forward();
        scratch.next = Next::First;
    }
    false
}

/// A packet to no frontend: perhaps one of a client that speaks to a backend by its own address.
#[inline(always)]
fn without_service<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> bool {
    if !is_to_backend(tables, &scratch.headers.key.tuple, &scratch.headers.view, scratch.role) {
        return end(scratch, NOT_OURS);
    }
    if scratch.role == Role::Edge {
        direct::note_outside(tables, scratch);
        return end(scratch, NOT_OURS);
    }
    direct::find(packet, tables, scratch)
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
fn without_flow<T: Tables>(tables: &T, settings: &Settings, scratch: &mut Scratch) -> bool {
    if direct::may_be_own(settings, &scratch.headers.key.tuple, scratch.role) {
        direct::note_own(tables, settings, scratch);
    }
    end(scratch, NOT_OURS)
}

/// Packets that go out.
#[inline(always)]
pub(super) fn egress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    let role = scratch.role;
    let tuple = &scratch.headers.key.tuple;
    let may_ask = host::may_ask(packet, settings, tuple, scratch.headers.view.v4, role);
    // A server of this host answers from an address that flows go to, and its client's port may be that of a NodePort.
    if may_ask && (role == Role::Host || !tables.is_in_use(&tuple.source, tuple.source_port)) {
        scratch.next = Next::Host;
        return false;
    }
    if !may_ask && !may_be_ours(tables, settings, tuple, role) {
        return without_flow(tables, settings, scratch);
    }
    // A SYN answers nothing.
    let known = scratch.found.look_up(tables, &scratch.headers.key)
        && !(scratch.found.flow.is_answer() && scratch.headers.view.is_syn())
        && !life::is_expired(tables, settings, scratch);
    let known = known && !direct::is_stale(tables, scratch);
    if may_ask && !(known && scratch.found.flow.kind == Kind::REPLY) {
        scratch.next = Next::Host;
        return false;
    }
    if !known {
        if packet.is_from_host() && direct::has_our_source(tables, settings, scratch) {
            scratch.next = Next::Masquerade;
            return false;
        }
        return without_flow(tables, settings, scratch);
    }
    scratch.next = match scratch.found.flow.kind {
        Kind::REPLY => Next::Follow,
        // The backend may turn out to be behind a pod's device: then its answer comes back this way.
        Kind::MASQUERADE if masquerades(settings, role) => {
            if scratch.found.flow.to.source.is_unspecified() {
                Next::Masquerade
            } else {
                Next::Follow
            }
        }
        _ => return end(scratch, Verdict::Pass(PassReason::Unchanged)),
    };
    false
}
