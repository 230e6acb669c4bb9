//! The class of a packet: decided once from its tuple, the settings and a few filters, for the fast and the whole path.
//!
//! Nothing here looks up a flow or a service. A packet for no Service passes at this cost.

use crate::addr::{Ip, Port};
use crate::config::Settings;
use crate::flow::Tuple;
use crate::forward::Role;
use crate::packet::Packet;
use crate::tables::Filters;
use crate::wire::View;

/// The class of a packet: the first of the variants that applies, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The packet comes in to a translated source: it is the reply of a backend.
    Answer,
    /// The packet goes to an address where frontends may be; at egress only if a process of this host sent it.
    ///
    /// `is_in_ranges`: its address or port lies in a range of ClusterIPs or NodePorts; otherwise one lookup decides.
    Frontend { is_in_ranges: bool },
    /// The packet goes to or comes from an address where backends are.
    Backend,
    /// A packet for no Service.
    NoService,
}

/// The class of a packet that comes in.
#[inline(always)]
pub(super) fn ingress<P: Packet, T: Filters>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
    view: &View,
    role: Role,
) -> Class {
    // An address of this node with such a port may have a frontend as well. The flow decides: a packet that follows
    // none is classified by its frontend afterwards (`seek/ingress::without_entry`).
    if is_to_translated_source(tables, settings, tuple, view.v4, role) {
        return Class::Answer;
    }
    // A packet to a frontend was translated where it left by `lo` (ADR 0027), and must not be translated again here.
    if role == Role::Host {
        return Class::NoService;
    }
    let frontend = frontend(settings, &tuple.destination, tuple.destination_port, view.v4);
    if frontend != Class::NoService {
        return frontend;
    }
    // Frontends precede this class: a packet to a backend that is a frontend itself is one to a frontend (ADR 0013).
    if is_to_backend(tables, tuple, view, role) || may_be_answer(packet, tables, settings, tuple) {
        return Class::Backend;
    }
    Class::NoService
}

/// The class of a packet that goes out.
///
/// All packets of flows, except those of this host, have at one end a backend that some flow of this node goes to; two
/// bytes of a filter distinguish most other packets from these (ADR 0020).
#[inline(always)]
pub(super) fn egress<P: Packet, T: Filters>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
    v4: bool,
    role: Role,
) -> Class {
    // Packets of host processes leave for frontends by an external interface or by `lo`, not by a pod's (ADR 0027).
    if role != Role::Pod && packet.is_from_host() {
        let frontend = frontend(settings, &tuple.destination, tuple.destination_port, v4);
        if frontend != Class::NoService {
            return frontend;
        }
    }
    // Answers of this host to itself leave by `lo` unchanged, and are translated at its ingress (ADR 0027).
    if role == Role::Host {
        return Class::NoService;
    }
    let is_backends = is_from_backend(tables, tuple)
        // With `masquerade: edge` no packet to a pod is masqueraded: a pod's interface saves the byte of the
        // destination (ADR 0020).
        || may_be_masqueraded(settings, role)
            && tables.is_in_use(&tuple.destination, tuple.destination_port);
    if is_backends { Class::Backend } else { Class::NoService }
}

/// The class of a packet by its destination. A destination that is no possible frontend needs no lookup.
#[inline(always)]
pub(super) fn frontend(settings: &Settings, ip: &Ip, port: Port, v4: bool) -> Class {
    // The ranges precede the filter of VIPs: they lie in cache lines that every packet reads, and the bit of an address
    // in one of eight others (ADR 0020).
    let is_in_ranges = is_in_ranges(settings, ip, port, v4);
    if is_in_ranges || settings.services.may_be_vip(ip) {
        Class::Frontend { is_in_ranges }
    } else {
        Class::NoService
    }
}

/// Whether a destination may be a ClusterIP or a `NodePort`.
///
/// Other frontends are found by the filter of their addresses
/// ([`ServiceRanges::may_be_vip`](crate::config::ServiceRanges::may_be_vip)) and one lookup.
#[inline(always)]
pub(super) const fn is_in_ranges(settings: &Settings, ip: &Ip, port: Port, v4: bool) -> bool {
    let ranges = &settings.services;
    ranges.may_be_cluster_ip(ip, v4) || ranges.may_be_node_port(port)
}

/// Whether packets that leave by an interface of this role may get an address of this node as their source. Towards a
/// pod they do only where the masquerade follows kube-proxy.
#[inline(always)]
pub(super) fn masquerades(settings: &Settings, role: Role) -> bool {
    role == Role::External || settings.has(Settings::MASQUERADE_KUBE_PROXY)
}

/// Whether packets that leave by an interface of this role may follow a masquerade, of whatever run.
#[inline(always)]
pub(super) fn may_be_masqueraded(settings: &Settings, role: Role) -> bool {
    role == Role::External || settings.has(Settings::ANY_MASQUERADE_AT_PODS)
}

/// Whether a packet comes from a backend that flows of this node go to, by a filter: false positives are possible.
#[inline(always)]
pub(super) fn is_from_backend<T: Filters>(tables: &T, tuple: &Tuple) -> bool {
    tables.is_in_use(&tuple.source, tuple.source_port)
}

/// Whether a packet may go directly to a backend: any packet of a pod, or the first one of a client outside. The latter
/// matters only for backends that flows of this node go to.
#[inline(always)]
pub(super) fn is_to_backend<T: Filters>(
    tables: &T,
    tuple: &Tuple,
    view: &View,
    role: Role,
) -> bool {
    let (ip, port) = (&tuple.destination, tuple.destination_port);
    match role {
        Role::Pod => tables.may_be_backend(ip, port),
        // Later packets are not examined: each one that another node has translated would pay for it (ADR 0013).
        Role::External => view.is_syn() && tables.is_in_use(ip, port),
        // Flows of host processes never keep the client's port, so a direct connection has another tuple (ADR 0027).
        Role::Host => false,
    }
}

/// Whether a packet that comes in may be the reply of a backend that can bypass the stack (ADR 0021).
#[inline(always)]
pub(super) fn may_be_answer<P: Packet, T: Filters>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
) -> bool {
    settings.has(Settings::BYPASSES)
        && !packet.is_at_xdp()
        && tables.may_be_backend(&tuple.source, tuple.source_port)
}

/// Whether a packet may be the reply to a translated source.
///
/// Its destination is an address of this node with a port of the reserved range, and its source a backend; or its
/// destination is the address that stands for a pod that is its own backend (hairpin).
#[inline(always)]
fn is_to_translated_source<T: Filters>(
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
    v4: bool,
    role: Role,
) -> bool {
    // No route contains the hairpin address, so the pod sends its answers to its gateway, and they come in here.
    if role == Role::Pod && tuple.destination == settings.node.hairpin(v4) {
        return true;
    }
    // The tests stand in the order of their costs: a comparison, a bit of the settings, a byte of a map (ADR 0020).
    settings.node.is_source_port(tuple.destination_port)
        && settings.node.may_be_own(&tuple.destination)
        && is_from_backend(tables, tuple)
}

#[cfg(test)]
mod tests;
