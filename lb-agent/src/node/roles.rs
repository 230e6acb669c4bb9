//! Which device is what: a function of links, addresses, routes and the patterns an operator gave.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lb_common::addr::Ip;
use lb_common::config::{Device, address};

use super::{Link, LinkKind, Pattern, Primary, View};
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
}

/// Every device that gets programs, by interface index.
pub fn assignments(view: &View, node: &Identity) -> Vec<Assignment> {
    let role = |link: &Link| {
        if is_external(link, view, node) {
            Some(Role::Edge)
        } else if is_pod(link, view, node) {
            Some(Role::Pod)
        } else {
            None
        }
    };
    let assignment = |link: &Link| {
        let role = role(link)?;
        let device = device(link, role, view, node);
        Some(Assignment { index: link.index, name: link.name.clone(), role, device })
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

/// A device to the outside: it carries an address of the node or a default route, or is a tunnel.
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
}

/// The host's side of a pod's veth: its other end is not here.
fn is_pod(link: &Link, view: &View, node: &Identity) -> bool {
    if !node.pods.is_empty() {
        return node.pods.iter().any(|pattern| pattern.matches(&link.name));
    }
    let peer_is_here = link.peer.is_some_and(|peer| view.links.contains_key(&peer));
    link.kind == LinkKind::Veth && (link.peer_is_elsewhere || !peer_is_here)
}

fn device(link: &Link, role: Role, view: &View, node: &Identity) -> Device {
    let is_bridge = |index: &u32| {
        view.links.get(index).is_some_and(|controller| controller.kind == LinkKind::Bridge)
    };
    Device {
        source4: source(link, view, node.primary.v4, IpAddr::is_ipv4),
        source6: source(link, view, node.primary.v6, IpAddr::is_ipv6),
        bridge: link.controller.filter(is_bridge).unwrap_or(0),
        flags: if is_local(link, role, view, node) { Device::LOCAL_CLIENTS } else { 0 },
    }
}

fn is_local(link: &Link, role: Role, view: &View, node: &Identity) -> bool {
    match &node.local_clients {
        LocalClients::PodDevices => role == Role::Pod,
        LocalClients::Prefix(prefix) => link.name.starts_with(prefix.as_str()),
        LocalClients::Bridge(name) => {
            let controller = link.controller.and_then(|index| view.links.get(&index));
            link.name == *name || controller.is_some_and(|bridge| bridge.name == *name)
        }
    }
}

/// The address for translated packets that leave by a device: its own global one, the node's, its own of any scope.
fn source(link: &Link, view: &View, primary: Option<IpAddr>, is_family: fn(&IpAddr) -> bool) -> Ip {
    let own = || view.addresses_of(link.index).filter(|own| is_family(&own.ip));
    let usable = |own: &&super::Address| own.is_preferred && !own.ip.is_loopback();
    let global = own().filter(usable).find(|own| own.is_global).map(|own| own.ip);
    let node = primary.filter(is_family);
    let any = || own().find(usable).map(|own| own.ip);
    global.or(node).or_else(any).map_or(Ip::UNSPECIFIED, wire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Address;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn link(index: u32, name: &str, kind: LinkKind) -> Link {
        Link { index, name: name.into(), kind, is_up: true, ..Link::default() }
    }

    fn address(index: u32, text: &str) -> Address {
        let ip = ip(text);
        let is_global = !ip.is_loopback() && !text.starts_with("fe80");
        Address { index, ip, is_global, is_preferred: true }
    }

    /// A node with one uplink, a bridge with a bridged pod, a routed pod, a veth pair of its own, a tunnel.
    fn view() -> View {
        let links = [
            link(1, "lo", LinkKind::Loopback),
            link(2, "eth0", LinkKind::Other),
            link(3, "cni0", LinkKind::Bridge),
            Link {
                peer: Some(2),
                peer_is_elsewhere: true,
                controller: Some(3),
                ..link(4, "veth1", LinkKind::Veth)
            },
            Link { peer: Some(77), ..link(5, "cali1", LinkKind::Veth) },
            Link { peer: Some(7), ..link(6, "left", LinkKind::Veth) },
            Link { peer: Some(6), ..link(7, "right", LinkKind::Veth) },
            link(8, "flannel.1", LinkKind::Tunnel),
            link(9, "eth1", LinkKind::Other),
        ];
        View {
            links: links.into_iter().map(|link| (link.index, link)).collect(),
            addresses: vec![
                address(1, "127.0.0.1"),
                address(2, "192.168.1.5"),
                address(2, "fe80::5"),
                address(3, "10.244.0.1"),
                address(8, "10.244.0.0"),
                address(9, "172.16.0.9"),
            ],
            default_routes: [2].into(),
        }
    }

    fn node() -> Identity {
        Identity {
            addresses: vec![ip("192.168.1.5")],
            primary: Primary { v4: Some(ip("192.168.1.5")), v6: None },
            ..Identity::default()
        }
    }

    fn named(view: &View, node: &Identity) -> Vec<(String, Role)> {
        assignments(view, node).into_iter().map(|it| (it.name, it.role)).collect()
    }

    #[test]
    fn devices_are_known_by_what_they_are() {
        let expected = [
            ("eth0", Role::Edge),
            ("veth1", Role::Pod),
            ("cali1", Role::Pod),
            ("flannel.1", Role::Edge),
        ];
        let expected: Vec<_> = expected.map(|(name, role)| (name.to_owned(), role)).into();
        assert_eq!(named(&view(), &node()), expected);
    }

    #[test]
    fn patterns_replace_discovery_for_their_role() {
        let patterns = Identity {
            external: vec!["eth*".parse().unwrap()],
            pods: vec!["left".parse().unwrap()],
            ..node()
        };
        let expected = [("eth0", Role::Edge), ("left", Role::Pod), ("eth1", Role::Edge)];
        let expected: Vec<_> = expected.map(|(name, role)| (name.to_owned(), role)).into();
        assert_eq!(named(&view(), &patterns), expected);
    }

    #[test]
    fn sources_prefer_the_device_then_the_node_then_any() {
        let all = assignments(&view(), &node());
        let of = |name: &str| all.iter().find(|it| it.name == name).unwrap().device;
        assert_eq!(of("eth0").source4, wire(ip("192.168.1.5")));
        assert_eq!(of("eth0").source6, wire(ip("fe80::5")));
        assert_eq!(of("flannel.1").source4, wire(ip("10.244.0.0")));
        assert_eq!(of("veth1").source4, wire(ip("192.168.1.5")));
        assert_eq!(of("veth1").source6, Ip::UNSPECIFIED);
        assert_eq!((of("veth1").bridge, of("cali1").bridge), (3, 0));
        assert_eq!(of("veth1").flags, Device::LOCAL_CLIENTS);
    }

    #[test]
    fn node_ports_are_served_on_the_primary_address_or_on_all() {
        use lb_common::config::address::{NODE, NODE_PORTS};
        let all = addresses(&view(), &node());
        assert_eq!(all[&wire(ip("192.168.1.5"))], NODE | NODE_PORTS);
        assert_eq!(all[&wire(ip("172.16.0.9"))], NODE);
        assert_eq!(all[&wire(ip("127.0.0.1"))], NODE);
        assert_eq!(all[&wire(ip("fe80::5"))], NODE | NODE_PORTS, "no IPv6 node address: all of it");
    }
}
