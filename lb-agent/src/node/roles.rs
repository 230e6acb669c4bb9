//! The role of each interface: a function of links, addresses, routes and the patterns an operator gave.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::addr::Ip;
use lb_common::config::{Device, address};

use super::hidden::device::Reason;
use super::identity::{Identity, LocalClients};
use super::leads::Leads;
use super::sources::Sources;
use super::view::{Head, Link, LinkKind, View};
use crate::datapath::Role;

/// A device that gets programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Interface index.
    pub index: u32,
    pub name: String,
    pub role: Role,
    /// The entry of the device for the programs.
    pub device: Device,
    /// Where it has addresses of several networks: those that a route may name as a source.
    pub sources: Vec<Ip>,
}

/// Every device that gets programs, by interface index.
pub fn assignments(view: &View, node: &Identity) -> Vec<Assignment> {
    let leads = Leads::of(view, node);
    let role = |link: &Link| {
        let (is_external, is_pod) = (leads.is_external(link), leads.is_pod(link));
        match link.head {
            _ if link.kind == LinkKind::Loopback => link.is_up.then_some(Role::Host),
            Head::Ethernet if is_external => Some(Role::Edge),
            Head::Ethernet if is_pod => Some(Role::Pod),
            Head::Ip if is_external => Some(Role::L3),
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
        *all.entry(Ip::from(own.ip)).or_default() |= bits;
    }
    all
}

/// Devices that are taken for those of pods though they may lead outside.
///
/// Veths with a network of their own of which nobody says what
/// they are, and veths of a bridge that is the node's way out.
pub fn ambiguous(view: &View, node: &Identity) -> Vec<String> {
    let leads = Leads::of(view, node);
    let leads_out = |index: &u32| view.links.get(index).is_some_and(|it| leads.is_external(it));
    let is_ambiguous = |link: &&Link| {
        node.external.is_empty()
            && node.pods.is_empty()
            && !leads.is_external(link)
            && leads.is_pod(link)
            && (leads.has_network(link) && leads.other_end_leads_out(link).is_none()
                || link.controller.as_ref().is_some_and(leads_out))
    };
    view.links.values().filter(is_ambiguous).map(|link| link.name.clone()).collect()
}

/// Devices that packets are routed by and that have no programs, with what that means: for an operator.
///
/// Not bridges of pods, whose ports have programs, nor devices whose
/// packets have no header that the programs read, nor those that are named
/// with the pod at their other end (`hidden`). A netkit in mode l3 counts
/// without an address too: its other end is a pod.
pub fn unserved(view: &View, node: &Identity) -> Vec<String> {
    let served: BTreeSet<u32> =
        assignments(view, node).into_iter().map(|device| device.index).collect();
    let leads = Leads::of(view, node);
    let is_named = |link: &Link| {
        view.hidden.iter().any(|device| device.reason == Reason::NetkitL3(link.index))
    };
    let is_unserved = |link: &&Link| {
        let is_of_a_pod = link.kind == LinkKind::Netkit && link.is_up && link.elsewhere.is_some();
        let is_bridge_of_pods =
            link.kind == LinkKind::Bridge && view.ports(link.index).all(|it| leads.is_pod(it));
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
                "it is a bridge with pods and other ports; use --external-device if it leads \
                 outside"
            }
            _ => "use --external-device if it leads outside",
        };
        format!(
            "interface {}: packets are routed through it, but it has no programs: {why}",
            link.name
        )
    };
    view.links.values().filter(is_unserved).map(problem).collect()
}

/// Devices that would get programs if their packets began with a header that these read.
pub fn unreadable(view: &View, node: &Identity) -> Vec<String> {
    let leads = Leads::of(view, node);
    let is_unreadable = |link: &&Link| match link.head {
        Head::Ethernet => false,
        Head::Ip => !leads.is_external(link) && leads.is_pod(link),
        Head::Other => leads.is_external(link) || leads.is_pod(link),
    };
    view.links.values().filter(is_unreadable).map(|link| link.name.clone()).collect()
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

/// The flags of a device: its role, and the features that the other devices allow.
fn flags(link: &Link, role: Role, view: &View, node: &Identity) -> u32 {
    let is_peer = role == Role::Pod && link.kind == LinkKind::Veth && link.elsewhere.is_some();
    let local = if is_local(link, role, view, node) { Device::LOCAL_CLIENTS } else { 0 };
    let role = match role {
        Role::Pod => Device::POD,
        Role::Edge | Role::L3 => 0,
        Role::Host => Device::HOST,
    };
    local | role | if is_peer { Device::PEER } else { 0 }
}

/// Where packets go that are to be routed: a pod's bridge is its
/// router. A VRF or bond is none, its member keeps its own address.
fn router(link: &Link, role: Role, view: &View) -> Option<[u8; 6]> {
    // Frames at lo are addressed to nobody.
    if role == Role::Host {
        return None;
    }
    let bridge = view.bridge_of(link).filter(|_| role == Role::Pod);
    bridge.unwrap_or(link).hardware
}

fn is_local(link: &Link, role: Role, view: &View, node: &Identity) -> bool {
    match &node.local_clients {
        LocalClients::PodDevices => role == Role::Pod,
        LocalClients::Prefix(prefix) => {
            // A packet that comes in by a port is the bridge's, as netfilter sees it.
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
