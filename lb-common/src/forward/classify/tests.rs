//! The class of each kind of packet, at each kind of interface.

use std::vec::Vec;

use super::super::Role;
use super::{Class, egress, ingress};
use crate::addr::{Ip, Port, Protocol};
use crate::config::Settings;
use crate::fake::{Bytes, Fake, Home, at, world};
use crate::flow::Tuple;
use crate::tables::Filters as _;
use crate::wire::{View, tcp};

const NEAR: Class = Class::Frontend { is_in_ranges: true };
const FAR: Class = Class::Frontend { is_in_ranges: false };
const VIP: &str = "198.51.100.1:443";
/// An address of no frontend and no backend.
const UNUSED: &str = "203.0.113.200:9000";
/// The node's address with a port of ours.
const OURS: &str = "192.168.0.10:62000";
const ROLES: [Role; 3] = [Role::Pod, Role::External, Role::Host];

fn node() -> Fake {
    let mut node = Fake::node();
    let service = node.add_service(1, &[(world::LOCAL4, true), (world::REMOTE4, false)]);
    node.cluster_ip(world::CLUSTER4, Protocol::TCP, service);
    node.external(VIP, Protocol::TCP, service);
    for backend in [world::LOCAL4, world::REMOTE4] {
        let end = at(backend);
        node.put_in_use(&end.ip, end.port);
    }
    node
}

fn packet(from_host: bool) -> Bytes {
    let mut packet = Bytes::new(Vec::new(), Home::Skb);
    packet.from_host = from_host;
    packet
}

/// The classes of a packet that comes in, by role.
fn comes_in(node: &Fake, from: &str, to: &str, tcp_flags: u8) -> [Class; 3] {
    let tuple = Tuple::new(at(from), at(to));
    let view = View { v4: true, protocol: Protocol::TCP, tcp_flags, ..View::default() };
    ROLES.map(|role| ingress(&packet(false), node, &node.settings, &tuple, &view, role))
}

/// The classes of a packet that goes out, by role.
fn goes_out(node: &Fake, from: &str, to: &str, from_host: bool) -> [Class; 3] {
    let tuple = Tuple::new(at(from), at(to));
    ROLES.map(|role| egress(&packet(from_host), node, &node.settings, &tuple, true, role))
}

#[test]
fn packets_that_come_in() {
    let node = node();
    let [none, backend] = [Class::NoService, Class::Backend];
    for (from, to, flags, classes) in [
        (world::POD4, world::CLUSTER4, tcp::SYN, [NEAR, NEAR, none]),
        (world::CLIENT4, world::NODE4, tcp::SYN, [NEAR, NEAR, none]),
        (world::CLIENT4, VIP, tcp::SYN, [FAR, FAR, none]),
        (world::POD4, UNUSED, tcp::SYN, [none; 3]),
        // A SYN is the only packet of an outside client that is looked up on its way straight to a backend.
        (world::POD4, world::REMOTE4, tcp::SYN, [backend, backend, none]),
        (world::POD4, world::REMOTE4, tcp::ACK, [backend, none, none]),
        (world::REMOTE4, OURS, tcp::ACK, [Class::Answer; 3]),
        (UNUSED, OURS, tcp::ACK, [none; 3]),
        (world::LOCAL4, world::POD4, tcp::ACK, [none; 3]),
    ] {
        assert_eq!(comes_in(&node, from, to, flags), classes, "{from} to {to}");
    }
}

#[test]
fn an_address_that_stands_for_a_pod_is_one_only_where_pods_are() {
    let node = node();
    let classes = comes_in(&node, world::POD4, "192.0.0.8:40000", tcp::ACK);
    assert_eq!(classes, [Class::Answer, Class::NoService, Class::NoService]);
}

#[test]
fn answers_of_backends_are_of_interest_where_they_may_bypass_the_stack() {
    let mut node = node();
    node.settings.node.flags |= Settings::BYPASSES;
    let classes = comes_in(&node, world::LOCAL4, world::POD4, tcp::ACK);
    assert_eq!(classes, [Class::Backend, Class::Backend, Class::NoService]);
}

#[test]
fn packets_that_go_out() {
    let node = node();
    let [none, backend] = [Class::NoService, Class::Backend];
    for (from, to, from_host, classes) in [
        (world::LOCAL4, world::POD4, false, [backend, backend, none]),
        // To a pod the source stays, unless it is done as kube-proxy does it.
        (world::CLIENT4, world::REMOTE4, false, [none, backend, none]),
        (world::CLIENT4, UNUSED, false, [none; 3]),
        (world::NODE4, world::CLUSTER4, true, [none, NEAR, NEAR]),
        (world::POD4, world::CLUSTER4, false, [none; 3]),
    ] {
        assert_eq!(goes_out(&node, from, to, from_host), classes, "{from} to {to}");
    }
    let mut masquerading = node;
    masquerading.settings.node.flags |= Settings::MASQUERADE_KUBE_PROXY;
    let classes = goes_out(&masquerading, world::CLIENT4, world::REMOTE4, false);
    assert_eq!(classes, [backend, backend, none]);
}

#[test]
fn a_node_without_services_has_no_classes() {
    let mut node = Fake::node();
    node.settings.services.cluster_ip_cover = [crate::config::Prefix::NOTHING; 2];
    (node.settings.services.node_port_low, node.settings.services.node_port_high) =
        (Port::new(1), Port::NONE);
    for to in [world::CLUSTER4, world::NODE4, VIP, world::REMOTE4] {
        assert_eq!(comes_in(&node, world::CLIENT4, to, tcp::SYN), [Class::NoService; 3], "{to}");
    }
    assert!(!node.settings.services.may_be_vip(&Ip::v4([198, 51, 100, 1])));
}
