//! The desired state of one service port, in the terms of the contract. It separates the translation of Kubernetes
//! objects (`translate`) from the programming of maps (`reconcile`).
//!
//! A plan is a plain value without map indices, identities or slots. If two plans are equal, nothing has to be written.

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
    /// Both families, in the order of processing.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of an address.
    pub const fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns `IPv4` or `IPv6`, the label of kube-proxy's metrics.
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
    /// `metadata.creationTimestamp` in seconds, then the UID: the smaller one wins a frontend that two Services claim.
    pub age: (i64, String),
    /// Addresses and ports that clients connect to.
    pub frontends: Vec<FrontendPlan>,
    /// Timeout of `ClientIP` affinity in seconds; `None` without affinity.
    pub affinity: Option<u32>,
    /// Allowed sources of the frontends that check them, in this family. Not empty if one does.
    pub sources: Vec<IpNet>,
    /// Every endpoint that serves or is in a set, sorted by address and port, without duplicates.
    pub endpoints: Vec<EndpointPlan>,
    /// Whether any endpoint in the cluster is usable (contract 2.4).
    pub anywhere: bool,
}

impl PortPlan {
    /// Reports whether `policy` is Local and drops packets here that other nodes would serve: the Local set is empty,
    /// but a usable endpoint exists elsewhere (contract 2.4; metric `no_local_endpoints`).
    pub fn lacks_local(&self, policy: TrafficPolicy) -> bool {
        self.anywhere
            && self.frontends.iter().any(|f| f.local_policy && f.kind.policy() == policy)
            && !self.endpoints.iter().any(|endpoint| endpoint.local)
    }
}

/// The traffic policies of a Service; each governs some of its frontends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// `spec.internalTrafficPolicy`.
    Internal,
    /// `spec.externalTrafficPolicy`.
    External,
}

impl TrafficPolicy {
    /// Reports whether this is `externalTrafficPolicy`.
    pub const fn is_external(self) -> bool {
        matches!(self, Self::External)
    }

    /// Returns `internal` or `external`, the label of kube-proxy's metrics.
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
    /// `spec.ports[].nodePort`, on the node's accepted addresses; the address in the plan is the family's wildcard.
    NodePort,
}

impl FrontendKind {
    /// Returns the traffic policy that governs this kind of frontend (contract 2.4).
    pub const fn policy(self) -> TrafficPolicy {
        match self {
            Self::ClusterIp => TrafficPolicy::Internal,
            Self::ExternalIp | Self::LoadBalancer | Self::NodePort => TrafficPolicy::External,
        }
    }
}

/// A frontend of a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendPlan {
    pub kind: FrontendKind,
    /// Address; `0.0.0.0` or `::` for a `NodePort`.
    pub ip: IpAddr,
    /// Port that clients connect to (`spec.ports[].port` or `nodePort`), in host byte order.
    pub port: u16,
    /// Whether the policy that governs this kind is Local.
    pub local_policy: bool,
    /// Whether `loadBalancerSourceRanges` apply; only for load balancer VIPs (contract 3.8).
    pub checks_sources: bool,
}

/// An endpoint of a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointPlan {
    /// `addresses[0]`.
    pub ip: IpAddr,
    /// Port of the slice, host order.
    pub port: u16,
    /// Whether `nodeName` is this node.
    pub on_this_node: bool,
    /// Whether it is in the Cluster set (contract 2.1).
    pub cluster: bool,
    /// Whether it is in the Local set (contract 2.2).
    pub local: bool,
}
