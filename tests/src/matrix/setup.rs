//! The choices that make a world: the proxy, its settings, and the configuration that both proxies read.

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

/// Documented settings of ours, alone and together: fields of `AgentConfiguration`.
///
/// With each of them every question is answered as without.
/// [`Proxy`], [`Detector`] and `nodePortAddresses` stand for others.
pub const SETTINGS: [(Proxy, &str); 10] = [
    (Proxy::Ours, "socketLB: all"),
    (Proxy::Ours, "socketLB: 'off'"),
    (Proxy::Ours, "shortCuts: 'on'"),
    (Proxy::Ours, "acceleration: native"),
    (Proxy::Ours, "localhostNodePorts: true\necho: reject\nacceleration: 'off'"),
    (Proxy::Ours, "externalDevices: [eth0]\npodDevices: [veth*]"),
    (Proxy::Ours, "socketLB: 'off'\nacceleration: native\nshortCuts: 'on'"),
    (Proxy::OursMasquerading, "socketLB: all"),
    (Proxy::OursMasquerading, "socketLB: 'off'\nshortCuts: 'on'"),
    (Proxy::OursMasquerading, "acceleration: native"),
];

/// The line that makes XDP serve virtual interfaces.
pub const NATIVE: &str = "acceleration: native";

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
    /// More fields of `AgentConfiguration`, one a line.
    pub setting: &'static str,
}

impl Setup {
    /// The usual one.
    pub const fn new(proxy: Proxy, detector: Detector) -> Self {
        let node_port_addresses = Vec::new();
        let (shape, setting) = (Shape::Routed, "");
        Self { proxy, detector, masquerade_all: false, shape, node_port_addresses, setting }
    }

    /// Ours with one of [`SETTINGS`].
    pub fn with(setting: (Proxy, &'static str), detector: Detector) -> Self {
        Self { setting: setting.1, ..Self::new(setting.0, detector) }
    }

    /// Whether a line is among its fields.
    pub fn has(&self, line: &str) -> bool {
        self.setting.lines().any(|set| set == line)
    }

    /// The document `AgentConfiguration`.
    pub(super) fn agent(&self) -> String {
        let masquerade = if self.proxy == Proxy::Ours { "edge" } else { "kube-proxy" };
        let setting = self.setting;
        format!(
            "apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\nmasquerade: {masquerade}\n{setting}"
        )
    }

    /// The proxy and its settings in one line.
    pub fn name(&self) -> String {
        let proxy = match self.proxy {
            Proxy::KubeProxy(mode) => return format!("kube-proxy {mode:?}"),
            Proxy::Ours if self.setting.is_empty() => "default",
            Proxy::Ours => "",
            Proxy::OursMasquerading => "masquerade: kube-proxy",
        };
        let lines = [proxy].into_iter().chain(self.setting.lines());
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
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
