//! Validation of a whole Service: all faults are reported at once.

use super::annotations::{TOPOLOGY_HINTS, TOPOLOGY_MODE};
use super::model::Service;
use crate::check;
use crate::field::Cause;

mod addresses;
mod change;
mod load_balancer;
mod ports;

pub(crate) use addresses::cluster_ips;
pub(crate) use change::change;

/// Largest `timeoutSeconds` of `ClientIP` affinity: one day.
const AFFINITY_MOST: i32 = 86_400;

/// Returns the faults of an object whose defaults and allocations are filled in.
pub(crate) fn service(new: &Service, old: Option<&Service>) -> Vec<Cause> {
    // Causes are in upstream's order, because clients print the causes in the order of the list.
    let mut causes = topology(new);
    causes.extend(ports::presence(new));
    causes.extend(kind(new));
    causes.extend(ports::each(new));
    causes.extend(check::labels(&new.spec.selector, "spec.selector"));
    causes.extend(affinity(new));
    causes.extend(cluster_ips(new, old));
    causes.extend(addresses::external(new, old));
    causes.extend(known_kind(new));
    causes.extend(ports::node_ports(new));
    causes.extend(ports::twice(new));
    causes.extend(load_balancer::fields(new, old));
    causes.extend(traffic(new));
    causes
}

fn topology(new: &Service) -> Vec<Cause> {
    let of = |key: &str| new.metadata.annotations.get(key);
    match (of(TOPOLOGY_MODE), of(TOPOLOGY_HINTS)) {
        (Some(mode), Some(hints)) if mode != hints => {
            let field = format!("metadata.annotations[{TOPOLOGY_MODE}]");
            let detail =
                format!("must match annotations[{TOPOLOGY_HINTS}] when both are specified");
            vec![Cause::invalid(field, mode.as_str(), &detail)]
        }
        _ => Vec::new(),
    }
}

fn kind(new: &Service) -> Vec<Cause> {
    let mut causes = Vec::new();
    if new.has_node_ports() && new.is_headless() {
        let detail = format!("may not be set to 'None' for {} services", new.spec.kind);
        causes.push(Cause::invalid("spec.clusterIPs[0]", "None", &detail));
    }
    if !new.is_external_name() {
        return causes;
    }
    let set = [
        (!new.spec.cluster_ips.is_empty(), "spec.clusterIPs"),
        (!new.spec.ip_families.is_empty(), "spec.ipFamilies"),
        (new.spec.ip_family_policy.is_some(), "spec.ipFamilyPolicy"),
    ];
    let set = set.into_iter().filter(|it| it.0);
    causes.extend(set.map(|it| Cause::forbidden(it.1, "may not be set for ExternalName services")));
    // A final dot marks an absolute DNS name, which upstream accepts.
    let name = new.spec.external_name.strip_suffix('.').unwrap_or(&new.spec.external_name);
    if name.is_empty() {
        causes.push(Cause::required("spec.externalName", ""));
    } else {
        let faults = check::dns_subdomain(name).into_iter();
        causes.extend(faults.map(|it| Cause::invalid("spec.externalName", name, &it)));
    }
    causes
}

fn known_kind(new: &Service) -> Option<Cause> {
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    let kind = new.spec.kind.as_str();
    (!kinds.contains(&kind)).then(|| Cause::not_supported("spec.type", kind, &kinds))
}

fn affinity(new: &Service) -> Vec<Cause> {
    let field = "spec.sessionAffinityConfig";
    let config = new.spec.session_affinity_config.as_ref();
    match new.spec.session_affinity.as_str() {
        "ClientIP" => {
            let client = config.and_then(|it| it.client_ip.as_ref());
            let Some(seconds) = client.and_then(|it| it.timeout_seconds) else { return Vec::new() };
            if (1..=AFFINITY_MOST).contains(&seconds) {
                return Vec::new();
            }
            // Upstream's words, although the limit itself is allowed.
            let detail = format!("must be greater than 0 and less than {AFFINITY_MOST}");
            vec![Cause::invalid(format!("{field}.clientIP.timeoutSeconds"), seconds, &detail)]
        }
        "None" if config.is_some() => {
            vec![Cause::forbidden(field, "must not be set when session affinity is None")]
        }
        "None" => Vec::new(),
        other => vec![Cause::not_supported("spec.sessionAffinity", other, &["ClientIP", "None"])],
    }
}

fn traffic(new: &Service) -> Vec<Cause> {
    let spec = &new.spec;
    let mut causes = Vec::new();
    let (field, policy) = ("spec.externalTrafficPolicy", spec.external_traffic_policy.as_str());
    if !new.is_externally_accessible() {
        if !policy.is_empty() {
            let detail = "may only be set for externally-accessible services";
            causes.push(Cause::invalid(field, policy, detail));
        }
    } else if !["Cluster", "Local"].contains(&policy) {
        causes.push(Cause::not_supported(field, policy, &["Cluster", "Local"]));
    }
    let (field, port) = ("spec.healthCheckNodePort", spec.health_check_node_port);
    if new.needs_health_check() {
        let faults = check::port_number(port.into()).into_iter();
        causes.extend(faults.map(|it| Cause::invalid(field, port, &it)));
    } else if port != 0 {
        let detail =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        causes.push(Cause::invalid(field, port, detail));
    }
    if let Some(policy) = spec.internal_traffic_policy.as_deref()
        && !["Cluster", "Local"].contains(&policy)
    {
        let field = "spec.internalTrafficPolicy";
        causes.push(Cause::not_supported(field, policy, &["Cluster", "Local"]));
    }
    let kinds = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    if let Some(distribution) = spec.traffic_distribution.as_deref()
        && !kinds.contains(&distribution)
    {
        causes.push(Cause::not_supported("spec.trafficDistribution", distribution, &kinds));
    }
    causes
}
