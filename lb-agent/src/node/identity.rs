//! The facts about this node that come from the configuration and from the Node object, not from its links.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::{Config, DetectLocalMode, NodePortAddresses, Pattern};
use crate::plan::Family;
use crate::snapshot::NodeSpec;

/// The primary addresses of a node: the first of each family in its Node object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Primary {
    pub v4: Option<IpAddr>,
    pub v6: Option<IpAddr>,
}

impl Primary {
    /// Returns the address of a family.
    pub(in crate::node) const fn of(self, v4: bool) -> Option<IpAddr> {
        if v4 { self.v4 } else { self.v6 }
    }

    /// Returns the primary addresses; a family without one has that of `earlier`.
    const fn or(self, earlier: Self) -> Self {
        Self {
            v4: if self.v4.is_some() { self.v4 } else { earlier.v4 },
            v6: if self.v6.is_some() { self.v6 } else { earlier.v6 },
        }
    }

    /// Returns the primary addresses; a specific `bindAddress` replaces the address of its family.
    ///
    /// A loopback address replaces none: these are the sources of packets to other hosts, and the kernel sends nothing
    /// there from 127.0.0.1.
    #[must_use]
    pub fn bound(self, config: &Config) -> Self {
        match config.bind_address.value {
            ip if ip.is_unspecified() || ip.is_loopback() => self,
            IpAddr::V4(ip) => Self { v4: Some(ip.into()), ..self },
            IpAddr::V6(ip) => Self { v6: Some(ip.into()), ..self },
        }
    }

    /// Returns the addresses that do not come from `bindAddress`: an earlier run has written it, too.
    fn without_bound(self, config: &Config) -> Self {
        let others = |ip: &IpAddr| *ip != config.bind_address.value;
        Self { v4: self.v4.filter(others), v6: self.v6.filter(others) }
    }

    /// Returns the addresses that `primary` in `nodePortAddresses` stands for (contract 3.5).
    ///
    /// A family whose `bindAddress`, or whose address in the Node object, is a loopback address has none and is served
    /// on all its addresses.
    fn of_node_ports(self, config: &Config) -> Self {
        let specific = |ip: &IpAddr| !ip.is_loopback();
        let bound = config.bind_address.value;
        Self {
            v4: self.v4.filter(|ip| specific(ip) && !(bound.is_loopback() && bound.is_ipv4())),
            v6: self.v6.filter(|ip| specific(ip) && !(bound.is_loopback() && bound.is_ipv6())),
        }
    }
}

/// The facts about the node that do not come from its links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    /// Addresses of the Node object, and `kept`; those of an earlier run until it is known.
    pub addresses: Vec<IpAddr>,
    /// Earlier addresses, for families without an address in the Node object.
    pub kept: Vec<IpAddr>,
    /// Primary address of each family.
    pub primary: Primary,
    /// The addresses that `primary` in `node_ports` stands for.
    pub node_port_primary: Primary,
    /// Whether the Node object, or an earlier run, has named a primary address.
    pub knows_primary: bool,
    /// Networks of pods: `podCIDRs` of the Node, and `clusterCIDR`; earlier ones for a family of which both name none.
    /// Until the Node is known, those of an earlier run stand in for `podCIDRs` if there is no `clusterCIDR`.
    pub pod_ranges: Vec<IpNet>,
    /// Patterns of `--external-device`; empty if external interfaces are detected.
    pub external: Vec<Pattern>,
    /// Patterns of `--pod-device`; empty if interfaces of pods are detected.
    pub pods: Vec<Pattern>,
    /// Addresses that serve `NodePorts`.
    pub node_ports: NodePortAddresses,
    /// Interfaces whose packets count as those of this node's pods.
    pub local_clients: LocalClients,
}

/// The interfaces whose packets count as those of this node's pods (contract 3.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalClients {
    /// All interfaces with the role of a pod.
    #[default]
    PodDevices,
    /// The bridge of this name, and its ports.
    Bridge(String),
    /// Interfaces whose name begins with this prefix. For a port of a bridge, the name of the bridge counts.
    Prefix(String),
}

impl LocalClients {
    /// Returns the interfaces of local clients. In the modes that detect by CIDR, they are those of pods.
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
    /// Makes the identity of a node whose Node object is not known yet, with the primary addresses of `before`.
    pub fn of(config: &Config, before: Primary) -> Self {
        let primary = before.bound(config);
        Self {
            addresses: primary.v4.into_iter().chain(primary.v6).collect(),
            kept: Vec::new(),
            primary,
            node_port_primary: primary.of_node_ports(config),
            knows_primary: before.without_bound(config) != Primary::default(),
            pod_ranges: config.cluster_cidr.value.clone(),
            external: config.external_devices.value.clone(),
            pods: config.pod_devices.value.clone(),
            node_ports: config.node_port_addresses.value.clone(),
            local_clients: LocalClients::of(config),
        }
    }

    /// Takes over the Node object, and its primary addresses. A family without an address in it keeps the earlier
    /// ones, and a family without a network of pods keeps its earlier networks.
    pub fn learn(&mut self, config: &Config, node: &NodeSpec, primary: Primary) {
        let is_named =
            |ip: &IpAddr| node.addresses.iter().any(|named| named.is_ipv4() == ip.is_ipv4());
        // Without a primary address, NodePorts of the family would be served on all addresses (contract 3.5).
        self.kept = self.addresses.iter().copied().filter(|ip| !is_named(ip)).collect();
        self.addresses = node.addresses.iter().chain(&self.kept).copied().collect();
        let ranges: Vec<IpNet> =
            node.pod_cidrs.iter().chain(&config.cluster_cidr.value).copied().collect();
        let has_family = |net: &IpNet| {
            let is_v4 = net.addr().is_ipv4();
            ranges.iter().any(|named| named.addr().is_ipv4() == is_v4)
        };
        let kept: Vec<IpNet> =
            self.pod_ranges.iter().copied().filter(|net| !has_family(net)).collect();
        self.pod_ranges = [ranges, kept].concat();
        self.knows_primary |= primary != Primary::default();
        self.primary = primary.or(self.primary).bound(config);
        self.node_port_primary = self.primary.of_node_ports(config);
    }

    /// Reports whether an address of the node serves `NodePorts` (contract 3.5).
    pub fn serves_node_ports(&self, ip: IpAddr) -> bool {
        let primary = self.node_port_primary.of(ip.is_ipv4());
        let is_named = || primary == Some(ip) || self.node_ports.lists(ip);
        self.node_ports.accepts(ip, primary) && (!self.awaits_primary() || is_named())
    }

    /// Reports whether `NodePorts` are served on all addresses of the node: for IPv4, then for IPv6.
    pub fn serves_node_ports_everywhere(&self) -> [bool; 2] {
        let Primary { v4, v6 } = self.node_port_primary;
        let is_all =
            |family, primary| !self.awaits_primary() && self.node_ports.is_all(family, primary);
        [is_all(Family::V4, v4), is_all(Family::V6, v6)]
    }

    /// Reports whether `NodePorts` are for a primary address, and none is known. Then only addresses serve them that
    /// the configuration names.
    ///
    /// A family without a primary address is served on all its addresses; without the Node object that would be every
    /// address of the node, also those towards the Internet. kube-proxy waits 30 s for the object (`NewNodeManager` in
    /// `pkg/proxy/node.go`), and then serves them there.
    pub const fn awaits_primary(&self) -> bool {
        self.node_ports.primary && !self.node_ports.all && !self.knows_primary
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Setting;

    #[test]
    fn local_clients_are_detected_as_configured_and_else_by_device() {
        assert_eq!(LocalClients::of(&Config::default()), LocalClients::PodDevices);
        let bridge = Config {
            detect_local: Setting::new(DetectLocalMode::BridgeInterface),
            bridge_interface: Setting::new("cni0".into()),
            ..Config::default()
        };
        assert_eq!(LocalClients::of(&bridge), LocalClients::Bridge("cni0".into()));
    }

    #[test]
    fn a_family_of_which_the_node_object_names_no_address_keeps_the_earlier_ones() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let config = Config::default();
        let learn = |identity: &mut Identity, addresses: &[&str]| {
            let addresses = addresses.iter().copied().map(ip).collect();
            let node = NodeSpec { addresses, ..NodeSpec::default() };
            let primary = Primary { v4: node.ip(Family::V4), v6: node.ip(Family::V6) };
            identity.learn(&config, &node, primary);
        };
        let both = Primary { v4: Some(ip("10.0.0.1")), v6: Some(ip("fd00::1")) };
        let mut identity = Identity::of(&config, Primary::default());
        learn(&mut identity, &["10.0.0.1", "10.0.0.2", "fd00::1"]);
        assert!(identity.primary == both && identity.kept.is_empty());
        learn(&mut identity, &[]);
        assert_eq!((identity.primary, identity.addresses.len()), (both, 3));
        assert_eq!(identity.addresses, identity.kept);
        assert!(!identity.serves_node_ports(ip("172.16.0.9")), "not on every address");
        learn(&mut identity, &["10.0.0.9"]);
        assert_eq!(identity.primary, Primary { v4: Some(ip("10.0.0.9")), ..both });
        assert_eq!(identity.addresses, ["10.0.0.9", "fd00::1"].map(ip));
        assert_eq!(identity.kept, [ip("fd00::1")]);
        // An earlier run's addresses stay as well: the object may lose them while no agent runs.
        let mut identity = Identity::of(&config, both);
        learn(&mut identity, &["10.0.0.1"]);
        assert_eq!(identity.primary, both);
    }

    #[test]
    fn no_address_serves_node_ports_before_a_primary_address_is_known() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let config = Config::default();
        let mut identity = Identity::of(&config, Primary::default());
        identity.learn(&config, &NodeSpec::default(), Primary::default());
        assert!(identity.awaits_primary());
        assert!(!identity.serves_node_ports(ip("172.16.0.9")));
        assert_eq!(identity.serves_node_ports_everywhere(), [false; 2]);
        let primary = Primary { v4: Some(ip("10.0.0.1")), v6: None };
        identity.learn(&config, &NodeSpec::default(), primary);
        assert!(!identity.awaits_primary() && identity.serves_node_ports(ip("10.0.0.1")));
        assert_eq!(identity.serves_node_ports_everywhere(), [false, true]);

        let after = |before, node_ports, bind| {
            let (node_port_addresses, bind_address) =
                (Setting::new(node_ports), Setting::new(bind));
            let config = Config { bind_address, node_port_addresses, ..Config::default() };
            Identity::of(&config, before)
        };
        let of = |node_ports, bind| after(Primary::default(), node_ports, bind);
        let [any, specific] = [ip("0.0.0.0"), ip("10.0.0.5")];
        let default = NodePortAddresses::default;
        let identity = of(NodePortAddresses { all: true, ..default() }, any);
        assert!(!identity.awaits_primary() && identity.serves_node_ports(ip("172.16.0.9")));
        let cidrs = vec!["172.16.0.0/12".parse().unwrap()];
        let identity = of(NodePortAddresses { cidrs, ..default() }, any);
        assert!(identity.serves_node_ports(ip("172.16.0.9")), "named by the configuration");
        assert!(!identity.serves_node_ports(ip("fd00::9")));
        let identity = of(default(), specific);
        assert!(identity.serves_node_ports(specific) && !identity.serves_node_ports(ip("fd00::9")));
        let restarted = after(identity.primary, default(), specific);
        assert!(!restarted.serves_node_ports(ip("fd00::9")), "an earlier run knew no more");
        let other = Primary { v4: Some(ip("10.0.0.1")), v6: None };
        assert!(after(other, default(), specific).serves_node_ports(ip("fd00::9")));
    }

    #[test]
    fn a_specific_bind_address_is_the_nodes() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let config = Config { bind_address: Setting::new(ip("10.0.0.9")), ..Config::default() };
        let found = Primary { v4: Some(ip("10.0.0.1")), v6: Some(ip("fd00::1")) };
        let primary = found.bound(&config);
        assert_eq!((primary.v4, primary.v6), (Some(ip("10.0.0.9")), found.v6));
        assert_eq!(primary.of_node_ports(&config), primary);
    }

    /// Contract 3.5: kube-proxy leaves a loopback node IP out, and a family without one is served on all addresses.
    #[test]
    fn a_loopback_bind_address_leaves_the_primary_address_and_serves_node_ports_on_all() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let before = Primary { v4: Some(ip("10.0.0.1")), v6: Some(ip("fd00::1")) };
        for (bound, others) in
            [("127.0.0.1", Primary { v4: None, ..before }), ("::1", Primary { v6: None, ..before })]
        {
            let config = Config { bind_address: Setting::new(ip(bound)), ..Config::default() };
            let mut identity = Identity::of(&config, before);
            for _ in 0..2 {
                assert_eq!(identity.primary, before, "the source of packets to other hosts");
                assert_eq!(identity.node_port_primary, others);
                identity.learn(&config, &NodeSpec::default(), before);
            }
        }
    }
}
