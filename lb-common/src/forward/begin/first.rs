//! The first packet of a flow: its client, the backend that gets it, and the properties of the flow.

use crate::addr::Ip;
use crate::config::{Device, Settings, address};
use crate::event::{PassReason, Verdict};
use crate::flow::FlowKey;
use crate::forward::life::follow;
use crate::forward::{Asker, Begin, Choice, Next, Role, Scratch, Step, begin, choose, ready};
use crate::hash;
use crate::packet::Packet;
use crate::service::{Backend, Flags};
use crate::tables::Tables;
use crate::wire::Headers;

/// Chooses the backend of a packet that begins a flow, and writes the properties of the flow into `scratch.begin`.
/// Where the packet is refused, `scratch.next` says so.
#[inline(always)]
pub(in crate::forward) fn part<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers, found, choice, begin, next, refusal, role, .. } = scratch;
    let Headers { view, key: FlowKey { tuple, .. }, .. } = &*headers;
    let (role, source) = (*role, &tuple.source);
    // No reply can reach such a source, so its packets must not fill the tables.
    if tuple.is_impossible() {
        return Err(Verdict::Pass(PassReason::Martian));
    }
    if !follow::may_begin(view) {
        return Err(Verdict::Pass(PassReason::NoFlow));
    }
    let flags = choice.service.flags;
    // Only an external policy Local distinguishes the node itself (contract 2.4); other packets need no lookup.
    let own = flags.has(Flags::EXTERNAL)
        && flags.has(Flags::LOCAL_POLICY)
        && tables.address(source) & address::NODE != 0;
    // Without a detector no source is a local pod (contract 3.4).
    let detector = settings.has_detector(view.v4);
    let pod = detector && is_pod(tables, settings, headers, packet.device(), role);
    choice.asker = Asker {
        // The key of affinity is the address before any masquerade (contract 4).
        client: *source,
        source: *source,
        // The hash has no secret of this node: another node, or this one after a loss of its tables, has to find the
        // same slot for the same tuple (ADR 0006).
        hash: hash::tuple(tuple, view.protocol),
        local: u32::from(pod || own),
    };
    if let Err(why) = choose::choose(tables, choice, tables.now()) {
        begin::end_where_passed(tables, begin, found, why);
        (*next, *refusal) = (Next::Refuse, why);
        return Ok(());
    }
    let origin = ClientOrigin { pod, own, detector };
    *begin = Begin {
        masquerade: masquerades(settings, source, choice, role, origin),
        is_of_pod: role == Role::Pod && may_be_pod(settings, source),
        // kube-proxy masquerades a pod that reaches itself (contract 3.2, step 7), so its packet takes the stack then.
        may_hairpin: role == Role::Pod && !settings.has(Settings::MASQUERADE_KUBE_PROXY),
        ..Begin::of(packet, tables, view, begin.renews)
    };
    Ok(())
}

/// Whether a client behind a pod's interface may be a pod, as far as its address shows it. A guest of a pod may get its
/// replies by another interface: they are translated at the first one.
#[inline(always)]
pub(in crate::forward) fn may_be_pod(settings: &Settings, source: &Ip) -> bool {
    settings.node.is_pod(source) != Some(false)
}

/// Detects local pods (contract 3.4): by prefix where one is configured, otherwise by interface.
///
/// VERIFIER: this function and the next are functions of their own: inlined, each answer doubles the paths around them.
#[inline(never)]
fn is_pod<T: Tables>(
    tables: &T,
    settings: &Settings,
    headers: &Headers,
    device: u32,
    role: Role,
) -> bool {
    if settings.has(Settings::LOCAL_BY_PREFIX) {
        let [local4, local6] = &settings.node.local;
        let source = &headers.key.tuple.source;
        return if headers.view.v4 { local4.contains(source) } else { local6.contains(source) };
    }
    if settings.has(Settings::LOCAL_BY_DEVICE) {
        let device = tables.device(device);
        return device.is_some_and(|device| device.flags & Device::LOCAL_CLIENTS != 0);
    }
    // Without kube-proxy's settings interfaces decide: a node knows those of its pods (ADR 0011).
    role == Role::Pod
}

/// The origin of a client's packet: a pod of this node, or the node itself; and whether a detector is configured.
#[derive(Clone, Copy)]
struct ClientOrigin {
    pod: bool,
    own: bool,
    detector: bool,
}

/// Whether the source must be translated, because a reply would not come back this way otherwise.
///
/// That holds for a client outside, and for a client behind a pod's interface whose address is no pod's (ADR 0038).
/// With `masquerade: kube-proxy` it holds where kube-proxy masquerades (contract 3.3), and beyond that only where an
/// external policy would have the client reset the reply of a remote backend (ADR 0011).
#[inline(never)]
fn masquerades(
    settings: &Settings,
    source: &Ip,
    choice: &Choice,
    role: Role,
    origin: ClientOrigin,
) -> bool {
    let Choice { service, backend, .. } = choice;
    let is_far = backend.flags & Backend::LOCAL == 0;
    if !settings.has(Settings::MASQUERADE_KUBE_PROXY) {
        return is_far && (role == Role::External || settings.node.is_pod(source) == Some(false));
    }
    let elsewhere = role == Role::External && is_far;
    // A client that is its own backend is masqueraded (contract 3.2), also on another node (ADR 0011).
    if backend.ip == *source {
        return true;
    }
    let flags = service.flags;
    // For a ClusterIP the configuration alone decides, even where the reply bypasses this node (ADR 0011).
    if !flags.has(Flags::EXTERNAL) {
        return settings.has(Settings::MASQUERADE_ALL) || origin.detector && !origin.pod;
    }
    // With policy Local a local pod keeps its source, and a host process does not (contract 3.3).
    elsewhere || !flags.has(Flags::LOCAL_POLICY) || !origin.pod && origin.own
}
