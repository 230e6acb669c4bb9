//! Settings with a fixed set of values as types, and the addresses that a list of `nodePortAddresses` covers.

use std::net::IpAddr;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;

use super::setting::Setting;
use super::values;
use crate::plan::Family;

/// How pods of this node are told from everybody else (contract 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// By `clusterCIDR` where there is one, else by the device that a packet comes from.
    #[default]
    Unset,
    ClusterCidr,
    /// By the `podCIDRs` of our Node.
    NodeCidr,
    /// By the name of a bridge.
    BridgeInterface,
    /// By the beginning of the device's name.
    InterfaceNamePrefix,
}

/// When the source of a packet is translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masquerade {
    /// Where the reply would not come back through us.
    #[default]
    Edge,
    /// Where kube-proxy does it.
    KubeProxy,
}

/// The sockets that are served before a packet exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketLb {
    /// Those of the node's own network namespace.
    #[default]
    Host,
    /// Those of every namespace.
    All,
    Off,
}

/// Whether XDP is used on devices to the outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acceleration {
    /// On hardware whose driver can.
    #[default]
    Auto,
    /// On every device whose driver can, virtual ones too; and there it sends past the stack (ADR 0019).
    Native,
    /// Nowhere.
    Off,
}

/// Whether packets of known flows bypass the stack at tc (ADR 0021).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShortCuts {
    /// They do not: netfilter, other programs and queues see every packet.
    #[default]
    Off,
    /// They do, where the packet came by the interface that its source lives behind.
    On,
}

/// The answer to a ping of a `ClusterIP`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    #[default]
    Answer,
    /// Port unreachable.
    Reject,
}

/// How log lines look.
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
    /// Every address.
    pub all: bool,
    /// Loopback, by the socket hooks.
    pub localhost: bool,
    /// Every address within these.
    pub cidrs: Vec<IpNet>,
}

impl Default for NodePortAddresses {
    fn default() -> Self {
        Self { primary: true, all: false, localhost: false, cidrs: Vec::new() }
    }
}

/// How long idle flows are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// An open connection.
    pub tcp_established: Setting<Duration>,
    /// A connection that one side closed.
    pub tcp_close_wait: Setting<Duration>,
    /// Datagrams never answered.
    pub udp: Setting<Duration>,
    /// Datagrams both ways.
    pub udp_stream: Setting<Duration>,
    /// SCTP associations that were answered.
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
    /// Whether `NodePorts` are served on an address of the node.
    pub fn accepts(&self, ip: IpAddr, primary: Option<IpAddr>) -> bool {
        if ip.is_loopback() {
            // By the socket hooks, never by address.
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
        // A family of which the list says nothing is served on all addresses (contract 3.5).
        let is_silent = cidrs.peek().is_none() && (!self.primary || primary.is_none());
        is_silent || cidrs.any(|cidr| cidr.contains(&ip))
    }

    /// Whether the list is match-all for a family: one wildcard listener will do.
    pub fn is_all(&self, family: Family, primary: Option<IpAddr>) -> bool {
        let mut cidrs = self.cidrs.iter().filter(|cidr| values::family(cidr) == family).peekable();
        let is_silent = cidrs.peek().is_none() && (!self.primary || primary.is_none());
        self.all || is_silent || cidrs.any(|cidr| cidr.prefix_len() == 0)
    }
}
