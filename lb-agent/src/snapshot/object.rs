//! The API objects as they arrive, with only the fields that a service proxy reads.
//!
//! Everything else (`managedFields`, most labels, other timestamps) is skipped unparsed, so that no content there can
//! make an object unreadable. For the same reason times are kept as text.

use serde::{Deserialize, Deserializer};

/// Label with which a Service requests another proxy than the cluster's default.
pub const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Label that names the Service of a slice.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Label of the slices of a headless Service. No proxy serves these, whatever the label's value (contract 1.1).
///
/// A Service with this label and an address is served, as kube-proxy does since 1.36.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Annotation with the time of the change that led to a slice, for the latency metric of contract 7.
#[cfg(test)]
pub(super) const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Reads `null` like a missing field, as the API server does.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Declares a struct whose fields may be missing or `null`.
macro_rules! fields {
    ($($(#[$outer:meta])* $name:ident { $($(#[serde($($rename:tt)*)])? $field:ident: $type:ty,)* })*) => { $(
        $(#[$outer])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub(crate) struct $name {
            $(
                #[serde(default, deserialize_with = "nullable" $(, $($rename)*)?)]
                pub(crate) $field: $type,
            )*
        }
    )* };
}

fields! {
    Metadata {
        name: String,
        namespace: String,
        uid: String,
        resource_version: String,
        creation_timestamp: Option<String>,
        deletion_timestamp: Option<String>,
        labels: Labels,
        annotations: Annotations,
    }
    /// The labels of `metadata.labels` in use.
    Labels {
        #[serde(rename = "service.kubernetes.io/service-proxy-name")] proxy_name: Option<String>,
        #[serde(rename = "kubernetes.io/service-name")] service_name: Option<String>,
        #[serde(rename = "service.kubernetes.io/headless")] headless: Option<String>,
        #[serde(rename = "topology.kubernetes.io/zone")] zone: Option<String>,
    }
    /// The annotations of `metadata.annotations` in use.
    Annotations {
        #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")] trigger_time: Option<String>,
    }
    /// `v1/Service`.
    Service {
        metadata: Metadata,
        spec: ServiceBody,
        status: ServiceStatus,
    }
    /// `spec` of a Service.
    ServiceBody {
        #[serde(rename = "type")] kind: Option<String>,
        #[serde(rename = "clusterIP")] cluster_ip: Option<String>,
        #[serde(rename = "clusterIPs")] cluster_ips: Vec<String>,
        ip_families: Vec<String>,
        ports: Vec<ServicePort>,
        #[serde(rename = "externalIPs")] external_ips: Vec<String>,
        load_balancer_source_ranges: Vec<String>,
        internal_traffic_policy: Option<String>,
        external_traffic_policy: Option<String>,
        session_affinity: Option<String>,
        session_affinity_config: AffinityConfig,
        health_check_node_port: Option<i32>,
    }
    /// An entry of `spec.ports`.
    ServicePort {
        name: Option<String>,
        protocol: Option<String>,
        port: i32,
        node_port: Option<i32>,
    }
    /// `spec.sessionAffinityConfig`.
    AffinityConfig {
        #[serde(rename = "clientIP")] client_ip: ClientIp,
    }
    /// `spec.sessionAffinityConfig.clientIP`.
    ClientIp {
        timeout_seconds: Option<i32>,
    }
    ServiceStatus {
        load_balancer: LoadBalancer,
    }
    /// `status.loadBalancer`.
    LoadBalancer {
        ingress: Vec<Ingress>,
    }
    /// An entry of `status.loadBalancer.ingress`.
    Ingress {
        ip: Option<String>,
        ip_mode: Option<String>,
    }
    /// `discovery.k8s.io/v1/EndpointSlice`.
    EndpointSlice {
        metadata: Metadata,
        address_type: String,
        ports: Vec<EndpointPort>,
        endpoints: Vec<Endpoint>,
    }
    /// A port of a slice.
    EndpointPort {
        name: Option<String>,
        protocol: Option<String>,
        port: Option<i32>,
    }
    /// An endpoint of a slice.
    Endpoint {
        addresses: Vec<String>,
        conditions: Conditions,
        node_name: Option<String>,
        hints: EndpointHints,
    }
    /// `conditions` of an endpoint.
    Conditions {
        ready: Option<bool>,
        serving: Option<bool>,
        terminating: Option<bool>,
    }
    EndpointHints {
        for_zones: Vec<Named>,
        for_nodes: Vec<Named>,
    }
    /// A zone or node, by name.
    Named {
        name: String,
    }
    /// `v1/Node`.
    Node {
        metadata: Metadata,
        spec: NodeBody,
        status: NodeStatus,
    }
    /// `spec` of a Node.
    NodeBody {
        #[serde(rename = "podCIDR")] pod_cidr: Option<String>,
        #[serde(rename = "podCIDRs")] pod_cidrs: Vec<String>,
        taints: Vec<Taint>,
    }
    /// A taint of a Node.
    Taint {
        key: String,
    }
    NodeStatus {
        addresses: Vec<NodeAddress>,
    }
    NodeAddress {
        #[serde(rename = "type")] kind: String,
        address: String,
    }
    /// `networking.k8s.io/v1/ServiceCIDR`.
    ServiceCidr {
        metadata: Metadata,
        spec: ServiceCidrBody,
    }
    /// `spec` of a `ServiceCIDR`.
    ServiceCidrBody {
        cidrs: Vec<String>,
    }
    /// Any object, by its identity alone: it was deleted, or cannot be read as a whole.
    ObjectIdentity {
        metadata: Identifiers,
    }
    /// The fields of `metadata` that identify an object.
    Identifiers {
        name: String,
        namespace: String,
        resource_version: String,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_fields_may_have_any_value() {
        let text = r#"{ "metadata": { "name": "web", "creationTimestamp": "10000-01-01T00:00:00Z",
            "labels": { "a": 7 }, "annotations": null, "managedFields": [{ "time": "10000-01-01T00:00:00Z" }, 3] },
            "spec": { "ports": [{ "port": 80, "targetPort": {} }], "clusterIPs": null, "selector": 9 } }"#;
        let object: Service = serde_json::from_str(text).expect("a Service");
        assert_eq!((&*object.metadata.name, object.spec.ports[0].port), ("web", 80));
        let slice: EndpointSlice =
            serde_json::from_str(r#"{ "endpoints": null, "ports": null }"#).expect("a slice");
        assert!(slice.endpoints.is_empty());
    }

    #[test]
    fn identity_of_an_unreadable_object_can_be_read() {
        let text = r#"{ "metadata": { "name": "web", "namespace": "shop", "labels": 1 }, "spec": { "ports": "all" } }"#;
        assert!(serde_json::from_str::<Service>(text).is_err());
        let identity: ObjectIdentity = serde_json::from_str(text).expect("an identity");
        assert_eq!((&*identity.metadata.namespace, &*identity.metadata.name), ("shop", "web"));
    }
}
