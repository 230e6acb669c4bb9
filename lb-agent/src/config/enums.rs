//! Settings with a fixed set of values, and the addresses that a list of `nodePortAddresses` covers.

use std::net::IpAddr;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;

use super::setting::Setting;
use super::values;
use crate::plan::Family;

/// How local pods are distinguished from other clients (contract 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// By `clusterCIDR` if there is one, else by the interface on which a packet arrives.
    #[default]
    Unset,
    ClusterCidr,
    /// By the `podCIDRs` of this node's Node object.
    NodeCidr,
    /// By the name of the bridge on which a packet arrives.
    BridgeInterface,
    /// By a prefix of the name of the interface on which a packet arrives.
    InterfaceNamePrefix,
}

/// Which packets are masqueraded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masquerade {
    /// Only those whose reply would not return through this node.
    #[default]
    Edge,
    /// Those that kube-proxy masquerades (contract 3.3).
    KubeProxy,
}

/// Which TCP sockets are connected to a backend in connect(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketLb {
    /// Sockets of the node's own network namespace.
    #[default]
    Host,
    /// Sockets of every network namespace.
    All,
    Off,
}

/// Whether XDP is used on external interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acceleration {
    /// On network cards whose driver supports it, except with the drivers that `node/acceleration.rs` names.
    #[default]
    Auto,
    /// On every external interface whose driver supports it, virtual ones included; XDP also redirects past the stack
    /// (ADR 0019).
    Native,
    /// XDP is attached to no interface.
    Off,
}

/// Whether packets of known flows bypass the stack at tc (ADR 0021).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bypass {
    /// No packet bypasses the stack: netfilter, other programs and queues see all of them.
    #[default]
    Off,
    /// Packets bypass the stack if they arrived on the interface that their source lives behind.
    On,
}

/// The reply to a ping of a `ClusterIP`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    #[default]
    Answer,
    /// An ICMP port unreachable message.
    Reject,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// `nodePortAddresses` (contract 3.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The node's primary address of each family.
    pub primary: bool,
    /// Every address of the node accepts `NodePorts`.
    pub all: bool,
    /// Loopback addresses: at connect(2), and by packet at `lo` (ADR 0027).
    pub localhost: bool,
    /// Every address inside these prefixes.
    pub cidrs: Vec<IpNet>,
}

impl Default for NodePortAddresses {
    fn default() -> Self {
        Self { primary: true, all: false, localhost: false, cidrs: Vec::new() }
    }
}

/// Idle timeouts of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// An established TCP connection.
    pub tcp_established: Setting<Duration>,
    /// A TCP connection that one side has closed.
    pub tcp_close_wait: Setting<Duration>,
    /// UDP without a reply.
    pub udp: Setting<Duration>,
    /// UDP with packets in both directions.
    pub udp_stream: Setting<Duration>,
    /// SCTP associations with a reply.
    pub sctp: Setting<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_established: Setting::new(Duration::from_hours(24)),
            tcp_close_wait: Setting::new(Duration::from_hours(1)),
            udp: Setting::new(Duration::from_secs(30)),
            udp_stream: Setting::new(Duration::from_mins(2)),
            sctp: Setting::new(Duration::from_secs(210)),
        }
    }
}

impl NodePortAddresses {
    /// Reports whether `NodePorts` are served on an address of the node; `primary` is the node's primary address of
    /// that family.
    pub fn accepts(&self, ip: IpAddr, primary: Option<IpAddr>) -> bool {
        if ip.is_loopback() {
            // Loopback has a setting of its own (`localhostNodePorts`).
            return false;
        }
        let mut cidrs =
            self.cidrs.iter().filter(|cidr| values::family(cidr) == Family::of(ip)).peekable();
        if self.all {
            return true;
        }
        if self.primary && primary == Some(ip) {
            return true;
        }
        // A family that the list does not name is served on all its addresses (contract 3.5).
        let is_silent = cidrs.peek().is_none() && (!self.primary || primary.is_none());
        is_silent || cidrs.any(|cidr| cidr.contains(&ip))
    }

    /// Reports whether a prefix of the list contains an address.
    pub fn lists(&self, ip: IpAddr) -> bool {
        self.cidrs.iter().any(|cidr| cidr.contains(&ip))
    }

    /// Reports whether the list covers every address of a family, so that one wildcard listener is enough.
    pub fn is_all(&self, family: Family, primary: Option<IpAddr>) -> bool {
        let mut cidrs = self.cidrs.iter().filter(|cidr| values::family(cidr) == family).peekable();
        let is_silent = cidrs.peek().is_none() && (!self.primary || primary.is_none());
        self.all || is_silent || cidrs.any(|cidr| cidr.prefix_len() == 0)
    }
}
