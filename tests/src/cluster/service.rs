//! Services whose addresses and port numbers the API server chooses, and the values that it chose.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Cluster;
use crate::control_plane;
use crate::rig::TARGET;
use crate::topology::{Addresses, Family, Node, Pod};
use crate::traffic::Protocol;

/// The port of every Service here, for both transports.
const PORT: u16 = 80;

/// A Service with the addresses and ports that the API server chose for it.
#[derive(Debug, Clone)]
pub struct Published {
    /// The name, in the namespace `default`.
    pub name: String,
    cluster_ips: Addresses,
    node_ports: BTreeMap<Protocol, u16>,
}

impl Published {
    /// Returns the `ClusterIP` of a family with the Service's port.
    pub const fn cluster_ip(&self, family: Family) -> SocketAddr {
        self.cluster_ips.socket(family, PORT)
    }

    /// Returns the `NodePort` of a transport on the address of a node.
    pub fn node_port(&self, node: &Node, family: Family, protocol: Protocol) -> Result<SocketAddr> {
        let port = self.node_ports.get(&protocol);
        let port = port.with_context(|| format!("{} has no node port of {protocol}", self.name))?;
        Ok(node.addresses().socket(family, *port))
    }
}

impl Cluster {
    /// Creates a Service, with or without a selector `app: NAME`, and returns the values that the API server chose.
    pub fn publish(&self, name: &str, has_selector: bool) -> Result<Published> {
        self.control_plane.apply(&object(name, has_selector).to_string())?;
        let said = self.control_plane.kubectl(&["get", "service", name, "-o", "json"])?;
        let service: Value = serde_json::from_str(&said).context("kubectl printed no JSON")?;
        read_back(name, &service["spec"]).with_context(|| format!("service {name}: {said}"))
    }

    /// Writes the slices of a Service without selector, with these pods, all ready.
    pub fn endpoints(&self, service: &Published, pods: &[&Pod]) -> Result<()> {
        self.control_plane.apply(&slices_of(service, pods))
    }

    /// Creates the Services `web` and `other`, each with one pod of each node as backends, and waits until both are
    /// served.
    pub fn publish_pair(&self) -> Result<[Published; 2]> {
        let services = [self.publish("web", false)?, self.publish("other", false)?];
        for service in &services {
            self.endpoints(service, &[self.rig.pod(0, 1)?, self.rig.pod(1, 1)?])?;
            self.until_answered_by(service, &["pod-a2", "pod-b2"])?;
        }
        Ok(services)
    }

    /// Creates or changes the Pod object of a pod of the topology, with the label `app: APP`.
    pub fn pod_object(&self, app: &str, pod: &Pod, ready: bool) -> Result<()> {
        let addresses = pod.addresses().both().map(|address| address.to_string());
        self.control_plane.pod(&control_plane::Pod {
            name: pod.name(),
            node: pod.node(),
            addresses: &addresses.each_ref().map(String::as_str),
            labels: &[("app", app)],
            ready,
            ..control_plane::Pod::default()
        })
    }
}

/// Returns a Service of both families and both transports without explicit addresses and port numbers.
fn object(name: &str, has_selector: bool) -> Value {
    let port = |protocol: Protocol| {
        json!({
            "name": protocol.name().to_lowercase(),
            "protocol": protocol.name(), "port": PORT, "targetPort": TARGET,
        })
    };
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "type": "NodePort",
            "ipFamilyPolicy": "RequireDualStack",
            "ports": Protocol::ALL.map(port),
        },
    });
    if has_selector {
        service["spec"]["selector"] = json!({"app": name});
    }
    service
}

/// Returns the slices of a Service without selector as one YAML text, with these pods, all ready.
pub fn slices_of(service: &Published, pods: &[&Pod]) -> String {
    let [v4, v6] = slices(&service.name, pods);
    format!("{v4}\n---\n{v6}")
}

/// Returns slices as a client writes them without the controller, one for each family.
fn slices(service: &str, pods: &[&Pod]) -> [Value; 2] {
    let port = |protocol: Protocol| {
        json!({
            "name": protocol.name().to_lowercase(), "protocol": protocol.name(), "port": TARGET,
        })
    };
    Family::ALL.map(|family| {
        let endpoint = |pod: &&Pod| {
            json!({
                "addresses": [pod.ip(family)],
                "conditions": {"ready": true},
                "nodeName": pod.node(),
            })
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-{}", family.name().to_lowercase()),
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": family.name(),
            "ports": Protocol::ALL.map(port),
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        })
    })
}

fn read_back(name: &str, spec: &Value) -> Result<Published> {
    let addresses: Vec<&str> =
        spec["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (v4, v6): (Vec<&str>, Vec<&str>) =
        addresses.iter().partition(|address| !address.contains(':'));
    ensure!(v4.len() == 1 && v6.len() == 1, "clusterIPs are not one of each family");
    let cluster_ips = Addresses::parse(&v4.concat(), &v6.concat())?;
    let ports = spec["ports"].as_array().context("no ports")?;
    let mut node_ports = BTreeMap::new();
    for protocol in Protocol::ALL {
        let port = ports.iter().find(|port| port["protocol"] == protocol.name());
        let number = port.and_then(|port| port["nodePort"].as_u64()).context("no nodePort")?;
        node_ports.insert(protocol, u16::try_from(number)?);
    }
    Ok(Published { name: name.to_owned(), cluster_ips, node_ports })
}
