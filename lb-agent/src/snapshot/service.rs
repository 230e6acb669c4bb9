//! A Service reduced to the fields in use (contract 1.2 to 1.4).

mod addresses;
mod ports;

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use lb_common::addr::Protocol;

pub use self::addresses::ClusterIps;
use self::addresses::{bounded, external_ips, source_ranges, vips};
pub(super) use self::ports::{port_number, protocol};
use super::finding::{Finding, Findings, quoted};
use super::object::{Service, ServiceBody as Spec};
use crate::plan::ServiceName;

/// The fields of a Service in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceSpec {
    pub name: ServiceName,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.creationTimestamp` in seconds, 0 if unknown.
    pub created: i64,
    /// `spec.type`.
    pub kind: ServiceKind,
    /// The value of [`PROXY_NAME_LABEL`], if set.
    pub proxy_name: Option<Box<str>>,
    /// `spec.clusterIPs`.
    pub cluster: ClusterIps,
    /// Its usable ports. No two of them have the same number and protocol, or the same node port.
    pub ports: Box<[PortSpec]>,
    /// `spec.externalIPs`; none if they are too many for the ports.
    pub external_ips: Box<[IpAddr]>,
    /// Addresses of `status.loadBalancer.ingress` whose `ipMode` is VIP; none if they are too many for the ports.
    pub vips: Box<[IpAddr]>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Box<[IpNet]>,
    /// At least one source range cannot be read.
    pub broken_ranges: bool,
    /// `spec.internalTrafficPolicy` is Local.
    pub internal_local: bool,
    /// `spec.externalTrafficPolicy` is Local.
    pub external_local: bool,
    /// `ClientIP` affinity in seconds; `None` without affinity.
    pub affinity: Option<u32>,
    /// `spec.healthCheckNodePort`, 0 for none.
    pub health_check_node_port: u16,
    /// Fields that were left out because they are invalid; `status` and an Event name them.
    pub problems: Box<[Finding]>,
}

/// `spec.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServiceKind {
    #[default]
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortSpec {
    /// The name; empty if unnamed.
    pub name: Box<str>,
    pub protocol: Protocol,
    /// The port number, in host byte order.
    pub port: u16,
    /// `nodePort`, 0 for none.
    pub node_port: u16,
}

impl ServiceSpec {
    /// Reduces a Service to the fields in use. `None` if it has no name.
    pub(crate) fn of(object: &Service) -> Option<Self> {
        let meta = &object.metadata;
        let name = Some(meta.name.clone()).filter(|name| !name.is_empty())?;
        let name = ServiceName { namespace: meta.namespace.clone(), name };
        let spec = &object.spec;
        let mut findings = Findings::of("Service", &name.namespace, &name.name);
        let kind = kind(spec, &mut findings);
        let (source_ranges, broken_ranges) = source_ranges(spec, &mut findings);
        // A time that cannot be parsed makes the Service old, not unreadable.
        let created = meta.creation_timestamp.as_deref().and_then(|time| time.parse().ok());
        let cluster = ClusterIps::of(spec, kind, &mut findings);
        let ports = ports::ports(spec, kind, &mut findings);
        let (external, vips) = (external_ips(spec, &mut findings), vips(object, &mut findings));
        let count = ports.len();
        Some(Self {
            // A manifest has no uid; the name identifies its Service as well.
            uid: if meta.uid.is_empty() { name.to_string().into() } else { (*meta.uid).into() },
            created: created.map_or(0, |time: Timestamp| time.as_second()),
            kind,
            proxy_name: meta.labels.proxy_name.as_deref().map(Into::into),
            cluster,
            ports,
            external_ips: bounded(external, count, "spec.externalIPs", &mut findings),
            vips: bounded(vips, count, "status.loadBalancer.ingress", &mut findings),
            source_ranges,
            broken_ranges,
            internal_local: local(
                spec.internal_traffic_policy.as_deref(),
                "spec.internalTrafficPolicy",
                &mut findings,
            ),
            external_local: local(
                spec.external_traffic_policy.as_deref(),
                "spec.externalTrafficPolicy",
                &mut findings,
            ),
            affinity: affinity(spec, &mut findings),
            health_check_node_port: spec
                .health_check_node_port
                .filter(|port| *port != 0)
                .and_then(|port| port_number(port, "spec.healthCheckNodePort", &mut findings))
                .unwrap_or(0),
            problems: findings.into_list().into(),
            name,
        })
    }
}

fn kind(spec: &Spec, findings: &mut Findings) -> ServiceKind {
    match spec.kind.as_deref() {
        None | Some("" | "ClusterIP") => ServiceKind::ClusterIp,
        Some("NodePort") => ServiceKind::NodePort,
        Some("LoadBalancer") => ServiceKind::LoadBalancer,
        Some("ExternalName") => ServiceKind::ExternalName,
        Some(other) => {
            findings.wrong(
                "spec.type",
                format_args!("{} is not a type; taken as ClusterIP", quoted(other)),
                "write ClusterIP, NodePort, LoadBalancer or ExternalName",
            );
            ServiceKind::ClusterIp
        }
    }
}

fn local(policy: Option<&str>, field: &'static str, findings: &mut Findings) -> bool {
    match policy {
        None | Some("" | "Cluster") => false,
        Some("Local") => true,
        Some(other) => {
            findings.wrong(
                field,
                format_args!("{} is not a policy; taken as Cluster", quoted(other)),
                "write Cluster or Local",
            );
            false
        }
    }
}

fn affinity(spec: &Spec, findings: &mut Findings) -> Option<u32> {
    // The API server has the same default (contract 1.4).
    const DEFAULT: u32 = 10_800;
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            findings.wrong(
                "spec.sessionAffinity",
                format_args!("{} is not an affinity; taken as None", quoted(other)),
                "write ClientIP or None",
            );
            return None;
        }
    }
    let Some(seconds) = spec.session_affinity_config.client_ip.timeout_seconds else {
        return Some(DEFAULT);
    };
    // The API server accepts no others (contract 1.4); a manifest may contain any.
    let valid = u32::try_from(seconds).ok().filter(|seconds| (1..=86_400).contains(seconds));
    if valid.is_none() {
        findings.wrong(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format_args!("{seconds} is out of range; taken as {DEFAULT}"),
            "write 1 to 86400",
        );
    }
    valid.or(Some(DEFAULT))
}

#[cfg(test)]
mod tests;
