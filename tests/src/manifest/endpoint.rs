//! One endpoint of a Service: its addresses, its node and its conditions.

use serde_json::{Value, json};

use crate::topology::{Addresses, Family, Node, Pod};

/// One endpoint of a Service.
#[derive(Debug, Clone)]
pub struct Endpoint {
    addresses: Addresses,
    node: String,
    ready: bool,
    serving: bool,
    terminating: bool,
}

impl Endpoint {
    /// A ready endpoint: a pod.
    pub fn pod(pod: &Pod) -> Self {
        Self::at(pod.addresses(), pod.node())
    }

    /// A ready endpoint on the host network of a node.
    pub fn host(node: &Node) -> Self {
        Self::at(node.host().addresses(), node.name())
    }

    /// A ready endpoint with these addresses, on the node of this name.
    pub fn at(addresses: Addresses, node: &str) -> Self {
        Self { addresses, node: node.to_owned(), ready: true, serving: true, terminating: false }
    }

    /// Makes it a terminating endpoint: not ready, and serving or not.
    #[must_use]
    pub const fn terminating(mut self, serving: bool) -> Self {
        self.ready = false;
        self.serving = serving;
        self.terminating = true;
        self
    }

    /// Makes it an endpoint whose readiness probe fails.
    #[must_use]
    pub const fn not_ready(mut self) -> Self {
        self.ready = false;
        self.serving = false;
        self
    }

    /// Makes it an endpoint that is serving but not ready, which gets no traffic.
    #[must_use]
    pub const fn not_ready_but_serving(mut self) -> Self {
        self.ready = false;
        self
    }

    pub(super) fn object(&self, family: Family) -> Value {
        json!({
            "addresses": [self.addresses.of(family)],
            "conditions": {
                "ready": self.ready, "serving": self.serving, "terminating": self.terminating,
            },
            "nodeName": self.node,
        })
    }
}
