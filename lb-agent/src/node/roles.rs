//! Which device is what: a function of links, addresses, routes and the patterns an operator gave.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::{Device, address};

use super::sources::Sources;
use super::{Head, Link, LinkKind, Pattern, Primary, View};
use crate::config::NodePortAddresses;
use crate::datapath::Role;
use crate::program::wire;

/// What is known of the node besides its links.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Addresses of the Node object; empty until it is known.
    pub addresses: Vec<IpAddr>,
    /// The first of each family.
    pub primary: Primary,
    /// Where pods have their addresses: `podCIDRs` of the Node, `clusterCIDR`; empty when nobody says.
    pub pod_ranges: Vec<IpNet>,
    /// `--external-device`: these and no others.
    pub external: Vec<Pattern>,
    /// `--pod-device`: these and no others.
    pub pods: Vec<Pattern>,
    /// Where `NodePorts` are served.
    pub node_ports: NodePortAddresses,
    /// Whose packets are those of this node's pods.
    pub local_clients: LocalClients,
}

/// Devices whose packets count as those of this node's pods (contract 3.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalClients {
    /// Those that lead to pods.
    #[default]
    PodDevices,
    /// This bridge, and its ports.
    Bridge(String),
    /// Those whose names begin so.
    Prefix(String),
}

/// A device that gets programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Which programs.
    pub role: Role,
    /// What they must know of it.
    pub device: Device,
    /// Where it has addresses of several networks: those that a route may name as a source.
    pub sources: Vec<Ip>,
}

/// Every device that gets programs, by interface index.
pub fn assignments(view: &View, node: &Identity) -> Vec<Assignment> {
    let role = |link: &Link| {
        let (is_external, is_pod) = (is_external(link, view, node), is_pod(link, view, node));
        match link.head {
            Head::Ethernet if is_external => Some(Role::Edge),
            Head::Ethernet if is_pod => Some(Role::Pod),
            Head::Ip if is_external => Some(Role::Bare),
            Head::Ethernet | Head::Ip | Head::Other => None,
        }
    };
    let assignment = |link: &Link| {
        let role = role(link)?;
        let sources = Sources { link, view, primary: node.primary };
        let device = device(role, sources, node);
        let (index, name) = (link.index, link.name.clone());
        Some(Assignment { index, name, role, device, sources: sources.chosen() })
    };
    view.links.values().filter_map(assignment).collect()
}

/// The values of `ADDRESSES`: what is ours, and where `NodePorts` are served (contract 3.5).
pub fn addresses(view: &View, node: &Identity) -> BTreeMap<Ip, u32> {
    let mut all: BTreeMap<Ip, u32> = BTreeMap::new();
    for own in &view.addresses {
        let primary = if own.ip.is_ipv4() { node.primary.v4 } else { node.primary.v6 };
        let accepts = node.node_ports.accepts(own.ip, primary);
        let bits = address::NODE | if accepts { address::NODE_PORTS } else { 0 };
        *all.entry(wire(own.ip)).or_default() |= bits;
    }
    all
}

/// Devices that are taken for those of pods though they may lead outside.
///
/// Veths with a network of their own while nobody says where pods have their addresses, and veths of a bridge
/// that is the node's way out.
pub fn doubtful(view: &View, node: &Identity) -> Vec<String> {
    let is_doubtful = |link: &&Link| {
        let leads_out = |index| view.links.get(index).is_some_and(|it| is_external(it, view, node));
        node.external.is_empty()
            && node.pods.is_empty()
            && !is_external(link, view, node)
            && is_pod(link, view, node)
            && (networks(link, view).next().is_some() || link.controller.iter().any(leads_out))
    };
    view.links.values().filter(is_doubtful).map(|link| link.name.clone()).collect()
}

/// Devices that would get programs if their packets began with a header that these read.
pub fn unreadable(view: &View, node: &Identity) -> Vec<String> {
    let is_unreadable = |link: &&Link| match link.head {
        Head::Ethernet => false,
        Head::Ip => !is_external(link, view, node) && is_pod(link, view, node),
        Head::Other => is_external(link, view, node) || is_pod(link, view, node),
    };
    view.links.values().filter(is_unreadable).map(|link| link.name.clone()).collect()
}

/// Addresses of a device by which others are reached at its link.
fn networks<'a>(link: &Link, view: &'a View) -> impl Iterator<Item = &'a super::Address> {
    view.addresses_of(link.index).filter(|own| own.is_global && own.has_network())
}

/// A veth with a network that is none of pods: a second way out, as where nodes are containers themselves.
fn is_uplink(link: &Link, view: &View, node: &Identity) -> bool {
    let knows = |own: &&super::Address| {
        node.pod_ranges.iter().any(|range| range.addr().is_ipv4() == own.ip.is_ipv4())
    };
    let is_pods = |own: &super::Address| node.pod_ranges.iter().any(|it| it.contains(&own.ip));
    let mut networks = networks(link, view).filter(knows).peekable();
    node.pods.is_empty()
        && is_pod(link, view, node)
        && link.controller.is_none()
        && networks.peek().is_some()
        && !networks.any(is_pods)
}

/// A device to the outside: it carries an address of the node or a default route, or is a tunnel or an uplink.
///
/// A bridge that only serves pods has neither; one that carries the node's own address is the node's way out.
fn is_external(link: &Link, view: &View, node: &Identity) -> bool {
    if link.kind == LinkKind::Loopback {
        return false;
    }
    if !node.external.is_empty() {
        return node.external.iter().any(|pattern| pattern.matches(&link.name));
    }
    let carries = |own: &super::Address| node.addresses.contains(&own.ip);
    view.default_routes.contains(&link.index)
        || view.addresses_of(link.index).any(carries)
        || (link.kind == LinkKind::Tunnel && link.is_up)
        || is_uplink(link, view, node)
}

/// The host's side of a pod's veth: its other end is not here.
fn is_pod(link: &Link, view: &View, node: &Identity) -> bool {
    if !node.pods.is_empty() {
        return node.pods.iter().any(|pattern| pattern.matches(&link.name));
    }
    let peer_is_here = link.peer.is_some_and(|peer| view.links.contains_key(&peer));
    link.kind == LinkKind::Veth && (link.peer_is_elsewhere || !peer_is_here)
}

fn device(role: Role, sources: Sources<'_>, node: &Identity) -> Device {
    let Sources { link, view, .. } = sources;
    Device {
        source4: sources.first(true),
        source6: sources.first(false),
        bridge: view.bridge_of(link).map_or(0, |bridge| bridge.index),
        flags: flags(link, role, view, node) | sources.flags(),
        hardware: router(link, role, view).unwrap_or_default(),
        pad: 0,
    }
}

/// What the device is; what may be done with it follows from what else is there.
fn flags(link: &Link, role: Role, view: &View, node: &Identity) -> u32 {
    let is_peer = role == Role::Pod && link.kind == LinkKind::Veth && link.peer_is_elsewhere;
    let local = if is_local(link, role, view, node) { Device::LOCAL_CLIENTS } else { 0 };
    local | if is_peer { Device::PEER } else { 0 }
}

/// Where packets go that are to be routed: a pod's bridge is its router.
fn router(link: &Link, role: Role, view: &View) -> Option<[u8; 6]> {
    let bridge = link.controller.filter(|_| role == Role::Pod).and_then(|it| view.links.get(&it));
    bridge.unwrap_or(link).hardware
}

fn is_local(link: &Link, role: Role, view: &View, node: &Identity) -> bool {
    match &node.local_clients {
        LocalClients::PodDevices => role == Role::Pod,
        LocalClients::Prefix(prefix) => {
            // What comes in by a port is the bridge's, as netfilter sees it.
            view.bridge_of(link).unwrap_or(link).name.starts_with(prefix.as_str())
        }
        LocalClients::Bridge(name) => {
            let controller = link.controller.and_then(|index| view.links.get(&index));
            link.name == *name || controller.is_some_and(|bridge| bridge.name == *name)
        }
    }
}

#[cfg(test)]
mod tests;
