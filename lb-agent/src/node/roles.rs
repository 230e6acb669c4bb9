//! Which device is what: a function of links, addresses, routes and the patterns an operator gave.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::{Device, address};

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

fn device(link: &Link, role: Role, view: &View, node: &Identity) -> Device {
    let is_bridge = |index: &u32| {
        view.links.get(index).is_some_and(|controller| controller.kind == LinkKind::Bridge)
    };
    Device {
        source4: source(link, view, node.primary.v4, IpAddr::is_ipv4),
        source6: source(link, view, node.primary.v6, IpAddr::is_ipv6),
        bridge: link.controller.filter(is_bridge).unwrap_or(0),
        flags: flags(link, role, view, node),
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
            let bridge = link.controller.and_then(|index| view.links.get(&index));
            let input = bridge.filter(|bridge| bridge.kind == LinkKind::Bridge).unwrap_or(link);
            input.name.starts_with(prefix.as_str())
        }
        LocalClients::Bridge(name) => {
            let controller = link.controller.and_then(|index| view.links.get(&index));
            link.name == *name || controller.is_some_and(|bridge| bridge.name == *name)
        }
    }
}

/// The address for translated packets that leave by a device: its own global one or that of its bridge, the
/// node's, its own of any scope.
fn source(link: &Link, view: &View, primary: Option<IpAddr>, is_family: fn(&IpAddr) -> bool) -> Ip {
    let of = |index| view.addresses_of(index).filter(|own| is_family(&own.ip));
    let own = || of(link.index);
    let usable = |own: &&super::Address| own.is_preferred && !own.ip.is_loopback();
    let all = own().chain(link.controller.into_iter().flat_map(of));
    let global = all.filter(usable).find(|own| own.is_global).map(|own| own.ip);
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
        Address { index, ip, prefix: 24, is_global, is_preferred: true }
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
    fn what_packets_begin_with_says_which_programs_read_them() {
        let mut view = view();
        let tunnel = |index, name, head| Link { head, ..link(index, name, LinkKind::Tunnel) };
        for link in [
            tunnel(10, "wg0", Head::Ip),
            tunnel(11, "mgre0", Head::Other),
            Link { is_up: false, ..tunnel(12, "tunl0", Head::Ip) },
        ] {
            drop(view.links.insert(link.index, link));
        }
        let found = named(&view, &node());
        assert!(found.contains(&("wg0".into(), Role::Bare)), "{found:?}");
        assert!(!found.iter().any(|(name, _)| name == "mgre0" || name == "tunl0"), "{found:?}");
        assert_eq!(unreadable(&view, &node()), ["mgre0"]);
        let pods = Identity { pods: vec!["tunl*".parse().unwrap()], ..node() };
        assert_eq!(unreadable(&view, &pods), ["mgre0", "tunl0"]);
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
    fn a_veth_with_a_network_is_an_uplink_or_in_doubt() {
        let mut view = view();
        view.addresses.push(address(5, "172.20.0.1"));
        assert_eq!(doubtful(&view, &node()), ["cali1"], "nobody says where pods are");
        let ranges = |text: &str| Identity { pod_ranges: vec![text.parse().unwrap()], ..node() };
        let role = |node: &Identity| {
            let all = assignments(&view, node);
            all.into_iter().find(|it| it.name == "cali1").map(|it| it.role)
        };
        assert_eq!(role(&ranges("172.20.0.0/24")), Some(Role::Pod));
        assert_eq!(role(&ranges("10.244.0.0/24")), Some(Role::Edge));
        assert_eq!(role(&ranges("fd00::/64")), Some(Role::Pod), "of the other family");
        assert!(doubtful(&view, &ranges("10.244.0.0/24")).is_empty());
        let named = Identity { pods: vec!["cali*".parse().unwrap()], ..node() };
        assert!(doubtful(&view, &named).is_empty());
    }

    #[test]
    fn a_port_of_the_bridge_that_leads_out_is_in_doubt() {
        let mut view = view();
        let _: bool = view.default_routes.insert(3);
        assert_eq!(doubtful(&view, &node()), ["veth1"]);
    }

    #[test]
    fn sources_prefer_the_device_then_the_node_then_any() {
        let all = assignments(&view(), &node());
        let of = |name: &str| all.iter().find(|it| it.name == name).unwrap().device;
        assert_eq!(of("eth0").source4, wire(ip("192.168.1.5")));
        assert_eq!(of("eth0").source6, wire(ip("fe80::5")));
        assert_eq!(of("flannel.1").source4, wire(ip("10.244.0.0")));
        assert_eq!(of("veth1").source4, wire(ip("10.244.0.1")), "that of its bridge");
        assert_eq!(of("cali1").source4, wire(ip("192.168.1.5")));
        assert_eq!(of("veth1").source6, Ip::UNSPECIFIED);
        assert_eq!((of("veth1").bridge, of("cali1").bridge), (3, 0));
        assert_eq!(of("veth1").flags, Device::LOCAL_CLIENTS | Device::PEER);
        assert_eq!(of("cali1").flags, Device::LOCAL_CLIENTS, "where its other end is nobody says");
    }

    #[test]
    fn a_prefix_names_the_device_that_netfilter_sees() {
        let local = |prefix: &str| {
            let local_clients = LocalClients::Prefix(prefix.into());
            let all = assignments(&view(), &Identity { local_clients, ..node() });
            let local = all.into_iter().filter(|it| it.device.flags & Device::LOCAL_CLIENTS != 0);
            local.map(|it| it.name).collect::<Vec<_>>()
        };
        assert_eq!(local("cali"), ["cali1"]);
        assert_eq!(local("cni"), ["veth1"], "a port counts as its bridge");
        assert_eq!(local("veth"), Vec::<String>::new());
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
