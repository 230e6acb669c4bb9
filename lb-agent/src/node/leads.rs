//! Decides whether an interface leads outside, to a pod, or to neither, so that packets of Services do not use it.
//!
//! An interface leads outside if it is up, has a network of its own or a route to a network or through a gateway, and
//! is neither a pod's nor a bridge of pods. So every network card of the machine counts, not only the one with the
//! node's address.

use std::collections::BTreeSet;

use super::identity::Identity;
use super::view::{Address, InterfaceAddresses, Link, LinkKind, NetnsView};

/// Facts about all interfaces of a view, computed once.
#[derive(Debug)]
pub(super) struct Leads<'a> {
    view: &'a NetnsView,
    node: &'a Identity,
    pub(super) addresses: InterfaceAddresses<'a>,
    /// Interfaces with an address and a network on their link, or the address of its other end.
    networks: BTreeSet<u32>,
    /// Interfaces with a default route or an address of the Node object: they certainly lead outside.
    surely: BTreeSet<u32>,
    /// Interfaces that carry the packets of another one: ports of a bond, and those below a VLAN or macvlan.
    carriers: BTreeSet<u32>,
    /// Namespaces with the other end of a veth that certainly leads outside.
    outside: BTreeSet<i32>,
    /// Veths without a network whose other end is in another namespace: the id of that namespace, and the interface
    /// index.
    plain: BTreeSet<(i32, u32)>,
}

impl<'a> Leads<'a> {
    pub(super) fn of(view: &'a NetnsView, node: &'a Identity) -> Self {
        // The other end of a pod's veth may be given as a peer; of any other interface it is a network of one.
        let is_veth =
            |index: &u32| view.links.get(index).is_some_and(|link| link.kind == LinkKind::Veth);
        let is_network = |own: &&Address| {
            own.is_global && (own.has_network() || own.has_peer() && !is_veth(&own.index))
        };
        let networks = view.addresses.iter().filter(is_network).map(|own| own.index).collect();
        let is_nodes = |own: &&Address| node.addresses.contains(&own.ip);
        let nodes = view.addresses.iter().filter(is_nodes).map(|own| own.index);
        let surely = nodes.chain(view.routed.default.iter().copied()).collect();
        let (carriers, outside, plain) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let addresses = InterfaceAddresses::of(view);
        let mut leads = Self { view, node, addresses, networks, surely, carriers, outside, plain };
        leads.carriers = view.links.values().filter_map(|link| leads.carrier(link)).collect();
        // A second pass: whether a veth belongs to a pod depends on the sets above.
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

    /// Reports whether an interface is external.
    pub(super) fn is_external(&self, link: &Link) -> bool {
        let external = &self.node.external;
        if link.kind == LinkKind::Loopback {
            false
        } else if !external.is_empty() {
            // The configuration replaces every guess.
            external.iter().any(|pattern| pattern.matches(&link.name))
        } else {
            self.surely.contains(&link.index)
                || match link.kind {
                    // The switch takes the packets of its tunnel to an interface that leads outside.
                    LinkKind::Tunnel => link.is_up && !self.view.is_port_of_switch(link),
                    LinkKind::Veth if self.is_pod(link) => self.is_uplink(link),
                    LinkKind::Bridge => self.may_be_used(link) && !self.is_of_pods(link),
                    // A veth that is down may turn out to be a pod's.
                    LinkKind::Veth => self.is_used(link) && !self.is_pod(link),
                    LinkKind::Over
                    | LinkKind::Bond
                    | LinkKind::Switch
                    | LinkKind::Tap
                    | LinkKind::Other => self.may_be_used(link) && !self.is_pod(link),
                    LinkKind::Netkit | LinkKind::Loopback => false,
                }
        }
    }

    /// Reports whether an interface is the host's end of a pod's veth, or the tap of a virtual machine behind a bridge of
    /// the node.
    pub(super) fn is_pod(&self, link: &Link) -> bool {
        let pods = &self.node.pods;
        if !pods.is_empty() {
            return pods.iter().any(|pattern| pattern.matches(&link.name));
        }
        link.kind == LinkKind::Veth && self.is_veth_of_pod(link)
            || link.kind == LinkKind::Tap && self.is_guest(link)
    }

    /// Reports whether the other end of a veth is in another namespace.
    ///
    /// A veth that is down and has a network of its own does not count: it may just as well be an uplink that waits for
    /// its carrier.
    fn is_veth_of_pod(&self, veth: &Link) -> bool {
        // The peer is 0 in the first end of a new pair, which the kernel announces before the second exists, and in an
        // end that is being deleted. The latter stays a pod's while a bridge has it.
        let peer_is_gone = veth.peer.is_some_and(|peer| match peer {
            0 => veth.is_up || veth.controller.is_some(),
            peer => !self.view.links.contains_key(&peer),
        });
        let leads_out = || {
            let is_second = self.other_end_leads_out(veth) == Some(true);
            // A port has neither address nor route: its bridge has them.
            if self.view.bridge_of(veth).is_some() {
                is_second
            } else {
                self.surely.contains(&veth.index) || is_second && self.is_used(veth)
            }
        };
        !self.carriers.contains(&veth.index)
            && (veth.elsewhere.is_some() || peer_is_gone)
            && (veth.is_up || !self.has_network(veth))
            && !leads_out()
    }

    /// Reports whether a tap is a port of a bridge that routes for pods and virtual machines of this node, and leads to no
    /// other network.
    ///
    /// Without a range of pods it is not known whether a machine is a pod, so the bridge stays external, which
    /// masquerades.
    fn is_guest(&self, tap: &Link) -> bool {
        let leads_out = |bridge: &Link| {
            self.surely.contains(&bridge.index)
                || self.carriers.contains(&bridge.index)
                || self.view.routed.gateways.contains(&bridge.index)
        };
        !self.node.pod_ranges.is_empty()
            && self.view.bridge_of(tap).is_some_and(|bridge| {
                self.may_be_used(bridge)
                    && !leads_out(bridge)
                    && self.view.ports(bridge.index).all(|port| self.is_inside(port))
            })
    }

    /// Reports whether no other network is behind the port of a bridge.
    pub(super) fn is_inside(&self, port: &Link) -> bool {
        // A container engine adds the one end of a new veth to its bridge before it moves the other end.
        let is_new = || {
            let other = port.peer.and_then(|peer| self.view.links.get(&peer));
            other.is_some_and(|other| {
                !other.is_up && other.controller.is_none() && !self.has_network(other)
            })
        };
        port.kind == LinkKind::Tap
            || port.kind == LinkKind::Veth && (self.is_veth_of_pod(port) || is_new())
    }

    /// Reports whether an interface carries the packets of another one above it.
    pub(super) fn carries(&self, link: &Link) -> bool {
        self.carriers.contains(&link.index)
    }

    /// Reports whether packets of another interface, where programs may translate them, leave by this one as well.
    pub(super) fn is_below(&self, link: &Link) -> bool {
        self.carries(link) || link.controller.is_some()
    }

    /// Reports whether an external interface is over this one.
    pub(super) fn has_upper(&self, link: &Link) -> bool {
        let is_over = |it: &&Link| it.kind == LinkKind::Over && it.elsewhere.is_none();
        let mut over = self.view.links.values().filter(is_over);
        over.any(|it| it.peer == Some(link.index) && self.is_external(it))
    }

    /// Returns the interface that carries the packets of `link`: the one below it, or itself as the port of a bond.
    fn carrier(&self, link: &Link) -> Option<u32> {
        if self.view.controller_of(link).is_some_and(|it| it.kind == LinkKind::Bond) {
            return Some(link.index);
        }
        let is_over = link.kind == LinkKind::Over && link.elsewhere.is_none();
        link.peer.filter(|_| is_over && self.is_used(link))
    }

    /// Reports whether packets are routed through an interface: it is up, and has a network of its own or a route to a
    /// network or gateway.
    pub(super) fn is_used(&self, link: &Link) -> bool {
        let routed = &self.view.routed;
        let is_routed = [&routed.gateways, &routed.default, &routed.networks]
            .iter()
            .any(|devices| devices.contains(&link.index));
        link.is_up && (is_routed || self.has_network(link))
    }

    /// Reports whether packets are routed through an interface, or will be as soon as it is up: without programs its
    /// first packets would meet the bare stack, which resets connections that it does not know.
    fn may_be_used(&self, link: &Link) -> bool {
        self.is_used(link) || !link.is_up && self.has_network(link)
    }

    /// Reports whether an interface has an address and a network on its link, or the address of its other end.
    pub(super) fn has_network(&self, link: &Link) -> bool {
        self.networks.contains(&link.index)
    }

    /// Reports whether a veth leads outside, judged by other veths with an end in the same namespace. `Some(false)` if
    /// they show that it is a pod's, `None` if they show nothing.
    pub(super) fn other_end_leads_out(&self, link: &Link) -> Option<bool> {
        let there = link.elsewhere?;
        let mut plain = self.plain.range((there, 0)..=(there, u32::MAX));
        if self.outside.contains(&there) {
            Some(true)
        } else {
            // The link itself is in the set, too, and proves nothing about itself.
            plain.any(|(_, other)| *other != link.index).then_some(false)
        }
    }

    /// Reports whether a bridge belongs to pods: its ports are pods', or it has none yet.
    fn is_of_pods(&self, bridge: &Link) -> bool {
        let mut ports = self.view.ports(bridge.index).peekable();
        ports.peek().is_none()
            || ports.any(|port| self.is_pod(port))
            || self.networks_of(bridge).any(|own| self.is_pods(own))
    }

    /// Reports whether a veth is a second uplink, as where nodes are containers: packets are routed through it, no
    /// other veth shows that it is a pod's, and its network is not one of pods.
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
        let networks = self.addresses.on(link.index);
        networks.filter(|own| own.is_global && own.has_network())
    }

    fn is_pods(&self, own: &Address) -> bool {
        self.node.pod_ranges.iter().any(|range| range.contains(&own.ip))
    }
}
