//! Decides the role of each interface, from links, addresses, routes and the patterns of the operator.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::addr::Ip;
use lb_common::config::{Device, address};

use super::hidden::device::Reason;
use super::identity::{Identity, LocalClients};
use super::leads::Leads;
use super::sources::{SourceAddresses, unnumbered};
use super::view::{Address, Head, Link, LinkKind, NetnsView};
use crate::datapath::InterfaceRole;

/// An interface that gets programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Interface index in this network namespace.
    pub index: u32,
    /// Distinguishes the interface from an earlier one with the same index ([`Link::number`]).
    pub number: u64,
    pub name: String,
    pub role: InterfaceRole,
    /// The entry of the interface in `DEVICES`.
    pub device: Device,
    /// Addresses that a route may name as the source, if the interface has several networks.
    pub sources: Vec<Ip>,
}

/// Returns every interface that gets programs, by index.
pub fn assignments(view: &NetnsView, node: &Identity) -> Vec<Assignment> {
    assignments_among(view, node, |_| true)
}

/// Returns those of [`assignments`] whose index is wanted.
pub(crate) fn assignments_among(
    view: &NetnsView,
    node: &Identity,
    is_wanted: impl Fn(u32) -> bool,
) -> Vec<Assignment> {
    let leads = Leads::of(view, node);
    let (addresses, unnumbered) = (&leads.addresses, unnumbered(view, node.primary));
    let role = |link: &Link| {
        let (is_external, is_pod) = (leads.is_external(link), leads.is_pod(link));
        match link.head {
            // The loopback interface is decided first: it is neither external nor a pod's.
            _ if link.kind == LinkKind::Loopback => link.is_up.then_some(InterfaceRole::Host),
            Head::Ethernet if is_external => Some(InterfaceRole::External),
            Head::Ethernet if is_pod => Some(InterfaceRole::Pod),
            Head::Ip if is_external => Some(InterfaceRole::L3),
            Head::Ethernet | Head::Ip | Head::Other => None,
        }
    };
    let assignment = |link: &Link| {
        let role = role(link)?;
        let sources = SourceAddresses { link, view, addresses, unnumbered };
        let device = device(role, sources, node, &leads);
        let (index, number, name) = (link.index, link.number, link.name.clone());
        Some(Assignment { index, number, name, role, device, sources: sources.chosen() })
    };
    let wanted = view.links.values().filter(|link| is_wanted(link.index));
    wanted.filter_map(assignment).collect()
}

/// Returns the assignments of external interfaces that stay although they have no role now.
///
/// Such an interface has no network and no route, as while a routing daemon or a network manager sets it up again.
/// Without programs the kernel would answer the first segments of open connections by a reset when the routes are back.
/// A port of a bridge or a bond, and an interface below another external one, carry packets that others handle. A
/// tunnel is served while it is up.
pub fn kept(
    view: &NetnsView,
    node: &Identity,
    before: &BTreeMap<u32, Assignment>,
    wanted: &[Assignment],
) -> Vec<Assignment> {
    let lost = before.values().filter(|before| {
        before.role == InterfaceRole::External && !wanted.iter().any(|it| it.index == before.index)
    });
    let mut lost = lost.peekable();
    // With patterns of the operator a role depends on no route: an interface that lost it is to lose its programs as
    // well.
    if !node.external.is_empty() || lost.peek().is_none() {
        return Vec::new();
    }
    let leads = Leads::of(view, node);
    let stays = |before: &&Assignment| {
        let link = view.links.get(&before.index).filter(|link| link.number == before.number);
        link.is_some_and(|link| {
            link.kind != LinkKind::Tunnel && view.bridge_of(link).is_none() && !leads.carries(link)
        })
    };
    let as_now = |before: &Assignment| {
        let flags = before.device.flags & !Device::DOWN;
        let down = view.links.get(&before.index).map_or(0, down);
        Assignment { device: Device { flags: flags | down, ..before.device }, ..before.clone() }
    };
    lost.filter(stays).map(as_now).collect()
}

/// Returns the values of `ADDRESSES`: the node's addresses, and those that serve `NodePorts` (contract 3.5).
pub fn addresses(view: &NetnsView, node: &Identity) -> BTreeMap<Ip, u32> {
    let mut all: BTreeMap<Ip, u32> = BTreeMap::new();
    for own in &view.addresses {
        let serves = node.serves_node_ports(own.ip);
        let bits = address::NODE | if serves { address::NODE_PORTS } else { 0 };
        *all.entry(Ip::from(own.ip)).or_default() |= bits;
    }
    all
}

/// Returns the addresses at which no answer can arrive: their interfaces are all down, or have no carrier while another
/// one works, and no external interface that works sends with one of them.
pub fn stranded(view: &NetnsView, wanted: &[Assignment]) -> BTreeSet<Ip> {
    let works = |index: &u32| view.links.get(index).is_some_and(Link::works);
    let is_external = |device: &&Assignment| {
        matches!(device.role, InterfaceRole::External | InterfaceRole::L3) && works(&device.index)
    };
    let used: BTreeSet<Ip> = wanted
        .iter()
        .filter(is_external)
        .flat_map(|device| {
            let sources = [device.device.source4, device.device.source6];
            sources.into_iter().chain(device.sources.clone())
        })
        .filter(|source| !source.is_unspecified())
        .collect();
    // Without another way out, flows wait for the cable as connections do.
    let has_other = |v4: bool| used.iter().any(|source| source.is_v4() == v4);
    let serves = |own: &&Address| {
        view.links
            .get(&own.index)
            .is_some_and(|link| link.is_up && !(link.lacks_carrier && has_other(own.ip.is_ipv4())))
    };
    let (up, down): (Vec<&Address>, Vec<&Address>) = view.addresses.iter().partition(serves);
    let used: BTreeSet<Ip> = up.into_iter().map(|own| Ip::from(own.ip)).chain(used).collect();
    down.into_iter().map(|own| Ip::from(own.ip)).filter(|ip| !used.contains(ip)).collect()
}

/// Returns the names of interfaces that are treated as pods' although they may lead outside.
///
/// These are veths with a network of their own about which nothing more is known, and veths in a bridge that leads
/// outside.
pub fn ambiguous(view: &NetnsView, node: &Identity) -> Vec<String> {
    let leads = Leads::of(view, node);
    let leads_out = |index: &u32| view.links.get(index).is_some_and(|it| leads.is_external(it));
    let is_ambiguous = |link: &&Link| {
        // A configuration of either kind leaves no role to a guess.
        node.external.is_empty()
            && node.pods.is_empty()
            && !leads.is_external(link)
            && leads.is_pod(link)
            && (leads.has_network(link) && leads.other_end_leads_out(link).is_none()
                || link.controller.as_ref().is_some_and(leads_out))
    };
    view.links.values().filter(is_ambiguous).map(|link| link.name.clone()).collect()
}

/// Returns sentences for operators about interfaces that packets are routed through and that have no programs.
///
/// Left out are bridges of pods, whose ports have programs, and interfaces that are reported with the pod at their
/// other end (`hidden`). A netkit in mode l3 counts even without an address, because its other end is a pod. `served`:
/// the [`assignments`] of the same view.
pub fn unserved(view: &NetnsView, node: &Identity, served: &[Assignment]) -> Vec<String> {
    let served: BTreeSet<u32> = served.iter().map(|device| device.index).collect();
    let leads = Leads::of(view, node);
    let is_named = |link: &Link| {
        view.hidden.iter().any(|device| device.reason == Reason::NetkitL3(link.index))
    };
    let is_unserved = |link: &&Link| {
        let is_of_a_pod = link.kind == LinkKind::Netkit && link.is_up && link.elsewhere.is_some();
        // A port with programs sees the packets of the bridge, as a tunnel beside pods does.
        let is_seen = |port: &Link| {
            leads.is_pod(port) || leads.is_inside(port) || served.contains(&port.index)
        };
        let is_bridge_of_pods =
            link.kind == LinkKind::Bridge && view.ports(link.index).all(is_seen);
        link.kind != LinkKind::Loopback
            && !served.contains(&link.index)
            && !is_bridge_of_pods
            && (leads.is_used(link) || is_of_a_pod)
            && !is_named(link)
    };
    let problem = |link: &Link| {
        let why = match (link.kind, link.head) {
            (LinkKind::Netkit, _) => "it is a netkit in mode l3; use mode l2",
            (_, Head::Other) => "its packets start with neither an Ethernet nor an IP header",
            (LinkKind::Bridge, _) => {
                "it is a bridge with pods and other ports; if it leads outside, name it and all other \
                 external interfaces with --external-device"
            }
            _ => {
                "if it leads outside, name it and all other external interfaces with \
                 --external-device"
            }
        };
        format!(
            "interface {}: packets are routed through it, but it has no programs: {why}",
            link.name
        )
    };
    view.links.values().filter(is_unserved).map(problem).collect()
}

/// Returns the names of interfaces that would get programs if their packets began with a header that the programs
/// parse.
pub fn unreadable(view: &NetnsView, node: &Identity) -> Vec<String> {
    let leads = Leads::of(view, node);
    let is_unreadable = |link: &&Link| match link.head {
        Head::Ethernet => false,
        Head::Ip => !leads.is_external(link) && leads.is_pod(link),
        Head::Other => leads.is_external(link) || leads.is_pod(link),
    };
    view.links.values().filter(is_unreadable).map(|link| link.name.clone()).collect()
}

fn device(
    role: InterfaceRole,
    sources: SourceAddresses<'_>,
    node: &Identity,
    leads: &Leads<'_>,
) -> Device {
    let SourceAddresses { link, view, .. } = sources;
    Device {
        source4: sources.first(true),
        source6: sources.first(false),
        bridge: view.bridge_of(link).map_or(0, |bridge| bridge.index),
        flags: flags(link, role, view, node, leads) | sources.flags(),
        hardware: router(link, role, view).unwrap_or_default(),
        pad: 0,
    }
}

/// Returns [`Device::DOWN`] for an external interface by which nothing can arrive.
const fn down(link: &Link) -> u32 {
    if link.works() { 0 } else { Device::DOWN }
}

/// Returns the flags of an interface: its role, and the features that other interfaces allow.
fn flags(
    link: &Link,
    role: InterfaceRole,
    view: &NetnsView,
    node: &Identity,
    leads: &Leads<'_>,
) -> u32 {
    // Only a veth or netkit with its other end in another namespace can take packets by `bpf_redirect_peer`.
    let is_peer =
        role == InterfaceRole::Pod && link.kind == LinkKind::Veth && link.elsewhere.is_some();
    let local = if is_local(link, role, view, node) { Device::LOCAL_CLIENTS } else { 0 };
    let role = match role {
        InterfaceRole::Pod => Device::POD,
        InterfaceRole::External | InterfaceRole::L3 => {
            let carries = if leads.is_below(link) { Device::CARRIES } else { 0 };
            let has_upper = if leads.has_upper(link) { Device::HAS_UPPER } else { 0 };
            let tunnel = if link.kind == LinkKind::Tunnel { Device::TUNNEL } else { 0 };
            carries | has_upper | tunnel | down(link)
        }
        InterfaceRole::Host => Device::HOST,
    };
    local | role | if is_peer { Device::PEER } else { 0 }
}

/// Returns the link-layer address that packets to be routed are sent to: for a port of a pod's bridge that of the
/// bridge. A member of a VRF or bond keeps its own. Packets of pods behind Open vSwitch are for one of its internal
/// ports, which nothing names.
fn router(link: &Link, role: InterfaceRole, view: &NetnsView) -> Option<[u8; 6]> {
    // Frames on lo have no meaningful link-layer destination.
    if role == InterfaceRole::Host || role == InterfaceRole::Pod && view.is_port_of_switch(link) {
        return None;
    }
    let bridge = view.bridge_of(link).filter(|_| role == InterfaceRole::Pod);
    bridge.unwrap_or(link).hardware
}

fn is_local(link: &Link, role: InterfaceRole, view: &NetnsView, node: &Identity) -> bool {
    match &node.local_clients {
        LocalClients::PodDevices => role == InterfaceRole::Pod,
        LocalClients::Prefix(prefix) => {
            // netfilter sees a packet that arrives on a port as the bridge's.
            view.bridge_of(link).unwrap_or(link).name.starts_with(prefix.as_str())
        }
        LocalClients::Bridge(name) => {
            let controller = view.controller_of(link);
            link.name == *name || controller.is_some_and(|bridge| bridge.name == *name)
        }
    }
}

#[cfg(test)]
mod tests;
