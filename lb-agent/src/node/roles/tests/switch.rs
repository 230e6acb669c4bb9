//! Open vSwitch with the pods, the tunnel and the gateway of a CNI plugin (Antrea).

use super::*;

/// The node of [`view`] with a switch and its ports.
fn with_switch() -> NetnsView {
    let mut view = view();
    let switch = Some(20);
    let port = |index, name, kind| Link {
        controller: switch,
        hardware: Some([index as u8; 6]),
        ..link(index, name, kind)
    };
    let (peer, elsewhere) = (Some(2), Some(4));
    for link in [
        Link { is_up: false, ..link(20, "ovs-system", LinkKind::Switch) },
        port(21, "genev_sys_6081", LinkKind::Tunnel),
        link(22, "antrea-gw0", LinkKind::Switch),
        Link { peer, elsewhere, ..port(23, "coredns-1", LinkKind::Veth) },
    ] {
        drop(view.links.insert(link.index, link));
    }
    view.addresses.push(address(22, "10.10.0.1"));
    view
}

/// The gateway masquerades what leaves for other nodes. Replies come in by the tunnel, and the switch must see them as
/// it saw the requests.
#[test]
fn gateway_of_a_switch_is_external_and_its_tunnel_is_not() {
    let view = with_switch();
    assert_eq!(role(&view, &node(), "antrea-gw0"), Some(InterfaceRole::External));
    assert_eq!(role(&view, &node(), "genev_sys_6081"), None);
    assert_eq!(role(&view, &node(), "ovs-system"), None);
    let named = Identity { external: vec!["genev*".parse().unwrap()], ..node() };
    assert_eq!(
        role(&view, &named, "genev_sys_6081"),
        Some(InterfaceRole::External),
        "by configuration"
    );
}

/// Pods behind the switch send to the link-layer address of its gateway: a refusal must not depend on it.
#[test]
fn pod_behind_a_switch_may_send_to_any_link_layer_address() {
    let found = assignments(&with_switch(), &node());
    let pod = found.iter().find(|it| it.name == "coredns-1").unwrap();
    assert_eq!((pod.role, pod.device.hardware), (InterfaceRole::Pod, [0; 6]));
}
