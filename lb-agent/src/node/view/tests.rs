//! Addresses that come and go, as netlink reports them.

use std::net::{IpAddr, Ipv4Addr};

use lb_common::addr::Ip;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::{InterfaceAddresses, LinkKind, NetnsView};

fn message(local: [u8; 4], peer: [u8; 4], prefix: u8) -> AddressMessage {
    let [local, peer] = [local, peer].map(|ip| IpAddr::V4(Ipv4Addr::from(ip)));
    let mut message = AddressMessage::default();
    (message.header.index, message.header.prefix_len) = (2, prefix);
    message.attributes = vec![AddressAttribute::Address(peer), AddressAttribute::Local(local)];
    message
}

#[test]
fn address_of_two_networks_goes_once_for_each() {
    const OWN: [u8; 4] = [10, 0, 0, 5];
    let (mut view, [old, new]) =
        (NetnsView::default(), [24, 16].map(|prefix| message(OWN, OWN, prefix)));
    for message in [&old, &new, &new] {
        view.put_address(message);
    }
    view.remove_address(&old);
    let prefixes: Vec<u8> = view.addresses.iter().map(|address| address.prefix).collect();
    assert_eq!(prefixes, [16]);
    view.remove_address(&new);
    assert!(view.addresses.is_empty());
}

#[test]
fn address_of_two_links_to_one_machine_goes_once_for_each() {
    const OWN: [u8; 4] = [10, 0, 0, 1];
    let [one, other] = [2, 3].map(|host| message(OWN, [10, 0, 0, host], 32));
    let mut view = NetnsView::default();
    for message in [&one, &other] {
        view.put_address(message);
    }
    view.remove_address(&one);
    let [left] = &view.addresses[..] else { panic!("{:?}", view.addresses) };
    assert_eq!((left.ip, left.peer), ([10, 0, 0, 1].into(), IpAddr::from([10, 0, 0, 3])));
    assert!(left.has_peer());
}

#[test]
fn addresses_of_an_interface_are_found_in_their_order() {
    let mut view = NetnsView::default();
    for (index, host) in [(3, 1), (2, 2), (3, 3), (2, 1)] {
        let mut own = message([10, 0, 0, host], [10, 0, 0, host], 24);
        own.header.index = index;
        view.put_address(&own);
    }
    let addresses = InterfaceAddresses::of(&view);
    let on = |index| addresses.on(index).map(|own| own.ip).collect::<Vec<_>>();
    assert_eq!(on(2), [2, 1].map(|host| IpAddr::from([10, 0, 0, host])));
    assert_eq!(on(3), [1, 3].map(|host| IpAddr::from([10, 0, 0, host])));
    assert!(on(1).is_empty() && on(4).is_empty());
}

#[test]
fn lists_and_events_have_one_order_of_addresses() {
    let four = |host: u8| message([10, 0, 0, host], [10, 0, 0, host], 24);
    let six = |host: u16| {
        let mut message = AddressMessage::default();
        (message.header.index, message.header.prefix_len) = (2, 64);
        let ip = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host]);
        message.attributes = vec![AddressAttribute::Address(ip)];
        message
    };
    let mut view = NetnsView::default();
    for message in [four(1), four(2), six(1), six(2)] {
        view.put_address(&message);
    }
    let mut listed = NetnsView::default();
    for message in [four(1), four(2), six(2), six(1)] {
        listed.put_address(&message);
    }
    listed.sort_listed();
    assert_eq!(listed, view);
}

#[test]
fn link_that_comes_back_with_its_index_changes_the_view() {
    let mut link = LinkMessage::default();
    link.header.index = 7;
    let mut view = NetnsView::default();
    view.put_link(&link);
    let before = view.clone();
    view.put_link(&link);
    assert_eq!(view, before);
    view.remove_link(&link);
    view.put_link(&link);
    assert_ne!(view.links, before.links, "its programs went with it");
    let mut listed = NetnsView::default();
    listed.put_link(&link);
    let before = view.clone();
    view.replace(listed);
    assert_eq!(view, before, "a list of the same links changes nothing");
}

/// A cache of DNS on the node has the address of a Service on an interface of its own, and `kube-ipvs0` those of all.
#[test]
fn leftovers_of_ipvs_are_no_listeners() {
    let mut view = NetnsView::default();
    for (index, name) in [(2, "kube-ipvs0"), (3, "nodelocaldns")] {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = vec![LinkAttribute::IfName(name.into())];
        view.put_link(&link);
        let ip = [10, 96, 0, index as u8];
        let mut own = message(ip, ip, 32);
        own.header.index = index;
        view.put_address(&own);
    }
    assert_eq!(view.listening(), [Ip::v4([10, 96, 0, 3])].into());
}

/// The library has no name for this kind.
#[test]
fn open_vswitch_is_known_by_the_name_of_its_kind() {
    for (name, kind) in [("openvswitch", LinkKind::Switch), ("nlmon", LinkKind::Other)] {
        let mut message = LinkMessage::default();
        let info = vec![LinkInfo::Kind(InfoKind::Other(name.to_owned()))];
        message.attributes = vec![LinkAttribute::LinkInfo(info)];
        assert_eq!(super::message::link(&message).kind, kind, "{name}");
    }
}
