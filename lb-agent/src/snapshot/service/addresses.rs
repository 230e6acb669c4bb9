//! The addresses and prefixes of a Service (contract 1.2, 1.4).

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::ServiceKind;
use crate::plan::Family;
use crate::snapshot::address::{address, link_local, prefix, special};
use crate::snapshot::finding::{Findings, quoted};
use crate::snapshot::object::{Service, ServiceBody as Spec};

/// The cluster IPs of a Service, at most one per family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClusterIps {
    /// `clusterIP` is `None`.
    pub headless: bool,
    pub v4: Option<IpAddr>,
    pub v6: Option<IpAddr>,
}

impl ClusterIps {
    /// Returns the address of a family.
    pub const fn get(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// Reads the cluster IPs. `ipFamilies` gives the family of each entry of `clusterIPs`; without it, an entry has the
    /// family of its address (contract 1.4).
    pub(super) fn of(spec: &Spec, kind: ServiceKind, findings: &mut Findings) -> Self {
        let single = spec.cluster_ip.as_slice();
        // `clusterIP` alone is the form of objects from before dual-stack.
        let list = if spec.cluster_ips.is_empty() { single } else { &spec.cluster_ips };
        let mut found = Self { headless: list.iter().any(|ip| ip == "None"), ..Self::default() };
        if found.headless || kind == ServiceKind::ExternalName {
            return found;
        }
        let families = &spec.ip_families;
        for (at, text) in list.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            let ip = address(text);
            let problem = match (ip, families.get(at)) {
                (None, _) => Some("is not an address"),
                (Some(ip), Some(named)) if Family::of(ip).name() != named => {
                    Some("is not of the family that spec.ipFamilies names for it")
                }
                (Some(_), None) if !families.is_empty() => Some("has no entry in spec.ipFamilies"),
                (Some(ip), _) => special(ip),
            };
            if let Some(problem) = problem {
                findings.wrong(
                    format_args!("spec.clusterIPs[{at}]"),
                    format_args!("{} {problem}; not served", quoted(text)),
                    "write one address of each family in spec.ipFamilies, in that order",
                );
                continue;
            }
            match ip {
                // The first valid address of a family counts.
                Some(IpAddr::V4(_)) => found.v4 = found.v4.or(ip),
                Some(IpAddr::V6(_)) => found.v6 = found.v6.or(ip),
                None => {}
            }
        }
        // Only manifests can lack the address: the API server allocates one.
        if list.iter().all(String::is_empty) {
            findings.wrong(
                "spec.clusterIP",
                "is missing; the Service is not served",
                "write its address out, or None for a headless Service",
            );
        }
        found
    }
}

/// The most frontends that one list of addresses may make, one for each of its addresses and each port: as many as
/// `SERVICES` holds by default.
const MOST_FRONTENDS: usize = 65_536;

/// Returns the addresses of a list, or none if they would make too many frontends with the ports of the Service.
pub(super) fn bounded(
    addresses: Box<[IpAddr]>,
    ports: usize,
    field: &'static str,
    findings: &mut Findings,
) -> Box<[IpAddr]> {
    let count = addresses.len();
    if count.saturating_mul(ports) <= MOST_FRONTENDS {
        return addresses;
    }
    findings.wrong(
        field,
        format_args!("has {count} addresses for {ports} ports; none of them is served"),
        "divide the Service: addresses times ports may be 65536 at most",
    );
    Box::default()
}

pub(super) fn external_ips(spec: &Spec, findings: &mut Findings) -> Box<[IpAddr]> {
    let mut found = Vec::new();
    for (at, text) in spec.external_ips.iter().enumerate() {
        let field = format_args!("spec.externalIPs[{at}]");
        found.extend(service_address(text, field, findings).filter(|ip| {
            let refused = link_local(*ip);
            if refused {
                findings.wrong(
                    field,
                    format_args!("{} is a link-local address; not served", quoted(text)),
                    REACHABLE,
                );
            }
            !refused
        }));
    }
    found.into()
}

/// Returns the load balancer addresses that the node serves itself.
pub(super) fn vips(object: &Service, findings: &mut Findings) -> Box<[IpAddr]> {
    let ingress = &object.status.load_balancer.ingress;
    let mut found = Vec::new();
    for (at, entry) in ingress.iter().enumerate() {
        let field = format_args!("status.loadBalancer.ingress[{at}]");
        // An entry with a host name alone is ignored (contract 1.4).
        let Some(text) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) else {
            continue;
        };
        match entry.ip_mode.as_deref() {
            None | Some("VIP") => {
                found.extend(service_address(text, format_args!("{field}.ip"), findings));
            }
            // The load balancer is to see these packets itself, so they leave the node (contract 1.4).
            Some("Proxy") => {}
            Some(other) => findings.wrong(
                format_args!("{field}.ipMode"),
                format_args!("{} is not a mode; the address is not served", quoted(other)),
                "write VIP or Proxy",
            ),
        }
    }
    found.into()
}

const REACHABLE: &str = "write an address that clients can reach";

fn service_address(
    text: &str,
    field: impl fmt::Display,
    findings: &mut Findings,
) -> Option<IpAddr> {
    let ip = address(text);
    let problem = ip.map_or(Some("is not an address"), special);
    if let Some(problem) = problem {
        findings.wrong(field, format_args!("{} {problem}; not served", quoted(text)), REACHABLE);
        return None;
    }
    ip
}

/// Returns `spec.loadBalancerSourceRanges`, and whether one of them cannot be read.
pub(super) fn source_ranges(spec: &Spec, findings: &mut Findings) -> (Box<[IpNet]>, bool) {
    let listed = &spec.load_balancer_source_ranges;
    let mut found = Vec::with_capacity(listed.len());
    let mut broken = false;
    for (at, text) in listed.iter().enumerate() {
        if let Some(range) = prefix(text) {
            found.push(range);
            continue;
        }
        // The caller must know that a list with nothing but unreadable ranges is not an empty one, which would allow
        // everyone.
        broken = true;
        findings.wrong(
            format_args!("spec.loadBalancerSourceRanges[{at}]"),
            format_args!("{} is not a prefix; it allows no client", quoted(text)),
            "write it as 203.0.113.0/24 or 2001:db8::/32",
        );
    }
    (found.into(), broken)
}
