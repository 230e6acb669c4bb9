//! Manifests of Services, their endpoints and nodes: the cluster as a test declares it.
//!
//! The same objects go into a directory for `lb-agent run --manifests`, or to a real API server. They are written as
//! JSON, which is YAML, and renamed into place, so that no reader sees half a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::topology::Node;

mod endpoint;
mod service;

pub use endpoint::Endpoint;
pub use service::Service;

/// A directory of manifests that agents watch.
#[derive(Debug, Clone)]
pub struct Manifests {
    directory: PathBuf,
    staging: PathBuf,
}

impl Manifests {
    /// Makes an empty directory of manifests below `parent`.
    pub fn new(parent: &Path) -> Result<Self> {
        let (directory, staging) = (parent.join("manifests"), parent.join("staging"));
        for path in [&directory, &staging] {
            fs::create_dir_all(path).with_context(|| format!("directory {}", path.display()))?;
        }
        Ok(Self { directory, staging })
    }

    /// Returns the directory of the manifests.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates or changes a Service and its `EndpointSlice`s, all in one file.
    pub fn apply(&self, service: &Service) -> Result<()> {
        self.write(&format!("service-{}", service.name), &service.objects())
    }

    /// Deletes a Service and its `EndpointSlice`s.
    pub fn delete(&self, service: &Service) -> Result<()> {
        let file = self.directory.join(format!("service-{}.yaml", service.name));
        fs::remove_file(&file).with_context(|| format!("manifest {}", file.display()))
    }

    /// Deletes the Node object of a node.
    pub fn delete_node(&self, node: &Node) -> Result<()> {
        let file = self.directory.join(format!("{}.yaml", node.name()));
        fs::remove_file(&file).with_context(|| format!("manifest {}", file.display()))
    }

    /// Creates or changes the Node object of a node.
    pub fn node(&self, node: &Node) -> Result<()> {
        self.write(node.name(), &[node_object(node)])
    }

    /// Writes objects into one file.
    pub fn write(&self, name: &str, objects: &[Value]) -> Result<()> {
        let documents: Vec<String> =
            objects.iter().map(serde_json::to_string_pretty).collect::<Result<_, _>>()?;
        self.write_text(name, &documents.join("\n---\n"))
    }

    /// Writes any text as a manifest, which may be invalid.
    pub fn write_text(&self, name: &str, text: &str) -> Result<()> {
        let staged = self.staging.join(name);
        let file = self.directory.join(format!("{name}.yaml"));
        fs::write(&staged, text)?;
        fs::rename(&staged, &file).with_context(|| format!("manifest {}", file.display()))
    }
}

/// Returns the Node object of a node, as a kubelet would write it.
pub fn node_object(node: &Node) -> Value {
    let addresses = node.addresses().both();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name(), "labels": {"kubernetes.io/hostname": node.name()}},
        "spec": {"podCIDR": node.pod_ranges()[0], "podCIDRs": node.pod_ranges()},
        "status": {
            "addresses": addresses.map(|ip| json!({"type": "InternalIP", "address": ip})),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}
