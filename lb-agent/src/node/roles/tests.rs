//! One node with an interface of each kind: their roles, and what the programs know of them.

mod switch;
mod taps;
mod veths;

use std::net::IpAddr;

use super::*;
use crate::node::hidden::Hidden;
use crate::node::{Primary, RoutedInterfaces};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link(index: u32, name: &str, kind: LinkKind) -> Link {
    Link { index, name: name.into(), kind, is_up: true, ..Link::default() }
}

fn address(index: u32, text: &str) -> Address {
    let ip = ip(text);
    let is_global = !ip.is_loopback() && !text.starts_with("fe80");
    Address { index, ip, prefix: 24, peer: ip, is_global, is_preferred: true }
}

/// Makes a node with one uplink, a bridge with a bridged pod, a routed pod, a veth pair of its own and a tunnel.
fn view() -> NetnsView {
    let links = [
        link(1, "lo", LinkKind::Loopback),
        link(2, "eth0", LinkKind::Other),
        link(3, "cni0", LinkKind::Bridge),
        Link {
            peer: Some(2),
            elsewhere: Some(4),
            controller: Some(3),
            ..link(4, "veth1", LinkKind::Veth)
        },
        Link { peer: Some(77), ..link(5, "cali1", LinkKind::Veth) },
        Link { peer: Some(7), ..link(6, "left", LinkKind::Veth) },
        Link { peer: Some(6), ..link(7, "right", LinkKind::Veth) },
        link(8, "flannel.1", LinkKind::Tunnel),
        link(9, "eth1", LinkKind::Other),
    ];
    NetnsView {
        links: links.into_iter().map(|link| (link.index, link)).collect(),
        addresses: vec![
            address(1, "127.0.0.1"),
            address(2, "192.168.1.5"),
            address(2, "fe80::5"),
            address(3, "10.244.0.1"),
            address(8, "10.244.0.0"),
            address(9, "172.16.0.9"),
        ],
        routed: RoutedInterfaces { default: [2].into(), ..RoutedInterfaces::default() },
        hidden: Vec::new(),
        ..NetnsView::default()
    }
}

fn node() -> Identity {
    Identity {
        addresses: vec![ip("192.168.1.5")],
        primary: Primary { v4: Some(ip("192.168.1.5")), v6: None },
        node_port_primary: Primary { v4: Some(ip("192.168.1.5")), v6: None },
        knows_primary: true,
        ..Identity::default()
    }
}

fn unserved(view: &NetnsView, node: &Identity) -> Vec<String> {
    super::unserved(view, node, &assignments(view, node))
}

fn named(view: &NetnsView, node: &Identity) -> Vec<(String, InterfaceRole)> {
    assignments(view, node).into_iter().map(|it| (it.name, it.role)).collect()
}

#[test]
fn each_kind_of_interface_has_its_role() {
    let expected = [
        ("lo", InterfaceRole::Host),
        ("eth0", InterfaceRole::External),
        ("veth1", InterfaceRole::Pod),
        ("cali1", InterfaceRole::Pod),
        ("flannel.1", InterfaceRole::External),
        ("eth1", InterfaceRole::External),
    ];
    let expected: Vec<_> = expected.map(|(name, role)| (name.to_owned(), role)).into();
    assert_eq!(named(&view(), &node()), expected);
    assert!(unserved(&view(), &node()).is_empty(), "the bridge is served by its ports");
}

fn role(view: &NetnsView, node: &Identity, name: &str) -> Option<InterfaceRole> {
    assignments(view, node).into_iter().find(|it| it.name == name).map(|it| it.role)
}

#[test]
fn a_second_card_is_external_by_its_network_or_by_a_gateway() {
    let mut view = view();
    view.addresses.retain(|own| own.index != 9);
    assert_eq!(role(&view, &node(), "eth1"), None, "nothing is routed by it");
    view.routed.gateways.insert(9);
    assert_eq!(role(&view, &node(), "eth1"), Some(InterfaceRole::External));
    view.links.get_mut(&9).unwrap().is_up = false;
    assert_eq!(role(&view, &node(), "eth1"), None);
    // The interface has only a route to a network on its link; the node's addresses are on `lo`.
    view.routed.forget(9);
    view.routed.networks.insert(9);
    view.links.get_mut(&9).unwrap().is_up = true;
    assert_eq!(role(&view, &node(), "eth1"), Some(InterfaceRole::External));
    view.links.get_mut(&9).unwrap().is_up = false;
    // A virtual interface over it has an address of its own.
    let lower = Some(9);
    drop(view.links.insert(10, Link { peer: lower, ..link(10, "eth1.100", LinkKind::Other) }));
    view.addresses.push(address(10, "172.17.0.9"));
    assert_eq!(role(&view, &node(), "eth1.100"), Some(InterfaceRole::External));
}

#[test]
fn address_is_stranded_while_its_links_are_down_and_no_other_sends_with_it() {
    let (mut view, node) = (view(), node());
    let stranded = |view: &NetnsView| stranded(view, &assignments(view, &node));
    assert!(stranded(&view).is_empty());
    view.links.get_mut(&9).unwrap().is_up = false;
    assert_eq!(stranded(&view), [Ip::from(ip("172.16.0.9"))].into());
    let card = view.links.get_mut(&9).unwrap();
    (card.is_up, card.lacks_carrier) = (true, true);
    assert_eq!(stranded(&view), [Ip::from(ip("172.16.0.9"))].into(), "the cable is pulled");
    let mut alone = view.clone();
    for index in [2, 8] {
        alone.links.get_mut(&index).unwrap().lacks_carrier = true;
    }
    assert!(stranded(&alone).is_empty(), "no other way leads out");
    view.addresses.push(address(1, "172.16.0.9"));
    assert!(stranded(&view).is_empty(), "lo has it, too");
    view.links.get_mut(&2).unwrap().is_up = false;
    let primary = Ip::from(ip("192.168.1.5"));
    assert!(stranded(&view).contains(&primary));
    drop(view.links.insert(40, link(40, "eth3", LinkKind::Other)));
    view.routed.default.insert(40);
    assert!(!stranded(&view).contains(&primary), "a card without an address sends with it");
}

/// Its routes are gone while it is down.
#[test]
fn a_card_keeps_its_role_while_it_is_down() {
    let mut view = view();
    let card = Link { is_up: false, ..link(30, "eth2", LinkKind::Over) };
    drop(view.links.insert(30, card));
    assert_eq!(role(&view, &node(), "eth2"), None);
    view.addresses.push(Address { prefix: 32, ..address(30, "172.21.0.1") });
    assert_eq!(role(&view, &node(), "eth2"), None, "no network");
    view.addresses.push(Address {
        peer: ip("172.22.0.2"),
        prefix: 32,
        ..address(30, "172.22.0.1")
    });
    assert_eq!(role(&view, &node(), "eth2"), Some(InterfaceRole::External));
    assert!(unserved(&view, &node()).is_empty());
    let is_down = |view: &NetnsView| {
        let all = assignments(view, &node());
        let card = all.iter().find(|device| device.index == 30).unwrap();
        card.device.flags & Device::DOWN != 0
    };
    assert!(is_down(&view), "replies must not be delivered there");
    view.links.get_mut(&30).unwrap().is_up = true;
    assert!(!is_down(&view));
    view.links.get_mut(&30).unwrap().lacks_carrier = true;
    assert!(is_down(&view), "without a cable");
}

#[test]
fn a_bridge_leads_outside_by_ports_that_are_no_pods() {
    let mut view = view();
    let port = |index, name| Link { controller: Some(20), ..link(index, name, LinkKind::Other) };
    drop(view.links.insert(20, link(20, "br0", LinkKind::Bridge)));
    view.addresses.push(address(20, "172.18.0.9"));
    assert_eq!(role(&view, &node(), "br0"), None, "it may wait for its first pod");
    drop(view.links.insert(21, port(21, "vm0")));
    assert_eq!(role(&view, &node(), "br0"), Some(InterfaceRole::External));
    let pods = Link { elsewhere: Some(5), kind: LinkKind::Veth, ..port(22, "veth7") };
    drop(view.links.insert(22, pods));
    assert_eq!(role(&view, &node(), "br0"), None);
    let problems = unserved(&view, &node());
    assert!(problems.len() == 1 && problems[0].contains("interface br0: "), "{problems:?}");
    assert!(problems[0].contains("--external-device"), "{problems:?}");
    view.links.get_mut(&21).unwrap().kind = LinkKind::Tunnel;
    assert!(unserved(&view, &node()).is_empty(), "the tunnel has programs itself");
}

#[test]
fn routed_interface_without_programs_is_a_problem() {
    let external = Identity { external: vec!["eth0".parse().unwrap()], ..node() };
    let problems = unserved(&view(), &external);
    let about =
        |name: &str| problems.iter().any(|it| it.starts_with(&format!("interface {name}: ")));
    assert!(about("eth1") && about("flannel.1") && !about("cni0"), "{problems:?}");
    let mut view = view();
    let other = |index, name, kind, head| Link { head, ..link(index, name, kind) };
    for link in [
        other(10, "ib0", LinkKind::Other, Head::Other),
        other(11, "nk0", LinkKind::Netkit, Head::Ethernet),
    ] {
        view.routed.gateways.insert(link.index);
        drop(view.links.insert(link.index, link));
    }
    let problems = unserved(&view, &node());
    assert!(
        problems.len() == 2 && problems[0].contains("neither an Ethernet nor an IP header"),
        "{problems:?}"
    );
    assert!(problems[1].contains("mode l2"), "{problems:?}");
}

#[test]
fn a_netkit_in_mode_l3_is_a_problem_once() {
    let mut view = view();
    let netkit = Link { elsewhere: Some(9), ..link(11, "nk0", LinkKind::Netkit) };
    drop(view.links.insert(11, netkit));
    let problems = unserved(&view, &node());
    assert!(problems.len() == 1 && problems[0].starts_with("interface nk0: "), "{problems:?}");
    let (name, namespace) = ("eth0".to_owned(), "blue".to_owned());
    view.hidden.push(Hidden { name, namespace, reason: Reason::NetkitL3(11), pod_routes: None });
    assert!(unserved(&view, &node()).is_empty(), "it is named with its pod");
    view.hidden.clear();
    view.links.get_mut(&11).unwrap().is_up = false;
    assert!(unserved(&view, &node()).is_empty(), "it waits for its pod");
}

#[test]
fn first_header_of_packets_selects_the_programs() {
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
    assert!(found.contains(&("wg0".into(), InterfaceRole::L3)), "{found:?}");
    assert!(!found.iter().any(|(name, _)| name == "mgre0" || name == "tunl0"), "{found:?}");
    assert_eq!(unreadable(&view, &node()), ["mgre0"]);
    let pods = Identity { pods: vec!["tunl*".parse().unwrap()], ..node() };
    assert_eq!(unreadable(&view, &pods), ["mgre0", "tunl0"]);
}

/// A VRF has an address of its own, but frames to its members never have that address.
#[test]
fn member_of_a_vrf_has_the_same_role_as_without_it() {
    let mut view = view();
    let vrf = Link { hardware: Some([9; 6]), ..link(30, "vrf-blue", LinkKind::Other) };
    view.links.insert(30, vrf);
    for (index, hardware) in [(5, [5; 6]), (9, [7; 6])] {
        let member = view.links.get_mut(&index).unwrap();
        (member.controller, member.hardware) = (Some(30), Some(hardware));
    }
    let all = assignments(&view, &node());
    let of = |name: &str| {
        let one = all.iter().find(|it| it.name == name).unwrap();
        (one.role, one.device.hardware)
    };
    assert_eq!(of("cali1"), (InterfaceRole::Pod, [5; 6]));
    assert_eq!(of("eth1"), (InterfaceRole::External, [7; 6]));
}

#[test]
fn patterns_replace_discovery_for_their_role() {
    let patterns = Identity {
        external: vec!["eth*".parse().unwrap()],
        pods: vec!["left".parse().unwrap()],
        ..node()
    };
    let expected = [
        ("lo", InterfaceRole::Host),
        ("eth0", InterfaceRole::External),
        ("left", InterfaceRole::Pod),
        ("eth1", InterfaceRole::External),
    ];
    let expected: Vec<_> = expected.map(|(name, role)| (name.to_owned(), role)).into();
    assert_eq!(named(&view(), &patterns), expected);
}

#[test]
fn sources_prefer_the_device_then_the_node_then_any() {
    let all = assignments(&view(), &node());
    let of = |name: &str| all.iter().find(|it| it.name == name).unwrap().device;
    assert_eq!(of("eth0").source4, Ip::from(ip("192.168.1.5")));
    assert_eq!(of("eth0").source6, Ip::from(ip("fe80::5")));
    assert_eq!(of("flannel.1").source4, Ip::from(ip("10.244.0.0")));
    assert_eq!(of("veth1").source4, Ip::from(ip("10.244.0.1")), "that of its bridge");
    assert_eq!(of("cali1").source4, Ip::from(ip("192.168.1.5")));
    assert_eq!(of("veth1").source6, Ip::UNSPECIFIED);
    assert_eq!((of("veth1").bridge, of("cali1").bridge), (3, 0));
    assert_eq!(of("veth1").flags, Device::LOCAL_CLIENTS | Device::POD | Device::PEER);
    let flags = Device::LOCAL_CLIENTS | Device::POD;
    assert_eq!(of("cali1").flags, flags, "the namespace of its peer is unknown");
}

#[test]
fn source_is_a_global_address_of_another_interface_before_a_link_local_one() {
    let mut view = view();
    view.addresses.push(Address { prefix: 128, ..address(1, "2001:db8::1") });
    let all = assignments(&view, &node());
    let eth0 = all.iter().find(|it| it.name == "eth0").unwrap().device;
    assert_eq!(eth0.source6, Ip::from(ip("2001:db8::1")), "as behind unnumbered links");
}

#[test]
fn source_of_an_unnumbered_interface_is_an_address_that_the_node_has() {
    let mut view = view();
    drop(view.links.insert(40, link(40, "eth3", LinkKind::Other)));
    view.routed.default.insert(40);
    let source = |view: &NetnsView| {
        let all = assignments(view, &node());
        all.iter().find(|it| it.name == "eth3").unwrap().device.source4
    };
    assert_eq!(source(&view), Ip::from(ip("192.168.1.5")), "the primary address");
    view.addresses.retain(|own| own.index != 2);
    assert_eq!(source(&view), Ip::from(ip("10.244.0.1")), "the Node object lags behind");
}

#[test]
fn routes_choose_among_sources_where_there_are_several_networks() {
    let with = |more: &[Address]| {
        let mut view = view();
        view.addresses.extend_from_slice(more);
        let sources = |name: &str| {
            let all = assignments(&view, &node());
            let one = all.into_iter().find(|it| it.name == name).unwrap();
            (one.device.flags & (Device::SOURCES4 | Device::SOURCES6), one.sources)
        };
        ["eth0", "veth1", "cali1"].map(sources)
    };
    let none = (0, Vec::new());
    let wires = |texts: &[&str]| texts.iter().map(|text| Ip::from(ip(text))).collect::<Vec<_>>();
    assert_eq!(with(&[]), [none.clone(), none.clone(), none.clone()]);

    let secondary = Address { is_preferred: false, ..address(2, "192.168.7.6") };
    let same = [address(2, "192.168.1.6"), address(2, "fe80::6"), address(2, "fd00::5"), secondary];
    assert_eq!(with(&same), [none.clone(), none.clone(), none.clone()]);

    let six =
        [address(2, "fd00:1::5"), address(2, "fd00:2::5")].map(|it| Address { prefix: 64, ..it });
    let [eth0, ..] = with(&six);
    assert_eq!(eth0, (Device::SOURCES6, wires(&["fd00:1::5", "fd00:2::5"])));

    let of_bridge = [address(3, "10.9.0.1"), address(4, "10.8.0.1")];
    let [eth0, veth1, cali1] = with(&of_bridge);
    assert_eq!((eth0, cali1), (none.clone(), none));
    assert_eq!(
        veth1,
        (Device::SOURCES4, wires(&["10.9.0.1", "10.244.0.1"])),
        "those of its bridge"
    );
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
    assert_eq!(all[&Ip::from(ip("192.168.1.5"))], NODE | NODE_PORTS);
    assert_eq!(all[&Ip::from(ip("172.16.0.9"))], NODE);
    assert_eq!(all[&Ip::from(ip("127.0.0.1"))], NODE);
    assert_eq!(all[&Ip::from(ip("fe80::5"))], NODE | NODE_PORTS, "no IPv6 node address: all of it");
}

/// A packet that the program of a VLAN has translated leaves by the interface below.
#[test]
fn lower_interface_of_a_vlan_is_marked() {
    let marked = |flag: u32, view: &NetnsView, node: &Identity| -> Vec<String> {
        let of = |it: &Assignment| it.device.flags & flag != 0;
        assignments(view, node).into_iter().filter(of).map(|it| it.name).collect()
    };
    let carries = |view: &NetnsView| marked(Device::CARRIES, view, &node());
    let mut view = view();
    assert!(carries(&view).is_empty(), "ports of a bridge of pods are not external");
    drop(view.links.insert(31, Link { peer: Some(2), ..link(31, "eth0.7", LinkKind::Over) }));
    view.addresses.push(address(31, "172.21.0.1"));
    assert_eq!(carries(&view), ["eth0"]);
    assert_eq!(marked(Device::HAS_UPPER, &view, &node()), ["eth0"]);
    let named = Identity { external: vec!["eth0".parse().unwrap()], ..node() };
    assert!(marked(Device::HAS_UPPER, &view, &named).is_empty(), "the VLAN has no programs");
}
