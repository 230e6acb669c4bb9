//! A Service as typed fields. Absent and empty are the same, as in JSON with `omitempty`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::meta::Meta;

/// A `v1/Service` with the fields that its rules read or write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct Service {
    pub metadata: Meta,
    pub spec: Spec,
    pub status: Status,
}

/// The wanted state (`spec`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct Spec {
    pub ports: Vec<Port>,
    pub selector: BTreeMap<String, String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<String>,
    pub session_affinity: String,
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: String,
    pub load_balancer_source_ranges: Vec<String>,
    pub external_name: String,
    pub external_traffic_policy: String,
    pub health_check_node_port: i32,
    pub publish_not_ready_addresses: bool,
    pub session_affinity_config: Option<AffinityConfig>,
    pub ip_families: Vec<String>,
    pub ip_family_policy: Option<String>,
    pub allocate_load_balancer_node_ports: Option<bool>,
    pub load_balancer_class: Option<String>,
    pub internal_traffic_policy: Option<String>,
    pub traffic_distribution: Option<String>,
}

/// A value of `spec.ipFamilyPolicy`: one family.
pub(crate) const SINGLE: &str = "SingleStack";
/// A value of `spec.ipFamilyPolicy`: two families if the cluster has them.
pub(crate) const PREFER: &str = "PreferDualStack";
/// A value of `spec.ipFamilyPolicy`: two families, or an error.
pub(crate) const REQUIRE: &str = "RequireDualStack";

/// `spec.sessionAffinityConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIp>,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIp {
    /// Time since the last packet after which the client may get another backend, in seconds.
    pub timeout_seconds: Option<i32>,
}

/// One port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub app_protocol: Option<String>,
    pub port: i32,
    pub target_port: Target,
    pub node_port: i32,
}

/// Where a port leads to: a number, or the name of a container's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "a number and a name")]
pub enum Target {
    Number(i32),
    Name(String),
}

impl Default for Target {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// The observed state (`status`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct Status {
    pub load_balancer: LoadBalancer,
    pub conditions: Vec<Value>,
}

/// `status.loadBalancer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct LoadBalancer {
    pub ingress: Vec<Ingress>,
}

/// One address of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct Ingress {
    pub ip: String,
    pub hostname: String,
    pub ip_mode: Option<String>,
    pub ports: Vec<Value>,
}

impl Service {
    /// Reports whether the Service is headless (`clusterIP: None`).
    pub fn is_headless(&self) -> bool {
        matches!(self.spec.cluster_ips.as_slice(), [only] if only == "None")
    }

    /// Reports whether its type is `ExternalName`: an alias for a DNS name.
    pub fn is_external_name(&self) -> bool {
        self.spec.kind == "ExternalName"
    }

    /// Reports whether its type is `LoadBalancer`.
    pub fn is_load_balancer(&self) -> bool {
        self.spec.kind == "LoadBalancer"
    }

    /// Reports whether its type has node ports: `NodePort` or `LoadBalancer`.
    pub fn has_node_ports(&self) -> bool {
        self.is_load_balancer() || self.spec.kind == "NodePort"
    }

    /// Reports whether clients outside the cluster can reach it (node ports or external IPs).
    pub fn is_externally_accessible(&self) -> bool {
        self.has_node_ports()
            || (self.spec.kind == "ClusterIP" && !self.spec.external_ips.is_empty())
    }

    /// Reports whether load balancers query each node for its health: type `LoadBalancer` and external policy `Local`.
    pub fn needs_health_check(&self) -> bool {
        self.is_load_balancer() && self.spec.external_traffic_policy == "Local"
    }

    pub(crate) fn policy(&self) -> &str {
        self.spec.ip_family_policy.as_deref().unwrap_or_default()
    }

    pub(crate) fn has_selector(&self) -> bool {
        !self.spec.selector.is_empty()
    }
}
