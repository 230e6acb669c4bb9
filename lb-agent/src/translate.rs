//! Translates a Service to the ports that this node must serve: contract 1 and 2 as a pure function.
//!
//! It reads one Service, its slices and the node, and nothing else: no clock, no map, no kernel. The order of slices,
//! and of the addresses of a Service, does not matter. An invalid part is left out and reported; the rest of the
//! Service is served.

mod endpoints;
mod frontends;

use std::collections::BTreeSet;
use std::net::IpAddr;

use self::endpoints::{SlicePorts, Uses};
use self::frontends::{ServiceAddresses, reachable_from_outside};
use crate::plan::{Family, PortKey, PortPlan};
use crate::snapshot::{
    Finding, Findings, NodeContext, PortSpec, ServiceKind, ServiceSpec, SliceSpec,
};

/// The plans of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Translated {
    /// Service ports in each family, sorted by key.
    pub ports: Vec<PortPlan>,
    /// The listener on `healthCheckNodePort`.
    pub health: Option<HealthCheck>,
    /// Faults of the Service and of its slices.
    pub findings: Vec<Finding>,
}

/// The health check of a Service (contract 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// Ready endpoints on this node (contract 2.5).
    pub local_ready: LocalReady,
}

/// Ready endpoints on this node, by the family of the address that a load balancer connects to: its clients use the
/// same family.
///
/// A family that the Service lacks has the number of the other one: a load balancer may probe an address of the node in
/// a family without clients (contract 14, row 13b).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalReady {
    /// Number for probes over IPv4.
    pub v4: u32,
    /// Number for probes over IPv6.
    pub v6: u32,
}

/// Reports whether this agent serves the Service (contract 1.1, 1.2).
pub fn is_ours(spec: &ServiceSpec, node: &NodeContext) -> bool {
    spec.proxy_name.as_deref() == node.service_proxy_name.as_deref()
        && !spec.cluster.headless
        && spec.kind != ServiceKind::ExternalName
}

/// Translates a Service with all its slices.
pub fn service(spec: &ServiceSpec, slices: &[&SliceSpec], node: &NodeContext) -> Translated {
    if !is_ours(spec, node) {
        return Translated::default();
    }
    let mut slices = slices.to_vec();
    // If several slices contain one endpoint, their order decides (contract 1.5), and they arrive in any order.
    slices.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let problems = slices.iter().flat_map(|slice| &*slice.problems);
    let mut found: Vec<Finding> = spec.problems.iter().chain(problems).cloned().collect();
    let mut findings = Findings::of("Service", &spec.name.namespace, &spec.name.name);

    // Without a ClusterIP of a family the Service has nothing in that family, no NodePort either (contract 1.2).
    let served = Family::ALL.into_iter().filter(|family| spec.cluster.get(*family).is_some());
    let mut ports = Vec::with_capacity(2 * spec.ports.len());
    for family in served.clone() {
        let frontends = ServiceAddresses::of(spec, family, node, &mut findings);
        let offered = SlicePorts::of(&slices, family);
        ports.extend(spec.ports.iter().map(|port| plan(spec, port, &frontends, &offered, node)));
    }
    ports.sort_unstable_by(|a, b| a.key.cmp(&b.key));

    // A Service that is ignored (contract 1.2) has no listener either.
    let health = health_port(spec, &mut findings).filter(|_| !ports.is_empty());
    let health = health.map(|port| {
        let of = |family| served.clone().find(|it| *it == family).or_else(|| served.clone().next());
        let ready = |family| of(family).map_or(0, |family| local_ready(&slices, family, node));
        let local_ready = LocalReady { v4: ready(Family::V4), v6: ready(Family::V6) };
        HealthCheck { port, local_ready }
    });
    found.extend(findings.into_list());
    Translated { ports, health, findings: found }
}

fn plan(
    spec: &ServiceSpec,
    port: &PortSpec,
    frontends: &ServiceAddresses,
    offered: &SlicePorts<'_>,
    node: &NodeContext,
) -> PortPlan {
    let key = PortKey {
        service: spec.name.clone(),
        port: port.name.as_ref().to_owned(),
        protocol: port.protocol,
        family: frontends.family(),
    };
    let (list, sources) = frontends.of_port(port);
    // Contract 2.4: under external policy Local, pods and this host still use the Cluster set.
    // Only sets that a frontend uses are made: each one takes lines of the map.
    let external = list.iter().any(|frontend| frontend.kind.policy().is_external());
    let uses = Uses {
        cluster: !spec.internal_local || external,
        local: spec.internal_local || (external && frontends.external_local()),
    };
    let candidates = offered.candidates(&port.name, port.protocol);
    let (endpoints, anywhere) = candidates.choose(uses, node);
    PortPlan {
        key,
        // `creationTimestamp` counts whole seconds; the UID orders the Services of one second alike on every node.
        age: (spec.created, spec.uid.as_ref().to_owned()),
        frontends: list,
        affinity: spec.affinity,
        sources,
        endpoints,
        anywhere,
    }
}

/// Returns the health check port. Only a load balancer with policy Local has one (contract 1.4).
fn health_port(spec: &ServiceSpec, findings: &mut Findings) -> Option<u16> {
    let wanted = spec.kind == ServiceKind::LoadBalancer && spec.external_local;
    if wanted && spec.health_check_node_port == 0 {
        findings.wrong(
            "spec.healthCheckNodePort",
            "is missing; load balancers cannot tell which nodes have endpoints",
            "write it out, or use externalTrafficPolicy Cluster",
        );
    }
    (wanted && spec.health_check_node_port != 0).then_some(spec.health_check_node_port)
}

/// Returns the number of distinct ready addresses on this node, whatever their ports (contract 2.5). Ports that the
/// Service does not have count as well (`pkg/proxy/endpointschangetracker.go`, `LocalReadyEndpoints`).
fn local_ready(slices: &[&SliceSpec], family: Family, node: &NodeContext) -> u32 {
    let mut ready: BTreeSet<IpAddr> = BTreeSet::new();
    for candidates in SlicePorts::of(slices, family).all() {
        ready.extend(candidates.ready_here(node));
    }
    ready.len() as u32
}

/// Reports whether the zone of this node can matter to a slice.
pub fn heeds_zone(slice: &SliceSpec) -> bool {
    let mut hints = slice.endpoints.iter().filter_map(|endpoint| endpoint.hints.as_ref());
    hints.any(|hints| !hints.zones.is_empty())
}

/// Reports whether the addresses of this node can matter to a Service (contract 3.8).
pub fn heeds_node_addresses(spec: &ServiceSpec) -> bool {
    !spec.source_ranges.is_empty() && !spec.vips.is_empty()
}

/// Reports whether the external policy is Local. It counts only for a Service that is reachable from outside, by its
/// type or by external IPs (contract 1.4).
pub fn external_policy_is_local(spec: &ServiceSpec) -> bool {
    spec.external_local && reachable_from_outside(spec)
}

#[cfg(test)]
mod tests;
