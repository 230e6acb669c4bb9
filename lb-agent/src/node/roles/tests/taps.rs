//! Taps: the cards of virtual machines behind a bridge of the node.

use super::*;

#[test]
fn a_tap_is_served_as_a_pod_where_its_bridge_leads_nowhere_else() {
    let mut view = view();
    let port = |index, name, kind| Link { controller: Some(20), ..link(index, name, kind) };
    drop(view.links.insert(20, link(20, "virbr0", LinkKind::Bridge)));
    drop(view.links.insert(21, port(21, "vnet0", LinkKind::Tap)));
    view.addresses.push(address(20, "192.168.122.1"));
    assert_eq!(
        role(&view, &node(), "virbr0"),
        Some(InterfaceRole::External),
        "pods have no known range"
    );
    let node = Identity { pod_ranges: vec!["10.244.0.0/16".parse().unwrap()], ..node() };
    let roles = |view: &NetnsView| ["virbr0", "vnet0"].map(|name| role(view, &node, name));
    assert_eq!(roles(&view), [None, Some(InterfaceRole::Pod)]);
    assert!(unserved(&view, &node).is_empty(), "its port has programs");
    let pod = Link { elsewhere: Some(5), ..port(22, "veth7", LinkKind::Veth) };
    let new = Link { elsewhere: None, peer: Some(24), ..pod.clone() };
    let other = Link { is_up: false, peer: Some(22), ..link(24, "eth0", LinkKind::Veth) };
    drop((view.links.insert(22, new), view.links.insert(24, other)));
    assert_eq!(roles(&view), [None, Some(InterfaceRole::Pod)], "a container is being connected");
    assert!(unserved(&view, &node).is_empty(), "for a moment");
    view.links.get_mut(&24).unwrap().is_up = true;
    assert_eq!(
        roles(&view),
        [Some(InterfaceRole::External), None],
        "the veth leads somewhere here"
    );
    drop((view.links.insert(22, pod), view.links.remove(&24)));
    assert_eq!(roles(&view), [None, Some(InterfaceRole::Pod)]);
    let addresses = std::mem::take(&mut view.addresses);
    assert_eq!(roles(&view), [None, None], "the node does not route for the bridge");
    view.addresses = addresses;
    view.routed.gateways.insert(20);
    assert_eq!(roles(&view)[1], None, "other networks are behind the bridge");
    view.routed.forget(20);
    view.routed.default.insert(20);
    assert_eq!(roles(&view), [Some(InterfaceRole::External), None]);
    view.routed.forget(20);
    drop(view.links.remove(&22));
    drop(view.links.insert(23, port(23, "eth2", LinkKind::Other)));
    assert_eq!(roles(&view), [Some(InterfaceRole::External), None], "a card is in the bridge");
    view.links.get_mut(&21).unwrap().controller = None;
    view.addresses.push(address(21, "172.30.0.1"));
    assert_eq!(role(&view, &node, "vnet0"), Some(InterfaceRole::External), "routed");
}
