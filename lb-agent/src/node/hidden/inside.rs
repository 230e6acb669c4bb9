//! Finds the interfaces inside a network namespace that no program of this host serves.

use super::device::{Hidden, Reason};
use super::routes::{PodRoute, PodRoutes};
use crate::node::view::{Link, LinkKind, NetnsView};

/// Returns the interfaces of a namespace that no program serves. `number` is the id of our namespace in that one.
pub(super) fn hidden(
    view: &NetnsView,
    number: i32,
    namespace: &str,
    routes: &[PodRoute],
) -> Vec<Hidden> {
    let is_ours = |link: &&Link| link.elsewhere == Some(number);
    // A veth has programs at its other end on this host, and so has a netkit in mode l2, which counts as a veth here.
    let is_served = |link: &Link| !matches!(link.kind, LinkKind::Over | LinkKind::Netkit);
    let has_veth = view.links.values().filter(is_ours).any(is_served);
    let device = |(index, link): (&u32, &Link)| {
        let reason = if link.kind == LinkKind::Over && is_ours(&link) {
            Reason::Over(link.peer?)
        } else if link.kind == LinkKind::Netkit && is_ours(&link) {
            Reason::NetkitL3(link.peer?)
        } else if link.is_card && link.is_up {
            Reason::Card
        } else {
            return None;
        };
        // Each netkit in mode l3 is reported: it leads to this host, so its pod expects Services there.
        let has_other = has_veth && !matches!(reason, Reason::NetkitL3(_));
        let pod_routes = has_other.then(|| PodRoutes::by(*index, routes));
        Some(Hidden {
            name: link.name.clone(),
            namespace: namespace.to_owned(),
            reason,
            pod_routes,
        })
    };
    view.links.iter().filter_map(device).collect()
}
