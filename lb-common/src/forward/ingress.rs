//! Packets that come in: a client asks a frontend, or a backend answers one of our own addresses.

use super::{
    Refusal, Role, Step, accelerated, choose, close, direct, flows, fragments, icmp, pass, read,
    reject, rewrite, road, send, short_cut,
};
use crate::addr::Protocol;
use crate::config::{Device, Settings, address};
use crate::event::{DropReason, PassReason, Translation, Turn, Verdict};
use crate::flow::{Kind, Side, Tuple};
use crate::hash;
use crate::packet::Packet;
use crate::scratch::{Asker, Begin, Scratch, Turned};
use crate::service::{Backend, Flags, Frontend};
use crate::tables::Tables;
use crate::wire::{Piece, View};

/// Handles any packet that comes in by a device.
#[inline(always)]
pub fn whole<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    match steps(packet, tables, scratch, role) {
        Ok(verdict) | Err(verdict) => verdict,
    }
}

#[inline(always)]
fn steps<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Step<Verdict> {
    let settings = read(packet, tables, scratch, Side::INGRESS)?;
    if packet.is_frame() && !is_common(&scratch.view) {
        return pass(PassReason::LeftToTc);
    }
    if scratch.view.protocol == Protocol::ICMP || scratch.view.protocol == Protocol::ICMP6 {
        return icmp::ingress(packet, tables, settings, scratch);
    }
    if scratch.view.piece != Piece::Whole {
        fragments::place(packet, tables, settings, scratch)?;
    }
    let asked = &scratch.key.tuple;
    let (ip, port) = (asked.destination, asked.destination_port);
    let is_answer = is_to_translated_source(tables, settings, asked, scratch.view.v4, role);
    if !is_answer && short_cut::is_answer(packet, tables, settings, scratch) {
        flows::touch(tables, &scratch.key, &scratch.flow, &scratch.view);
        rewrite::packet(packet, &scratch.view, &scratch.key.tuple, &scratch.flow.to)?;
        return road::take(packet, tables, scratch);
    }
    let is_near = choose::is_near(settings, &ip, port, scratch.view.v4);
    // A flow that may be there is asked for first, and most packets need no more; what is nobody's, for nothing.
    let is_asked = is_answer || is_near || settings.may_be_other(&ip);
    if is_asked && accelerated::is(packet, tables, settings, scratch, (role, is_answer)) {
        return pass(PassReason::Accelerated);
    }
    let known = is_asked && tables.flow(&scratch.key, &mut scratch.flow);
    let is_current =
        known && flows::is_current(tables, settings, &scratch.flow, &scratch.view, is_answer);
    if !is_current {
        // What is nobody's does not pay for the call, which would say the same.
        let located = if is_asked {
            locate(tables, settings, scratch, is_near)
        } else {
            Err(Refusal::Pass(PassReason::NotOurs))
        };
        if let Err(refusal) = located {
            let is_nobodys = refusal == Refusal::Pass(PassReason::NotOurs);
            if !is_nobodys || !is_to_backend(tables, &scratch.key.tuple, role) {
                return refuse(packet, tables, scratch, refusal);
            }
            if !direct::find(packet, tables, scratch)? {
                flows::begin(tables, settings, scratch).map_err(Verdict::Drop)?;
            }
        } else if !known || !flows::still_good(tables, settings, scratch) {
            return first(packet, tables, settings, scratch, role);
        }
    }
    follow(packet, tables, settings, scratch)
}

/// Finds the service that the packet asks for.
#[inline(always)]
fn locate<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    is_near: bool,
) -> Result<(), Refusal> {
    let asked = &scratch.key.tuple;
    scratch.frontend =
        Frontend::new(asked.destination, asked.destination_port, scratch.view.protocol);
    choose::locate(tables, settings, scratch, is_near)
}

/// What XDP takes: the rest is rare, and all of it is done at tc.
#[inline(always)]
pub(super) fn is_common(view: &View) -> bool {
    let is_known = view.protocol == Protocol::TCP || view.protocol == Protocol::UDP;
    is_known && view.plain && view.piece == Piece::Whole
}

/// Whether a pod may be speaking straight to a backend.
#[inline(always)]
pub(super) fn is_to_backend<T: Tables>(tables: &T, tuple: &Tuple, role: Role) -> bool {
    role == Role::Pod && tables.may_be_backend(&tuple.destination, tuple.destination_port)
}

/// Whether the destination can only be a source that we made up: an own address with a port of our
/// range, or the address that stands for a pod reaching itself.
#[inline(always)]
pub(super) fn is_to_translated_source<T: Tables>(
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
    v4: bool,
    role: Role,
) -> bool {
    if role == Role::Pod && tuple.destination == flows::hairpin_address(settings, v4) {
        return true;
    }
    let port = tuple.destination_port.get();
    (role == Role::Edge || settings.has(Settings::MASQUERADE_KUBE_PROXY))
        && port >= settings.source_port_low.get()
        && port <= settings.source_port_high.get()
        && tables.may_be_source(&tuple.destination)
}

/// A packet of a known flow.
#[inline(always)]
fn follow<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    if packet.is_frame() && accelerated::would_be_lost(settings, scratch) {
        return pass(PassReason::LeftToTc);
    }
    flows::touch(tables, &scratch.key, &scratch.flow, &scratch.view);
    fragments::remember(tables, scratch);
    let is_sent = if packet.is_frame() {
        settings.has(Settings::SENDS) && send::prepare(packet, tables, scratch)
    } else {
        settings.has(Settings::SHORT_CUTS) && short_cut::prepare(packet, tables, scratch)
    };
    rewrite::packet(packet, &scratch.view, &scratch.key.tuple, &scratch.flow.to)?;
    if is_sent {
        return if packet.is_frame() {
            send::out(packet, tables, scratch)
        } else {
            road::take(packet, tables, scratch)
        };
    }
    let kind = scratch.flow.kind;
    close::after(tables, scratch);
    match kind {
        Kind::HAIRPIN => rewrite::turn_round(packet, Turn::Hairpin),
        Kind::UNMASQUERADE => Ok(Verdict::Translated(Translation::Unmasquerade)),
        _ => Ok(Verdict::Translated(Translation::Forward)),
    }
}

/// The first packet of a flow.
#[inline(always)]
fn first<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    role: Role,
) -> Step<Verdict> {
    let now = tables.now();
    let source = scratch.key.tuple.source;
    if is_impossible(scratch) {
        return pass(PassReason::Martian);
    }
    let flags = scratch.service.flags;
    let own = flags.has(Flags::EXTERNAL)
        && flags.has(Flags::LOCAL_POLICY)
        && tables.address(&source) & address::NODE != 0;
    let detector = settings.has_detector(scratch.view.v4);
    let pod = detector && is_pod(tables, settings, scratch, (packet.device(), role));
    scratch.asker = Asker {
        client: source,
        source,
        hash: hash::tuple(&scratch.key.tuple, scratch.view.protocol),
        local: u32::from(pod || own),
    };
    if let Err(refusal) = choose::choose(tables, scratch, now) {
        return refuse(packet, tables, scratch, refusal);
    }
    scratch.begin = Begin {
        state: flows::shown(&scratch.view),
        now,
        port_stays: rewrite::port_stays(packet, &scratch.view),
        masquerade: masquerades(settings, scratch, role, Origin { pod, own, detector }),
        turn: if role == Role::Pod && !settings.has(Settings::MASQUERADE_KUBE_PROXY) {
            Turned::Itself
        } else {
            Turned::Nobody
        },
        device: packet.device(),
    };
    flows::begin(tables, settings, scratch).map_err(Verdict::Drop)?;
    choose::remember(tables, scratch, source, now);
    fragments::remember(tables, scratch);
    rewrite::packet(packet, &scratch.view, &scratch.key.tuple, &scratch.flow.to)?;
    if scratch.flow.kind == Kind::HAIRPIN {
        return rewrite::turn_round(packet, Turn::Hairpin);
    }
    Ok(Verdict::Translated(Translation::NewFlow))
}

/// Whether nobody can be there to be answered, or the packet is from where it goes to ("land").
#[inline(never)]
fn is_impossible(scratch: &Scratch) -> bool {
    let tuple = &scratch.key.tuple;
    tuple.source.is_martian() || tuple.source == tuple.destination
}

/// "Detect local" (contract 3.4): by prefix where one is configured, else by the device.
///
/// VERIFIER: this and what follows are functions of their own, or each answer doubles the paths around them.
#[inline(never)]
fn is_pod<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &Scratch,
    (device, role): (u32, Role),
) -> bool {
    if settings.has(Settings::LOCAL_BY_PREFIX) {
        let [local4, local6] = &settings.local;
        let source = &scratch.key.tuple.source;
        return if scratch.view.v4 { local4.contains(source) } else { local6.contains(source) };
    }
    if settings.has(Settings::LOCAL_BY_DEVICE) {
        let device = tables.device(device);
        return device.is_some_and(|device| device.flags & Device::LOCAL_CLIENTS != 0);
    }
    role == Role::Pod
}

/// What is known of where a packet comes from.
#[derive(Clone, Copy)]
struct Origin {
    pod: bool,
    own: bool,
    detector: bool,
}

/// Whether the source must become ours: for a reply that would not come back this way. With
/// `masquerade: kube-proxy` it is where kube-proxy does it (contract 3.3), and beyond that only where an
/// external policy would have the client reset the answer of a backend elsewhere (ADR 0011).
#[inline(never)]
fn masquerades(settings: &Settings, scratch: &Scratch, role: Role, origin: Origin) -> bool {
    let elsewhere = role == Role::Edge && scratch.backend.flags & Backend::LOCAL == 0;
    if !settings.has(Settings::MASQUERADE_KUBE_PROXY) {
        return elsewhere;
    }
    if scratch.backend.ip == scratch.key.tuple.source {
        return true;
    }
    let flags = scratch.service.flags;
    if !flags.has(Flags::EXTERNAL) {
        return settings.has(Settings::MASQUERADE_ALL) || origin.detector && !origin.pod;
    }
    elsewhere || !flags.has(Flags::LOCAL_POLICY) || !origin.pod && origin.own
}

/// A packet that no backend may have.
#[inline(always)]
pub(super) fn refuse<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &Scratch,
    refusal: Refusal,
) -> Step<Verdict> {
    match refusal {
        Refusal::Pass(reason) => pass(reason),
        Refusal::Drop(reason) => Err(Verdict::Drop(reason)),
        Refusal::Reject(_) if packet.is_frame() => pass(PassReason::LeftToTc),
        Refusal::Reject(_) if !tables.may_reject() => Err(Verdict::Drop(DropReason::RejectLimited)),
        Refusal::Reject(turn) => reject::answer(packet, &scratch.key.tuple, &scratch.view, turn),
    }
}
