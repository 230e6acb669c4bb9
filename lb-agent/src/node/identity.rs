//! The facts about this node that do not come from its links: from the configuration, and from the Node object.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::{Config, DetectLocalMode, NodePortAddresses, Pattern};
use crate::snapshot::NodeSpec;

/// The two addresses of a Node object that count: the first of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Primary {
    pub v4: Option<IpAddr>,
    pub v6: Option<IpAddr>,
}

impl Primary {
    /// The primary addresses, of which a specific `bindAddress` replaces the one of its family.
    #[must_use]
    pub fn bound(self, config: &Config) -> Self {
        match config.bind_address.value {
            ip if ip.is_unspecified() => self,
            IpAddr::V4(ip) => Self { v4: Some(ip.into()), ..self },
            IpAddr::V6(ip) => Self { v6: Some(ip.into()), ..self },
        }
    }
}

/// The facts about the node beside its links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    /// Addresses of the Node object; empty until it is known.
    pub addresses: Vec<IpAddr>,
    /// The first of each family.
    pub primary: Primary,
    /// Where pods have their addresses: `podCIDRs` of the Node, `clusterCIDR`; empty when nobody says.
    pub pod_ranges: Vec<IpNet>,
    /// `--external-device`: these and no others.
    pub external: Vec<Pattern>,
    /// `--pod-device`: these and no others.
    pub pods: Vec<Pattern>,
    /// Where `NodePorts` are served.
    pub node_ports: NodePortAddresses,
    /// The packets that count as those of this node's pods.
    pub local_clients: LocalClients,
}

/// Devices whose packets count as those of this node's pods (contract 3.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalClients {
    /// Those that lead to pods.
    #[default]
    PodDevices,
    /// This bridge, and its ports.
    Bridge(String),
    /// Those whose names begin so.
    Prefix(String),
}

impl LocalClients {
    /// The clients that count as local, where devices tell.
    pub fn of(config: &Config) -> Self {
        match config.detect_local.value {
            DetectLocalMode::BridgeInterface => Self::Bridge(config.bridge_interface.value.clone()),
            DetectLocalMode::InterfaceNamePrefix => {
                Self::Prefix(config.interface_name_prefix.value.clone())
            }
            DetectLocalMode::Unset | DetectLocalMode::ClusterCidr | DetectLocalMode::NodeCidr => {
                Self::PodDevices
            }
        }
    }
}

impl Identity {
    /// The node as it is known before its object is.
    pub fn of(config: &Config, before: Primary) -> Self {
        let primary = before.bound(config);
        Self {
            addresses: primary.v4.into_iter().chain(primary.v6).collect(),
            primary,
            pod_ranges: config.cluster_cidr.value.clone(),
            external: config.external_devices.value.clone(),
            pods: config.pod_devices.value.clone(),
            node_ports: config.node_port_addresses.value.clone(),
            local_clients: LocalClients::of(config),
        }
    }

    /// The Node object is this now, and its addresses that count are these.
    pub fn learn(&mut self, config: &Config, node: &NodeSpec, primary: Primary) {
        self.addresses = node.addresses.to_vec();
        self.pod_ranges =
            node.pod_cidrs.iter().chain(&config.cluster_cidr.value).copied().collect();
        self.primary = primary.bound(config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Setting;

    #[test]
    fn local_clients_are_told_as_configured_and_else_by_device() {
        assert_eq!(LocalClients::of(&Config::default()), LocalClients::PodDevices);
        let bridge = Config {
            detect_local: Setting::new(DetectLocalMode::BridgeInterface),
            bridge_interface: Setting::new("cni0".into()),
            ..Config::default()
        };
        assert_eq!(LocalClients::of(&bridge), LocalClients::Bridge("cni0".into()));
    }

    #[test]
    fn a_specific_bind_address_is_the_nodes() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let config = Config { bind_address: Setting::new(ip("10.0.0.9")), ..Config::default() };
        let found = Primary { v4: Some(ip("10.0.0.1")), v6: Some(ip("fd00::1")) };
        let primary = found.bound(&config);
        assert_eq!((primary.v4, primary.v6), (Some(ip("10.0.0.9")), found.v6));
    }
}
