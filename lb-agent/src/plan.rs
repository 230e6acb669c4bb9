//! The desired state of one service port, in the words of the contract: the seam between the translation of Kubernetes
//! objects (`translate`) and the programming of maps (`reconcile`).
//!
//! A plan is a plain value: no map index, no identity, no slot. Equal plans mean nothing to do.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::addr::Protocol;

/// An address family. Each service port exists once per family (contract 1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Both, in the order in which they are worked through.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub const fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// `IPv4` or `IPv6`, as kube-proxy labels its metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Namespace and name of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Identity of a service port (contract 1.3) in one family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey {
    pub service: ServiceName,
    /// `spec.ports[].name`, empty when unnamed.
    pub port: String,
    /// `spec.ports[].protocol`.
    pub protocol: Protocol,
    pub family: Family,
}

/// `namespace/name:port`, as people write it; the port without a name is not there.
impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port.as_str() {
            "" => write!(f, "{}", self.service),
            port => write!(f, "{}:{port}", self.service),
        }
    }
}

/// The plan of one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortPlan {
    /// The service port that the plan is for.
    pub key: PortKey,
    /// `metadata.creationTimestamp` in seconds, then UID: who wins a frontend that two ask for (the oldest).
    pub age: (i64, String),
    /// Addresses and ports it is asked by.
    pub frontends: Vec<FrontendPlan>,
    /// Seconds of `ClientIP` affinity.
    pub affinity: Option<u32>,
    /// Allowed sources of the frontends with `sources` set. Only this family's; never empty there.
    pub sources: Vec<IpNet>,
    /// Every endpoint that serves or is in a set, sorted by address and port, without duplicates.
    pub endpoints: Vec<EndpointPlan>,
    /// An endpoint is usable somewhere in the cluster (contract 2, "hasAny").
    pub anywhere: bool,
}

impl PortPlan {
    /// Whether `policy` is Local and drops here what other nodes would answer: no endpoint of the
    /// Local set, but a usable one elsewhere (contract 7, `no_local_endpoints`).
    pub fn lacks_local(&self, policy: TrafficPolicy) -> bool {
        self.anywhere
            && self.frontends.iter().any(|f| f.local_policy && f.kind.policy() == policy)
            && !self.endpoints.iter().any(|endpoint| endpoint.local)
    }
}

/// Which of the two traffic policies of a Service governs a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// `spec.internalTrafficPolicy`.
    Internal,
    /// `spec.externalTrafficPolicy`.
    External,
}

impl TrafficPolicy {
    /// Whether this is `externalTrafficPolicy`.
    pub const fn is_external(self) -> bool {
        matches!(self, Self::External)
    }

    /// `internal` or `external`, as kube-proxy labels its metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::External => "external",
        }
    }
}

/// The kind of address of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress[].ip` with `ipMode` VIP.
    LoadBalancer,
    /// `spec.ports[].nodePort`, on the node's accepted addresses (the address here is the family's wildcard).
    NodePort,
}

impl FrontendKind {
    /// The traffic policy that governs this kind of frontend.
    pub const fn policy(self) -> TrafficPolicy {
        match self {
            Self::ClusterIp => TrafficPolicy::Internal,
            Self::ExternalIp | Self::LoadBalancer | Self::NodePort => TrafficPolicy::External,
        }
    }
}

/// One frontend of a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendPlan {
    pub kind: FrontendKind,
    /// Address; `0.0.0.0` or `::` for a `NodePort`.
    pub ip: IpAddr,
    /// Port, host order.
    pub port: u16,
    /// The policy that governs this kind (internal for `ClusterIP`, else external) is Local.
    pub local_policy: bool,
    /// `loadBalancerSourceRanges` of this family apply (load balancer VIPs only).
    pub sources: bool,
}

/// One endpoint of a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointPlan {
    /// `addresses[0]`.
    pub ip: IpAddr,
    /// Port of the slice, host order.
    pub port: u16,
    /// `nodeName` is this node.
    pub on_this_node: bool,
    /// Member of the Cluster set (contract 2.1).
    pub cluster: bool,
    /// Member of the Local set (contract 2.2).
    pub local: bool,
}
