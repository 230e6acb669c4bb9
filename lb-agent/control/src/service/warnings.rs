//! Warnings about fields that are valid and likely a mistake.

use super::annotations::{TOPOLOGY_HINTS, TOPOLOGY_MODE};
use super::model::Service;
use crate::check;

/// Returns the warnings in upstream's words and order.
pub fn warnings(service: &Service) -> Vec<String> {
    let spec = &service.spec;
    let mut texts = Vec::new();
    if service.metadata.annotations.contains_key(TOPOLOGY_HINTS) {
        texts.push(format!(
            "annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead"
        ));
    }
    let is_headless = spec.kind == "ClusterIP" && spec.cluster_ip == "None";
    if !spec.cluster_ip.is_empty() && spec.cluster_ip != "None" {
        texts.extend(forms("spec.clusterIPs", &spec.cluster_ips));
    }
    if is_headless {
        let ignored = [
            (!spec.load_balancer_ip.is_empty(), "spec.loadBalancerIP"),
            (!spec.external_ips.is_empty(), "spec.externalIPs"),
            (spec.session_affinity != "None", "spec.SessionAffinity"),
        ];
        let ignored = ignored.into_iter().filter(|it| it.0);
        texts.extend(ignored.map(|it| format!("{} is ignored for headless services", it.1)));
    }
    texts.extend(forms("spec.externalIPs", &spec.external_ips));
    let has_external = !spec.external_ips.is_empty();
    if has_external && !is_headless && !service.is_external_name() {
        texts.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
                .into(),
        );
    }
    if !spec.load_balancer_ip.is_empty() {
        texts.extend(check::canonical_warning("spec.loadBalancerIP", &spec.load_balancer_ip));
    }
    if service.is_external_name() && has_external {
        texts.push(r#"spec.externalIPs is ignored when spec.type is "ExternalName""#.into());
    }
    if !service.is_external_name() && !spec.external_name.is_empty() {
        texts.push(r#"spec.externalName is ignored when spec.type is not "ExternalName""#.into());
    }
    if spec.traffic_distribution.as_deref() == Some("PreferClose") {
        texts.push(
            r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#.into(),
        );
    }
    texts
}

fn forms(field: &str, values: &[String]) -> Vec<String> {
    let values = values.iter().enumerate();
    values
        .filter_map(|(index, it)| check::canonical_warning(&format!("{field}[{index}]"), it))
        .collect()
}
