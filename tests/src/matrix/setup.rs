//! The parts of a world: the proxy, and the configuration that both kinds of proxy read.

use serde_json::{Value, json};

use crate::control_plane::kube_proxy::Mode;
use crate::topology::Shape;
use crate::topology::address::{CLUSTER_CIDR, POD_RANGES};

/// How pods are told from others (contract 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detector {
    /// By the range of all pods.
    ClusterCidr,
    /// By the range of all pods of IPv4; of IPv6 none is known.
    ClusterCidr4,
    /// By the ranges of the node's pods.
    NodeCidr,
    /// By the device: a prefix of its name where pods are routed, else their bridge.
    Device,
    /// Not at all.
    None,
}

/// The proxy that serves the Services of `node-a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// The real kube-proxy.
    KubeProxy(Mode),
    /// Ours, as it is when nobody says anything.
    Ours,
    /// Ours, with `masquerade: kube-proxy`.
    OursMasquerading,
}

/// The choices that make a world.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The proxy that serves.
    pub proxy: Proxy,
    /// How pods are told from others.
    pub detector: Detector,
    pub masquerade_all: bool,
    /// How pods hang on their nodes.
    pub shape: Shape,
    /// `nodePortAddresses`, as written.
    pub node_port_addresses: Vec<String>,
}

impl Setup {
    /// The usual one.
    pub const fn new(proxy: Proxy, detector: Detector) -> Self {
        let node_port_addresses = Vec::new();
        Self { proxy, detector, masquerade_all: false, shape: Shape::Routed, node_port_addresses }
    }

    /// Whether it is the real kube-proxy.
    pub const fn is_kube_proxy(&self) -> bool {
        matches!(self.proxy, Proxy::KubeProxy(_))
    }

    /// The fields of the configuration file that both proxies read.
    pub(super) fn fields(&self) -> Value {
        let sync = json!({"masqueradeAll": self.masquerade_all});
        let mut fields = json!({"nftables": sync, "iptables": sync});
        if !self.node_port_addresses.is_empty() {
            fields["nodePortAddresses"] = json!(self.node_port_addresses);
        }
        match self.detector {
            Detector::ClusterCidr => fields["clusterCIDR"] = json!(CLUSTER_CIDR),
            Detector::ClusterCidr4 => fields["clusterCIDR"] = json!(POD_RANGES[0]),
            Detector::NodeCidr => fields["detectLocalMode"] = json!("NodeCIDR"),
            Detector::Device => {
                let (mode, field, value) = match self.shape {
                    Shape::Routed => ("InterfaceNamePrefix", "interfaceNamePrefix", "veth"),
                    Shape::Bridged => ("BridgeInterface", "bridgeInterface", "cni0"),
                };
                fields["detectLocalMode"] = json!(mode);
                fields["detectLocal"] = json!({field: value});
            }
            Detector::None => {}
        }
        fields
    }
}
