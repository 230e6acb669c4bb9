//! The addresses of a Service, and the clients that may use them (contract 1.4, 3.8).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::external_policy_is_local;
use crate::plan::{Family, FrontendKind, FrontendPlan};
use crate::snapshot::{Findings, NodeContext, PortSpec, ServiceKind, ServiceSpec};

/// Reports whether a Service is reachable from outside, by its type or by external IPs (contract 1.4).
pub(super) fn reachable_from_outside(spec: &ServiceSpec) -> bool {
    match spec.kind {
        ServiceKind::LoadBalancer | ServiceKind::NodePort => true,
        ServiceKind::ClusterIp => !spec.external_ips.is_empty(),
        ServiceKind::ExternalName => false,
    }
}

/// The addresses of a Service in one family; all its ports share them.
#[derive(Debug)]
pub(super) struct ServiceAddresses {
    family: Family,
    /// Address, kind, policy and source check of each; the port is filled in later.
    addresses: Vec<FrontendPlan>,
    external_local: bool,
    sources: Vec<IpNet>,
}

impl ServiceAddresses {
    /// Collects the addresses of one family (contract 1.4).
    pub(super) fn of(
        spec: &ServiceSpec,
        family: Family,
        node: &NodeContext,
        findings: &mut Findings,
    ) -> Self {
        let external_local = external_policy_is_local(spec);
        let of_family = |list: &[IpAddr]| {
            list.iter().copied().filter(|ip| Family::of(*ip) == family).collect::<BTreeSet<_>>()
        };
        let mut vips = of_family(&spec.vips);
        let sources = sources(spec, &vips, family, node);
        if sources.is_empty() && spec.broken_ranges && !vips.is_empty() {
            // It is unknown which sources should be excluded, so none is admitted.
            vips.clear();
            findings.wrong(
                "spec.loadBalancerSourceRanges",
                format_args!(
                    "has no usable prefix of {}; its load balancer addresses are not served",
                    family.name()
                ),
                "correct the prefixes",
            );
        }
        let mut found = Self { family, addresses: Vec::new(), external_local, sources };
        let mut seen = BTreeSet::new();
        // The internal policy belongs to the ClusterIP alone (contract 2.4). It is the first in `seen`, so the same
        // address among the external IPs does not change its policy.
        if let Some(ip) = spec.cluster.get(family) {
            found.add(&mut seen, FrontendKind::ClusterIp, ip, spec.internal_local);
        }
        // An address that is both a VIP and an external IP is a VIP, so that its source ranges apply.
        for ip in vips {
            found.add(&mut seen, FrontendKind::LoadBalancer, ip, external_local);
        }
        if !node.ignores_external_ips {
            for ip in of_family(&spec.external_ips) {
                found.add(&mut seen, FrontendKind::ExternalIp, ip, external_local);
            }
        }
        found.addresses.sort_unstable();
        found
    }

    pub(super) const fn family(&self) -> Family {
        self.family
    }

    /// Reports whether the external policy is Local and counts.
    pub(super) const fn external_local(&self) -> bool {
        self.external_local
    }

    /// Returns the frontends of a port, and the source ranges if a frontend checks them.
    pub(super) fn of_port(&self, port: &PortSpec) -> (Vec<FrontendPlan>, Vec<IpNet>) {
        let mut list = self.addresses.clone();
        for frontend in &mut list {
            frontend.port = port.port;
        }
        if port.node_port != 0 {
            list.push(FrontendPlan {
                kind: FrontendKind::NodePort,
                // One entry stands for all addresses; `ADDRESSES` says which of them serve NodePorts (contract 3.5).
                ip: wildcard(self.family),
                port: port.node_port,
                local_policy: self.external_local,
                // Source ranges never restrict a NodePort (contract 3.8).
                checks_sources: false,
            });
        }
        // Ranges without a frontend that checks them would only take room in the map.
        let checks = list.iter().any(|frontend| frontend.checks_sources);
        (list, if checks { self.sources.clone() } else { Vec::new() })
    }

    fn add(
        &mut self,
        seen: &mut BTreeSet<IpAddr>,
        kind: FrontendKind,
        ip: IpAddr,
        local_policy: bool,
    ) {
        if seen.insert(ip) {
            let checks_sources = kind == FrontendKind::LoadBalancer && !self.sources.is_empty();
            self.addresses.push(FrontendPlan { kind, ip, port: 0, local_policy, checks_sources });
        }
    }
}

/// Returns the source ranges of a family. If one contains this node, the VIPs are added: a host that has bound a VIP
/// connects to it from that address (contract 3.8).
fn sources(
    spec: &ServiceSpec,
    vips: &BTreeSet<IpAddr>,
    family: Family,
    node: &NodeContext,
) -> Vec<IpNet> {
    let of_family = spec.source_ranges.iter().filter(|range| Family::of(range.addr()) == family);
    let mut ranges: BTreeSet<IpNet> = of_family.copied().collect();
    if node.bound_ip(family).is_some_and(|ip| ranges.iter().any(|range| range.contains(&ip))) {
        ranges.extend(vips.iter().copied().map(IpNet::from));
    }
    ranges.into_iter().collect()
}

const fn wildcard(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}
