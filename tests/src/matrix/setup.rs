//! The choices that make a world: the proxy, its settings, and the configuration that both proxies read.

use serde_json::{Value, json};

use crate::control_plane::kube_proxy::Mode;
use crate::topology::Shape;
use crate::topology::address::{CLUSTER_CIDR, POD_RANGES};

/// The way in which a proxy detects local pods (`detectLocalMode`, contract 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detector {
    /// By `clusterCIDR`, the range of all pods.
    ClusterCidr,
    /// By `clusterCIDR` with an IPv4 range only; no IPv6 client counts as a pod.
    ClusterCidr4,
    /// By the pod ranges of the Node object.
    NodeCidr,
    /// By the interface: a prefix of its name with routed pods, else the bridge.
    Device,
    /// No detection: no client counts as a pod.
    None,
}

/// The proxy that serves the Services on `node-a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// The real kube-proxy.
    KubeProxy(Mode),
    /// Our agent with its default settings.
    Ours,
    /// Our agent with `masquerade: kube-proxy`.
    OursMasquerading,
}

/// Documented settings of our agent, alone and combined: fields of `AgentConfiguration`.
///
/// With each of them, every question must have the same outcome as without. [`Proxy`], [`Detector`] and
/// `nodePortAddresses` cover the other settings.
pub const SETTINGS: [(Proxy, &str); 10] = [
    (Proxy::Ours, "socketLB: all"),
    (Proxy::Ours, "socketLB: 'off'"),
    (Proxy::Ours, "bypass: 'on'"),
    (Proxy::Ours, "acceleration: native"),
    (Proxy::Ours, "localhostNodePorts: true\necho: reject\nacceleration: 'off'"),
    (Proxy::Ours, "externalDevices: [eth0]\npodDevices: [veth*]"),
    (Proxy::Ours, "socketLB: 'off'\nacceleration: native\nbypass: 'on'"),
    (Proxy::OursMasquerading, "socketLB: all"),
    (Proxy::OursMasquerading, "socketLB: 'off'\nbypass: 'on'"),
    (Proxy::OursMasquerading, "acceleration: native"),
];

/// The line that enables XDP on virtual interfaces.
pub const NATIVE: &str = "acceleration: native";

/// The choices that make a world.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The proxy that serves.
    pub proxy: Proxy,
    /// The detection of local pods.
    pub detector: Detector,
    pub masquerade_all: bool,
    /// The connection of pods to their nodes.
    pub shape: Shape,
    /// The value of `nodePortAddresses`.
    pub node_port_addresses: Vec<String>,
    /// More fields of `AgentConfiguration`, one on each line.
    pub setting: &'static str,
}

impl Setup {
    /// A setup with routed pods and default settings.
    pub const fn new(proxy: Proxy, detector: Detector) -> Self {
        let node_port_addresses = Vec::new();
        let (shape, setting) = (Shape::Routed, "");
        Self { proxy, detector, masquerade_all: false, shape, node_port_addresses, setting }
    }

    /// A setup of our agent with one of [`SETTINGS`].
    pub fn with(setting: (Proxy, &'static str), detector: Detector) -> Self {
        Self { setting: setting.1, ..Self::new(setting.0, detector) }
    }

    /// Whether a line is among the fields of `AgentConfiguration`.
    pub fn has(&self, line: &str) -> bool {
        self.setting.lines().any(|set| set == line)
    }

    /// The document `AgentConfiguration` for our agent.
    pub(super) fn agent(&self) -> String {
        let masquerade = if self.proxy == Proxy::Ours { "edge" } else { "kube-proxy" };
        let setting = self.setting;
        format!(
            "apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\nmasquerade: {masquerade}\n{setting}"
        )
    }

    /// Proxy and settings as one line of text.
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

    /// Whether the proxy is the real kube-proxy.
    pub const fn is_kube_proxy(&self) -> bool {
        matches!(self.proxy, Proxy::KubeProxy(_))
    }

    /// The fields of `KubeProxyConfiguration`, which both proxies read.
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
