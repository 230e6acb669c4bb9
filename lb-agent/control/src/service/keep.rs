//! The fields that an update takes over from the stored object, and those that a change of type drops.

use std::collections::{BTreeMap, BTreeSet};

use super::model::Service;

/// Reports whether `clusterIP` and `clusterIPs` are both unchanged.
pub(crate) fn same_cluster_ips(old: &Service, new: &Service) -> bool {
    old.spec.cluster_ip == new.spec.cluster_ip && old.spec.cluster_ips == new.spec.cluster_ips
}

/// Fills in earlier allocations, so that the manifest without them can be applied again.
pub(crate) fn allocated(new: &mut Service, old: &Service) {
    if !old.is_external_name() && !new.is_external_name() {
        if new.spec.cluster_ip.is_empty() {
            new.spec.cluster_ip.clone_from(&old.spec.cluster_ip);
        }
        if new.spec.cluster_ips.is_empty() {
            new.spec.cluster_ips.clone_from(&old.spec.cluster_ips);
        }
    }
    if is_given_node_ports(old) && is_given_node_ports(new) {
        node_ports(new, old);
    }
    if old.needs_health_check() && new.needs_health_check() && new.spec.health_check_node_port == 0
    {
        new.spec.health_check_node_port = old.spec.health_check_node_port;
    }
}

fn is_given_node_ports(service: &Service) -> bool {
    let is_refused = service.spec.allocate_load_balancer_node_ports == Some(false);
    service.spec.kind == "NodePort" || (service.is_load_balancer() && !is_refused)
}

/// Fills in node ports by the name of the port: its other fields may have changed.
fn node_ports(new: &mut Service, old: &Service) {
    let used = |service: &Service| -> BTreeSet<i32> {
        service.spec.ports.iter().map(|it| it.node_port).filter(|it| *it != 0).collect()
    };
    let kept: BTreeSet<i32> = used(old).intersection(&used(new)).copied().collect();
    let by_name: BTreeMap<&str, i32> =
        old.spec.ports.iter().map(|it| (it.name.as_str(), it.node_port)).collect();
    for port in new.spec.ports.iter_mut().filter(|it| it.node_port == 0) {
        let before = by_name.get(port.name.as_str()).copied().unwrap_or(0);
        // Another port of the new object names this node port explicitly.
        if !kept.contains(&before) {
            port.node_port = before;
        }
    }
}

/// Makes `clusterIP` and `clusterIPs` agree for clients that know only one of them.
pub(crate) fn normalize(new: &mut Service, old: Option<&Service>) {
    let Some(old) = old else {
        if !new.spec.cluster_ip.is_empty() && new.spec.cluster_ips.is_empty() {
            new.spec.cluster_ips = vec![new.spec.cluster_ip.clone()];
        }
        return;
    };
    if old.spec.cluster_ip == new.spec.cluster_ip {
        if !old.spec.cluster_ips.is_empty() && new.spec.cluster_ips.is_empty() {
            new.spec.cluster_ips.clone_from(&old.spec.cluster_ips);
        }
        return;
    }
    if old.spec.cluster_ips == new.spec.cluster_ips {
        // The client changed only the older field; an emptied one clears both.
        let is_cleared = !old.spec.cluster_ip.is_empty() && new.spec.cluster_ip.is_empty();
        let one = [new.spec.cluster_ip.clone()];
        new.spec.cluster_ips = one.into_iter().filter(|_| !is_cleared).collect();
    }
}

/// Clears the fields that the new type does not have, unless the client changed them in the same update.
pub(crate) fn drop_dependent(new: &mut Service, old: &Service) {
    if !old.is_external_name() && new.is_external_name() {
        if same_cluster_ips(old, new) {
            new.spec.cluster_ip.clear();
            new.spec.cluster_ips.clear();
        }
        if old.spec.ip_families == new.spec.ip_families {
            new.spec.ip_families.clear();
        }
        if old.policy() == new.policy() {
            new.spec.ip_family_policy = None;
        }
    }
    if old.has_node_ports() && !new.has_node_ports() {
        // If the client changed a port in this update, all ports stay, so that validation can refuse them.
        let before: BTreeSet<i32> = old.spec.ports.iter().map(|it| it.node_port).collect();
        let is_same = |port: i32| port == 0 || before.contains(&port);
        if new.spec.ports.iter().all(|it| is_same(it.node_port)) {
            new.spec.ports.iter_mut().for_each(|it| it.node_port = 0);
        }
    }
    if old.needs_health_check()
        && !new.needs_health_check()
        && old.spec.health_check_node_port == new.spec.health_check_node_port
    {
        new.spec.health_check_node_port = 0;
    }
    if old.is_load_balancer() && !new.is_load_balancer() {
        let (before, now) = (&old.spec, &mut new.spec);
        if before.allocate_load_balancer_node_ports == now.allocate_load_balancer_node_ports {
            now.allocate_load_balancer_node_ports = None;
        }
        if before.load_balancer_class == now.load_balancer_class {
            now.load_balancer_class = None;
        }
    }
    if old.is_externally_accessible()
        && !new.is_externally_accessible()
        && old.spec.external_traffic_policy == new.spec.external_traffic_policy
    {
        new.spec.external_traffic_policy.clear();
    }
    if !new.is_load_balancer() {
        new.status.load_balancer.ingress.clear();
    }
}
