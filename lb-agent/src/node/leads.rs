//! Where an interface leads: outside, to a pod, or nowhere that packets of Services take.
//!
//! An interface leads outside if it is up, has a network of its own or a route to one or by a gateway, and is neither a
//! pod's nor a bridge of pods: every card of the machine, not only the one with the node's address.

use std::collections::BTreeSet;

use super::identity::Identity;
use super::view::{Address, Link, LinkKind, View};

/// The facts that are asked of every device of a view, found once.
#[derive(Debug)]
pub(super) struct Leads<'a> {
    view: &'a View,
    node: &'a Identity,
    /// Devices with an address by which others are reached at their link.
    networks: BTreeSet<u32>,
    /// Devices with a default route or an address of the Node object.
    surely: BTreeSet<u32>,
    /// Devices that carry the packets of another one: ports of a bond, and those below a VLAN or macvlan.
    carriers: BTreeSet<u32>,
    /// Namespaces where the other end of a device is that surely leads outside.
    outside: BTreeSet<i32>,
    /// Devices without a network whose other end is elsewhere, and where that is.
    plain: BTreeSet<(i32, u32)>,
}

impl<'a> Leads<'a> {
    pub(super) fn of(view: &'a View, node: &'a Identity) -> Self {
        let is_network = |own: &&Address| own.is_global && own.has_network();
        let networks = view.addresses.iter().filter(is_network).map(|own| own.index).collect();
        let is_nodes = |own: &&Address| node.addresses.contains(&own.ip);
        let nodes = view.addresses.iter().filter(is_nodes).map(|own| own.index);
        let surely = nodes.chain(view.ways.default.iter().copied()).collect();
        let (carriers, outside, plain) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut leads = Self { view, node, networks, surely, carriers, outside, plain };
        leads.carriers = view.links.values().filter_map(|link| leads.carrier(link)).collect();
        for link in view.links.values().filter(|link| link.kind == LinkKind::Veth) {
            let Some(there) = link.elsewhere else { continue };
            if leads.surely.contains(&link.index) {
                leads.outside.insert(there);
            } else if !leads.has_network(link) && !leads.carriers.contains(&link.index) {
                leads.plain.insert((there, link.index));
            }
        }
        leads
    }

    /// A device to the outside.
    pub(super) fn is_external(&self, link: &Link) -> bool {
        let external = &self.node.external;
        if link.kind == LinkKind::Loopback {
            false
        } else if !external.is_empty() {
            external.iter().any(|pattern| pattern.matches(&link.name))
        } else {
            self.surely.contains(&link.index)
                || match link.kind {
                    LinkKind::Tunnel => link.is_up,
                    LinkKind::Veth if self.is_pod(link) => self.is_uplink(link),
                    LinkKind::Bridge => self.is_used(link) && !self.is_of_pods(link),
                    LinkKind::Veth | LinkKind::Over | LinkKind::Bond | LinkKind::Other => {
                        self.is_used(link) && !self.is_pod(link)
                    }
                    LinkKind::Netkit | LinkKind::Loopback => false,
                }
        }
    }

    /// The host's side of a pod's veth: its other end is not here.
    ///
    /// One that is down and has a network of its own is an uplink that waits for its cable as likely as a pod's.
    pub(super) fn is_pod(&self, link: &Link) -> bool {
        let pods = &self.node.pods;
        if !pods.is_empty() {
            return pods.iter().any(|pattern| pattern.matches(&link.name));
        }
        let peer_is_here = link.peer.is_some_and(|peer| self.view.links.contains_key(&peer));
        let leads_out = || {
            let is_second = self.other_end_leads_out(link) == Some(true);
            // A port has no address and no route: its bridge has them.
            if self.view.bridge_of(link).is_some() {
                is_second
            } else {
                self.surely.contains(&link.index) || is_second && self.is_used(link)
            }
        };
        link.kind == LinkKind::Veth
            && !self.carriers.contains(&link.index)
            && (link.elsewhere.is_some() || !peer_is_here)
            && (link.is_up || !self.has_network(link))
            && !leads_out()
    }

    /// The device that carries packets of Services for or by a device: the one below it, or itself as a port.
    fn carrier(&self, link: &Link) -> Option<u32> {
        let controller = link.controller.and_then(|index| self.view.links.get(&index));
        if controller.is_some_and(|it| it.kind == LinkKind::Bond) {
            return Some(link.index);
        }
        let is_over = link.kind == LinkKind::Over && link.elsewhere.is_none();
        link.peer.filter(|_| is_over && self.is_used(link))
    }

    /// Whether packets are routed by a device: it is up, and has a network of its own or is the way to one or to a
    /// gateway.
    pub(super) fn is_used(&self, link: &Link) -> bool {
        let ways = &self.view.ways;
        let is_way = [&ways.gateways, &ways.default, &ways.networks]
            .iter()
            .any(|devices| devices.contains(&link.index));
        link.is_up && (is_way || self.has_network(link))
    }

    /// Whether a device has an address by which others are reached at its link.
    pub(super) fn has_network(&self, link: &Link) -> bool {
        self.networks.contains(&link.index)
    }

    /// Whether a veth leads outside, by its other end: another veth, of which
    /// more is known, ends in the same namespace. False of a pod's veth.
    pub(super) fn other_end_leads_out(&self, link: &Link) -> Option<bool> {
        let there = link.elsewhere?;
        let mut plain = self.plain.range((there, 0)..=(there, u32::MAX));
        if self.outside.contains(&there) {
            Some(true)
        } else {
            plain.any(|(_, other)| *other != link.index).then_some(false)
        }
    }

    /// A bridge whose ports are those of pods, or which has none yet.
    fn is_of_pods(&self, bridge: &Link) -> bool {
        let mut ports = self.view.ports(bridge.index).peekable();
        ports.peek().is_none()
            || ports.any(|port| self.is_pod(port))
            || self.networks_of(bridge).any(|own| self.is_pods(own))
    }

    /// A veth that packets are routed by, and that no other end of another says is a pod's: a second way out, as
    /// where nodes are containers themselves. Its network is none of pods.
    fn is_uplink(&self, link: &Link) -> bool {
        let ranges = &self.node.pod_ranges;
        let knows =
            |own: &&Address| ranges.iter().any(|range| range.addr().is_ipv4() == own.ip.is_ipv4());
        let mut networks = self.networks_of(link).filter(knows).peekable();
        self.node.pods.is_empty()
            && self.view.bridge_of(link).is_none()
            && self.is_used(link)
            && self.other_end_leads_out(link).is_none()
            && networks.peek().is_some()
            && !networks.any(|own| self.is_pods(own))
    }

    fn networks_of(&self, link: &Link) -> impl Iterator<Item = &'a Address> {
        let networks = self.view.addresses_of(link.index);
        networks.filter(|own| own.is_global && own.has_network())
    }

    fn is_pods(&self, own: &Address) -> bool {
        self.node.pod_ranges.iter().any(|range| range.contains(&own.ip))
    }
}
