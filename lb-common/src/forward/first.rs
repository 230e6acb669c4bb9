//! The first packet of a flow: who asks, which backend answers, and how the flow is made.

use super::parts::end;
use super::{Asker, Begin, Role, choose, flows, follow, rewrite};
use crate::addr::Ip;
use crate::config::{Device, Settings, address};
use crate::event::{PassReason, Verdict};
use crate::hash;
use crate::packet::Packet;
use crate::scratch::{Next, Scratch};
use crate::service::{Backend, Flags};
use crate::tables::Tables;

/// Chooses the backend of a packet that begins a flow, into `scratch.choice.backend`, and how to make that, into `scratch.begin`. Where
/// it is refused, `scratch.next` says so.
#[inline(always)]
pub(super) fn part<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    let role = scratch.role;
    let source = scratch.headers.key.tuple.source;
    if is_impossible(scratch) {
        return end(scratch, Verdict::Pass(PassReason::Martian));
    }
    if !follow::may_begin(&scratch.headers.view) {
        return end(scratch, Verdict::Pass(PassReason::NoFlow));
    }
    let now = tables.now();
    let flags = scratch.choice.service.flags;
    let own = flags.has(Flags::EXTERNAL)
        && flags.has(Flags::LOCAL_POLICY)
        && tables.address(&source) & address::NODE != 0;
    let detector = settings.has_detector(scratch.headers.view.v4);
    let pod = detector && is_pod(tables, settings, scratch, (packet.device(), role));
    scratch.choice.asker = Asker {
        client: source,
        source,
        hash: hash::tuple(&scratch.headers.key.tuple, scratch.headers.view.protocol),
        local: u32::from(pod || own),
    };
    if let Err(refusal) = choose::choose(tables, &mut scratch.choice, now) {
        (scratch.next, scratch.refusal) = (Next::Refuse, refusal);
        return true;
    }
    scratch.begin = Begin {
        shown: flows::shown(&scratch.headers.view),
        expected: flows::acknowledged(packet, &scratch.headers.view),
        renews: scratch.begin.renews,
        now,
        port_stays: rewrite::port_stays(packet, &scratch.headers.view),
        masquerade: masquerades(settings, scratch, role, Origin { pod, own, detector }),
        may_turn: role == Role::Pod && !settings.has(Settings::MASQUERADE_KUBE_PROXY),
        source: Ip::UNSPECIFIED,
        device: packet.device(),
    };
    false
}

/// Whether nobody can be there to be answered, or the packet is from where it goes to ("land").
#[inline(always)]
fn is_impossible(scratch: &Scratch) -> bool {
    let tuple = &scratch.headers.key.tuple;
    tuple.source.is_martian() || tuple.source == tuple.destination
}

/// "Detect local" (contract 3.4): by prefix where one is configured, else by the device.
///
/// VERIFIER: this and the next one are functions of their own, or each answer doubles the paths around them.
#[inline(never)]
fn is_pod<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &Scratch,
    (device, role): (u32, Role),
) -> bool {
    if settings.has(Settings::LOCAL_BY_PREFIX) {
        let [local4, local6] = &settings.local;
        let source = &scratch.headers.key.tuple.source;
        return if scratch.headers.view.v4 {
            local4.contains(source)
        } else {
            local6.contains(source)
        };
    }
    if settings.has(Settings::LOCAL_BY_DEVICE) {
        let device = tables.device(device);
        return device.is_some_and(|device| device.flags & Device::LOCAL_CLIENTS != 0);
    }
    role == Role::Pod
}

/// The origin of a packet, as far as it is known.
#[derive(Clone, Copy)]
struct Origin {
    pod: bool,
    own: bool,
    detector: bool,
}

/// Whether the source must become ours, because a reply would not come back this way: one to a client outside would not,
/// nor one to a client behind a pod's interface that has none of the pods' addresses (ADR 0038). With
/// `masquerade: kube-proxy` it is where kube-proxy does it (contract 3.3), and beyond that only where an
/// external policy would have the client reset the answer of a backend elsewhere (ADR 0011).
#[inline(never)]
fn masquerades(settings: &Settings, scratch: &Scratch, role: Role, origin: Origin) -> bool {
    let is_far = scratch.choice.backend.flags & Backend::LOCAL == 0;
    if !settings.has(Settings::MASQUERADE_KUBE_PROXY) {
        let is_pod = || settings.is_pod(&scratch.headers.key.tuple.source);
        return is_far && (role == Role::Edge || is_pod() == Some(false));
    }
    let elsewhere = role == Role::Edge && is_far;
    if scratch.choice.backend.ip == scratch.headers.key.tuple.source {
        return true;
    }
    let flags = scratch.choice.service.flags;
    if !flags.has(Flags::EXTERNAL) {
        return settings.has(Settings::MASQUERADE_ALL) || origin.detector && !origin.pod;
    }
    elsewhere || !flags.has(Flags::LOCAL_POLICY) || !origin.pod && origin.own
}
