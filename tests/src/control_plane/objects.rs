//! Node and Pod objects, with the status that kubelets would report.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::ControlPlane;

/// A node as its kubelet would report it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Node<'a> {
    /// The name, which is also the node name of the agent.
    pub name: &'a str,
    /// The internal addresses, one for each family.
    pub addresses: &'a [&'a str],
    /// The pod ranges, one for each family; may be empty.
    pub pod_cidrs: &'a [&'a str],
    /// The labels, such as `topology.kubernetes.io/zone`.
    pub labels: &'a [(&'a str, &'a str)],
}

/// A pod as its kubelet would report it.
#[derive(Debug, Clone, Copy)]
pub struct Pod<'a> {
    pub name: &'a str,
    /// The namespace, which must exist.
    pub namespace: &'a str,
    /// The name of the node that it runs on.
    pub node: &'a str,
    /// The addresses, one for each family.
    pub addresses: &'a [&'a str],
    /// The labels, by which a Service selects it.
    pub labels: &'a [(&'a str, &'a str)],
    /// The ports with names, for Services with a named `targetPort`.
    pub ports: &'a [(&'a str, u16)],
    /// Whether its readiness probe succeeds. Applying it again with another value changes the condition.
    pub ready: bool,
    /// Whether it has the addresses of its node (`spec.hostNetwork`).
    pub host_network: bool,
}

impl Default for Pod<'_> {
    fn default() -> Self {
        Self {
            name: "",
            namespace: "default",
            node: "",
            addresses: &[],
            labels: &[],
            ports: &[],
            ready: true,
            host_network: false,
        }
    }
}

impl Node<'_> {
    fn object(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.name, "labels": pairs(self.labels)},
            "spec": {"podCIDR": self.pod_cidrs.first(), "podCIDRs": self.pod_cidrs},
        })
    }

    fn status(&self) -> Value {
        let addresses: Vec<Value> = self
            .addresses
            .iter()
            .map(|address| json!({"type": "InternalIP", "address": address}))
            .collect();
        json!({
            "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]},
        })
    }
}

impl Pod<'_> {
    fn object(&self) -> Value {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|(name, port)| json!({"name": name, "containerPort": port}))
            .collect();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": self.name, "namespace": self.namespace, "labels": pairs(self.labels),
            },
            "spec": {
                "nodeName": self.node,
                "hostNetwork": self.host_network,
                "containers": [{"name": "main", "image": "none", "ports": ports}],
            },
        })
    }

    fn status(&self) -> Value {
        let addresses: Vec<Value> = self.addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let ready = if self.ready { "True" } else { "False" };
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "status": {
                "phase": "Running",
                "podIP": self.addresses.first(),
                "podIPs": addresses,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        })
    }
}

impl ControlPlane {
    /// Creates or changes a node.
    pub fn node(&self, node: &Node<'_>) -> Result<()> {
        self.client().apply(&node.object().to_string())?;
        // A server-side apply refuses two addresses of one type; a patch accepts them.
        let status = node.status().to_string();
        let patch = ["patch", "node", node.name, "--subresource=status", "--type=merge", "-p"];
        self.kubectl(&[&patch[..], &[&status]].concat()).map(drop)
    }

    /// Creates or changes a pod.
    pub fn pod(&self, pod: &Pod<'_>) -> Result<()> {
        self.pods(&[*pod])
    }

    /// Creates or changes many pods with two calls of kubectl.
    pub fn pods(&self, pods: &[Pod<'_>]) -> Result<()> {
        self.client().apply(&list(pods.iter().map(Pod::object)))?;
        self.client().apply_status(&list(pods.iter().map(Pod::status)))
    }

    /// Deletes a pod at once. `kubectl delete --wait=false` would leave it terminating for ever, because no kubelet
    /// confirms its end; that state is used to test terminating endpoints.
    pub fn remove_pod(&self, namespace: &str, name: &str) -> Result<()> {
        self.kubectl(&["delete", "pod", "-n", namespace, name, "--force", "--grace-period=0"])
            .map(drop)
    }

    /// Returns the ready addresses of a Service from its `EndpointSlice` objects, sorted.
    pub fn ready_addresses(&self, namespace: &str, service: &str) -> Result<Vec<String>> {
        let label = format!("kubernetes.io/service-name={service}");
        let said =
            self.kubectl(&["get", "endpointslices", "-n", namespace, "-l", &label, "-o", "json"])?;
        let slices: Value = serde_json::from_str(&said).context("kubectl printed no JSON")?;
        let mut addresses: Vec<String> = elements(&slices["items"])
            .flat_map(|slice| elements(&slice["endpoints"]))
            .filter(|endpoint| endpoint["conditions"]["ready"] == true)
            .flat_map(|endpoint| elements(&endpoint["addresses"]))
            .filter_map(|address| address.as_str().map(str::to_owned))
            .collect();
        addresses.sort();
        Ok(addresses)
    }
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn pairs<'a>(labels: &[(&'a str, &'a str)]) -> BTreeMap<&'a str, &'a str> {
    labels.iter().copied().collect()
}

fn list(items: impl Iterator<Item = Value>) -> String {
    let items: Vec<Value> = items.collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}
