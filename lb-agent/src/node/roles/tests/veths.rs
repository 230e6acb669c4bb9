//! Veths: a pod's, an uplink where nodes are containers, or a pair of the host's own.

use super::*;

/// The first end of a new pair is announced alone; the pair belongs to a pod once one end has left.
#[test]
fn veth_has_no_role_until_its_peer_has_left() {
    let mut view = view();
    let first = Link { peer: Some(0), is_up: false, ..link(30, "tmp1", LinkKind::Veth) };
    drop(view.links.insert(30, first));
    assert_eq!(role(&view, &node(), "tmp1"), None);
    drop(view.links.insert(31, Link { peer: Some(30), ..link(31, "veth9", LinkKind::Veth) }));
    assert_eq!(role(&view, &node(), "veth9"), None, "both ends are here");
    drop(view.links.remove(&30));
    assert_eq!(role(&view, &node(), "veth9"), Some(InterfaceRole::Pod));
}

/// A node that is a container itself has veths as uplinks.
#[test]
fn veth_that_carries_an_uplink_is_no_pod_interface() {
    let mut view = view();
    let veth = Link { elsewhere: Some(0), peer: Some(7), ..link(30, "eth2", LinkKind::Veth) };
    drop(view.links.insert(30, veth));
    assert_eq!(role(&view, &node(), "eth2"), Some(InterfaceRole::Pod));
    let vlan = Link { peer: Some(30), ..link(31, "eth2.7", LinkKind::Over) };
    drop(view.links.insert(31, vlan));
    assert_eq!(
        role(&view, &node(), "eth2"),
        Some(InterfaceRole::Pod),
        "nothing is routed by the VLAN"
    );
    view.addresses.push(address(31, "172.21.0.1"));
    assert_eq!(role(&view, &node(), "eth2"), None);
    assert_eq!(role(&view, &node(), "eth2.7"), Some(InterfaceRole::External));
    // The veth is the port of a bond, which may not be up yet.
    drop(view.links.remove(&31));
    drop(view.links.insert(32, Link { is_up: false, ..link(32, "bond0", LinkKind::Bond) }));
    view.links.get_mut(&30).unwrap().controller = Some(32);
    assert_eq!(role(&view, &node(), "eth2"), None);
    view.links.get_mut(&32).unwrap().is_up = true;
    view.addresses.push(address(32, "172.22.0.1"));
    assert_eq!(role(&view, &node(), "bond0"), Some(InterfaceRole::External));
    // With an address of the Node object it is external, whatever is stacked on it.
    let node = Identity { addresses: vec![ip("172.23.0.1")], ..node() };
    view.addresses.push(address(30, "172.23.0.1"));
    assert_eq!(role(&view, &node, "eth2"), Some(InterfaceRole::External));
}

#[test]
fn peer_namespace_determines_the_role_of_a_second_veth() {
    let ranges = |text: &str| Identity { pod_ranges: vec![text.parse().unwrap()], ..node() };
    let mut view = view();
    // The other end of `veth1` is in a pod, in the namespace with id 4.
    let second = Link { elsewhere: Some(4), ..link(30, "veth1b", LinkKind::Veth) };
    drop(view.links.insert(30, second));
    view.addresses.push(address(30, "172.20.0.1"));
    assert_eq!(role(&view, &ranges("10.244.0.0/24"), "veth1b"), Some(InterfaceRole::Pod));
    assert!(ambiguous(&view, &node()).is_empty(), "its peer decides");
    // On a node that is a container itself, both uplinks end in the same namespace.
    let card = view.links.get_mut(&2).unwrap();
    (card.kind, card.elsewhere) = (LinkKind::Veth, Some(0));
    let second = Link { elsewhere: Some(0), ..link(31, "eth2", LinkKind::Veth) };
    drop(view.links.insert(31, second));
    assert_eq!(role(&view, &node(), "eth2"), Some(InterfaceRole::Pod), "nothing is routed by it");
    view.routed.gateways.insert(31);
    assert_eq!(
        role(&view, &node(), "eth2"),
        Some(InterfaceRole::External),
        "networks of pods are unknown"
    );
    view.addresses.push(address(31, "172.21.0.1"));
    view.links.get_mut(&31).unwrap().is_up = false;
    assert_eq!(role(&view, &node(), "eth2"), None, "down, with a network: nothing yet");
    // The second uplink is now the port of a bridge, which has the network.
    view.addresses.pop();
    view.routed.forget(31);
    view.links.get_mut(&31).unwrap().controller = Some(32);
    drop(view.links.insert(32, link(32, "br1", LinkKind::Bridge)));
    view.addresses.push(address(32, "172.21.0.1"));
    assert_eq!(role(&view, &node(), "br1"), Some(InterfaceRole::External));
    assert_eq!(role(&view, &node(), "eth2"), None);
}

#[test]
fn a_veth_with_a_network_is_an_uplink_or_ambiguous() {
    let mut view = view();
    view.addresses.push(address(5, "172.20.0.1"));
    assert_eq!(ambiguous(&view, &node()), ["cali1"], "networks of pods are unknown");
    let ranges = |text: &str| Identity { pod_ranges: vec![text.parse().unwrap()], ..node() };
    let role = |node: &Identity| {
        let all = assignments(&view, node);
        all.into_iter().find(|it| it.name == "cali1").map(|it| it.role)
    };
    assert_eq!(role(&ranges("172.20.0.0/24")), Some(InterfaceRole::Pod));
    assert_eq!(role(&ranges("10.244.0.0/24")), Some(InterfaceRole::External));
    assert_eq!(role(&ranges("fd00::/64")), Some(InterfaceRole::Pod), "of the other family");
    assert!(ambiguous(&view, &ranges("10.244.0.0/24")).is_empty());
    let named = Identity { pods: vec!["cali*".parse().unwrap()], ..node() };
    assert!(ambiguous(&view, &named).is_empty());
}

#[test]
fn a_port_of_the_bridge_that_leads_out_is_ambiguous() {
    let mut view = view();
    view.routed.default.insert(3);
    assert_eq!(ambiguous(&view, &node()), ["veth1"]);
}

/// The kernel deletes the other end first, and reports the port of the bridge twice more.
#[test]
fn a_veth_that_is_being_deleted_stays_a_pods_while_a_bridge_has_it() {
    let mut view = view();
    let veth = view.links.get_mut(&4).unwrap();
    (veth.peer, veth.elsewhere) = (Some(0), None);
    for is_up in [true, false] {
        view.links.get_mut(&4).unwrap().is_up = is_up;
        assert_eq!(role(&view, &node(), "veth1"), Some(InterfaceRole::Pod));
        assert!(unserved(&view, &node()).is_empty(), "the bridge is served by its ports");
    }
}
