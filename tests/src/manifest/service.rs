//! One Service with its endpoints, built step by step.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use serde_json::{Value, json};

use super::Endpoint;
use crate::topology::{Addresses, Family, Pod, cluster_ip};
use crate::traffic::Protocol;

/// A Service of both families with its `EndpointSlice`s.
#[derive(Debug, Clone)]
pub struct Service {
    pub(super) name: String,
    cluster: Addresses,
    ports: Vec<Port>,
    endpoints: Vec<Endpoint>,
    spec: Value,
    ingress: Vec<IpAddr>,
    created: Option<u8>,
}

/// One port of a Service, with one transport.
#[derive(Debug, Clone)]
struct Port {
    protocol: Protocol,
    number: u16,
    target: u16,
    outside: Option<u16>,
}

impl Service {
    /// A Service with the `ClusterIP`s number `index`, without a port yet.
    pub fn new(name: &str, index: u8) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            cluster: cluster_ip(index)?,
            ports: Vec::new(),
            endpoints: Vec::new(),
            spec: json!({"type": "ClusterIP", "selector": {"app": name}}),
            ingress: Vec::new(),
            created: None,
        })
    }

    /// Sets its creation time to this second of a minute long ago; by default it has no creation time.
    #[must_use]
    pub const fn created(mut self, second: u8) -> Self {
        self.created = Some(second);
        self
    }

    /// Adds a port for both transports, with the target port `target` of the endpoints.
    #[must_use]
    pub fn port(mut self, port: u16, target: u16) -> Self {
        let both =
            Protocol::ALL.map(|protocol| Port { protocol, number: port, target, outside: None });
        self.ports.extend(both);
        self
    }

    /// Adds a `NodePort` to the last added port, for both transports; 0 for one that the API server chooses.
    #[must_use]
    pub fn node_port(mut self, number: u16) -> Self {
        if let Some(port) = self.ports.last().map(|port| port.number) {
            let ports = self.ports.iter_mut().filter(|other| other.number == port);
            ports.for_each(|port| port.outside = Some(number));
        }
        if self.spec["type"] == "ClusterIP" {
            self.spec["type"] = json!("NodePort");
        }
        self
    }

    /// Changes the target port of all ports.
    #[must_use]
    pub fn retarget(mut self, target: u16) -> Self {
        self.ports.iter_mut().for_each(|port| port.target = target);
        self
    }

    /// Replaces the endpoints.
    #[must_use]
    pub fn endpoints(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        self.endpoints = endpoints.into_iter().collect();
        self
    }

    /// Replaces the endpoints by pods.
    #[must_use]
    pub fn pods(self, pods: &[&Pod]) -> Self {
        self.endpoints(pods.iter().map(|pod| Endpoint::pod(pod)))
    }

    /// Sets `ClientIP` affinity: a client stays with its endpoint for this number of seconds after its last flow began.
    #[must_use]
    pub fn affinity(mut self, seconds: u32) -> Self {
        self.spec["sessionAffinity"] = json!("ClientIP");
        self.spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
        self
    }

    /// Sets `externalTrafficPolicy: Local`.
    #[must_use]
    pub fn external_policy_local(mut self) -> Self {
        self.spec["externalTrafficPolicy"] = json!("Local");
        self
    }

    /// Sets `internalTrafficPolicy: Local`.
    #[must_use]
    pub fn internal_policy_local(mut self) -> Self {
        self.spec["internalTrafficPolicy"] = json!("Local");
        self
    }

    /// Makes it a load balancer with these addresses, which accepts clients of `ranges` (all clients if `ranges` is
    /// empty).
    #[must_use]
    pub fn load_balancer(mut self, addresses: &[IpAddr], ranges: &[&str]) -> Self {
        self.spec["type"] = json!("LoadBalancer");
        if !ranges.is_empty() {
            self.spec["loadBalancerSourceRanges"] = json!(ranges);
        }
        self.ingress = addresses.to_vec();
        self
    }

    /// Adds `externalIPs`, which other routers lead to the nodes.
    #[must_use]
    pub fn external_ips(mut self, addresses: &[IpAddr]) -> Self {
        self.spec["externalIPs"] = json!(addresses);
        self
    }

    /// Returns its `ClusterIP`s.
    pub const fn cluster(&self) -> Addresses {
        self.cluster
    }

    /// Returns its first frontend of a family: `ClusterIP` and first port.
    pub fn frontend(&self, family: Family) -> SocketAddr {
        self.cluster.socket(family, self.ports.first().map_or(0, |port| port.number))
    }

    /// Returns the Service and its slices.
    pub fn objects(&self) -> Vec<Value> {
        let slices = Family::ALL.into_iter().map(|family| self.slice(family));
        std::iter::once(self.object()).chain(slices).collect()
    }

    fn object(&self) -> Value {
        let mut spec = self.spec.clone();
        let ports = self.ports.iter().map(|port| {
            let mut object = json!({
                "name": port.name(), "protocol": port.protocol.name(),
                "port": port.number, "targetPort": port.target,
            });
            if let Some(number) = port.outside {
                object["nodePort"] = json!(number);
            }
            object
        });
        spec["ports"] = ports.collect();
        spec["clusterIP"] = json!(self.cluster.v4);
        spec["clusterIPs"] = json!(self.cluster.both());
        spec["ipFamilies"] = json!(Family::ALL.map(Family::name));
        spec["ipFamilyPolicy"] = json!("RequireDualStack");
        let ingress: Vec<Value> = self.ingress.iter().map(|ip| json!({"ip": ip})).collect();
        let created = self.created.map(|second| format!("2024-01-01T00:00:{second:02}Z"));
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": self.name, "namespace": "default", "creationTimestamp": created,
            },
            "spec": spec,
            "status": {"loadBalancer": {"ingress": ingress}},
        })
    }

    fn slice(&self, family: Family) -> Value {
        let ports = self.ports.iter().map(|port| {
            json!({"name": port.name(), "protocol": port.protocol.name(), "port": port.target})
        });
        let ports: Vec<Value> = ports.collect();
        let endpoints: Vec<Value> =
            self.endpoints.iter().map(|endpoint| endpoint.object(family)).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{}", self.name, family.name().to_lowercase()),
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "addressType": family.name(),
            "ports": ports,
            "endpoints": endpoints,
        })
    }
}

impl Port {
    /// The port's name, derived from number and transport, because the API server requires names for several ports.
    fn name(&self) -> String {
        format!("{}-{}", self.protocol.name().to_lowercase(), self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_a_service_and_a_slice_for_each_family() {
        let service = Service::new("web", 10).unwrap().port(80, 8080).node_port(30_080);
        let [service, slice4, slice6] = service.affinity(60).objects().try_into().unwrap();
        assert_eq!(service["spec"]["clusterIP"], "10.96.0.10");
        assert_eq!(service["spec"]["type"], "NodePort");
        assert_eq!(service["spec"]["ports"][1]["protocol"], "UDP");
        assert_eq!(service["spec"]["ports"][1]["nodePort"], 30_080);
        assert_eq!(slice4["ports"][0]["name"], service["spec"]["ports"][0]["name"]);
        assert_eq!(slice6["addressType"], "IPv6");
    }
}
