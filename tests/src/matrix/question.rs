//! A question of the matrix (client, destination, state of the Service), and its possible outcomes.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use crate::rig::matrix;
use crate::topology::address::{self, Addresses, Family, Segment};
use crate::traffic::Protocol;

/// Ranges that everybody sends to `node-a`: those of `ClusterIP`s, ...
pub(super) const CLUSTER: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
/// ... external addresses, ...
pub(super) const EXTERNAL: [&str; 2] = ["203.0.113.0/24", "fd00:203::/64"];
/// ... and load balancer addresses.
pub(super) const VIPS: [&str; 2] = ["198.51.100.0/24", "fd00:198::/64"];
/// The address of a load balancer that does its own work (`ipMode: Proxy`).
pub(super) const PROXIED: Addresses = Addresses {
    v4: std::net::Ipv4Addr::new(198, 51, 101, 1),
    v6: std::net::Ipv6Addr::new(0xfd00, 0x198, 1, 0, 0, 0, 0, 1),
};
/// The port of every Service.
pub(super) const PORT: u16 = 80;
/// `NodePort` of Service 0. The API server hands out none of the first 86 by itself.
const NODE_PORTS: u16 = 30_000;
/// Milliseconds after which silence is believed where it is expected.
const SHORT: u64 = 700;
/// Milliseconds after which an answer is no longer expected, on a machine that does much else.
const LONG: u64 = 6_000;

/// Defines a fieldless enum with `ALL` and a name for people.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($variant:ident = $name:literal, $meaning:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $type { $(#[doc = $meaning] $variant,)* }

        impl $type {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Its name in tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

named! {
    Source {
        Pod = "pod", "A pod of `node-a`.";
        Backend = "backend", "The pod of `node-a` that is an endpoint itself.";
        Host = "host", "A process of `node-a`.";
        Outside = "outside", "A client outside the cluster.";
        OtherPod = "other-pod", "A pod of `node-b`.";
        OtherNode = "other-node", "A process of `node-b`.";
    }
}

named! {
    /// By which address a Service is asked.
    Destination {
        ClusterIp = "cluster-ip", "`spec.clusterIPs`.";
        NodePort = "node-port", "The `NodePort` on the address of `node-a`.";
        ExternalIp = "external-ip", "`spec.externalIPs`.";
        Vip = "vip", "`status.loadBalancer.ingress` with `ipMode: VIP`.";
        ProxiedVip = "proxied-vip", "The same with `ipMode: Proxy`.";
    }
}

named! {
    /// Both traffic policies of a Service.
    Policy {
        Cluster = "cluster", "Every endpoint.";
        Local = "local", "Endpoints of the node that decides.";
    }
}

named! {
    /// The kind of endpoints that a Service has.
    State {
        Both = "both", "A ready one on each node.";
        Remote = "remote", "A ready one on `node-b`.";
        LocalDraining = "local-draining", "One on `node-a` that goes away, a ready one on `node-b`.";
        Draining = "draining", "One on each node, both going away.";
        RemoteDraining = "remote-draining", "One on `node-b` that goes away.";
        Unready = "unready", "One on each node, serving but not ready.";
        Hosts = "hosts", "A ready one on the network of each node.";
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Both traffic policies of the Service.
    pub policy: Policy,
    /// Its endpoints.
    pub state: State,
    /// By which address.
    pub destination: Destination,
    pub source: Source,
    pub family: Family,
    /// Transport.
    pub protocol: Protocol,
    pub to: SocketAddr,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, state, destination, source, family, protocol, to } = self;
        write!(
            f,
            "{} asks {} of {}-{}, ",
            source.name(),
            destination.name(),
            policy.name(),
            state.name()
        )?;
        write!(f, "{family} {protocol} ({to})")
    }
}

/// One way in which a question can end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// A server of this name answered, and saw this address.
    Answer(String, IpAddr),
    /// The client was refused.
    Refused,
    /// Nothing came back.
    Silence,
    /// The client's own node refused to send (`EPERM`).
    NotPermitted,
    Other(String),
}

/// All ways in which a question ends when it is asked often enough.
pub type Outcome = BTreeSet<Seen>;

/// A question, and what is expected to come of it.
#[derive(Debug, Clone)]
pub struct Case {
    /// The question in words.
    pub name: String,
    pub source: Source,
    /// Through which transport.
    pub protocol: Protocol,
    /// Whom.
    pub to: SocketAddr,
    pub expected: Outcome,
}

impl Question {
    /// The question with what is expected to come of it.
    pub fn expecting(self, expected: Outcome) -> Case {
        let Self { source, protocol, to, .. } = self;
        Case { name: self.to_string(), source, protocol, to, expected }
    }
}

/// How often to ask, and for how long in milliseconds each time, where this is expected.
pub(super) fn at_most(expected: &Outcome) -> (u32, u64) {
    let is_silent = expected.contains(&Seen::Silence);
    let answers = expected.iter().filter(|seen| matches!(seen, Seen::Answer(..))).count();
    let times = match (expected.len(), answers) {
        // Until both have answered: of two equal servers the second one is missed once in 10^18 times.
        (2.., _) => 60,
        (_, 1..) => 6,
        (_, 0) if is_silent => 1,
        (_, 0) => 2,
    };
    (times, if is_silent { SHORT } else { LONG })
}

/// The number of the first Service.
pub(super) const FIRST: u8 = 10;

/// The number of a Service, from which its addresses follow.
pub(super) const fn number(policy: Policy, state: State) -> u8 {
    FIRST + policy as u8 * 8 + state as u8
}

/// The name of a Service.
pub(super) fn name(policy: Policy, state: State) -> String {
    format!("{}-{}", policy.name(), state.name())
}

/// The `NodePort` of a Service.
pub(super) fn node_port(number: u8) -> u16 {
    NODE_PORTS + u16::from(if number < 100 { number } else { number - 60 })
}

/// The addresses that a Service is asked by.
pub(super) fn addresses(destination: Destination, number: u8) -> Result<Addresses> {
    match destination {
        Destination::ClusterIp => address::cluster_ip(number),
        Destination::NodePort => Segment::First.host(address::node(1)),
        Destination::ExternalIp => {
            Addresses::parse(&format!("203.0.113.{number}"), &format!("fd00:203::{number}"))
        }
        Destination::Vip => {
            Addresses::parse(&format!("198.51.100.{number}"), &format!("fd00:198::{number}"))
        }
        Destination::ProxiedVip => Ok(PROXIED),
    }
}

/// Where a Service is asked by one of its addresses.
pub fn frontend(destination: Destination, number: u8, family: Family) -> Result<SocketAddr> {
    let port = if destination == Destination::NodePort { node_port(number) } else { PORT };
    Ok(addresses(destination, number)?.socket(family, port))
}

/// Everything that can be asked (contract 3.3).
pub fn questions() -> Result<Vec<Question>> {
    let mut all = Vec::new();
    for (policy, state) in Policy::ALL.into_iter().flat_map(|p| State::ALL.map(|s| (p, s))) {
        for destination in Destination::ALL {
            if destination != Destination::ProxiedVip || (policy, state) == PROXIED_SERVICE {
                all.extend(asked(policy, state, destination)?);
            }
        }
    }
    Ok(all)
}

/// Everybody's questions about one address of one Service.
fn asked(policy: Policy, state: State, destination: Destination) -> Result<Vec<Question>> {
    let number = number(policy, state);
    // The client outside is the load balancer that does its own work.
    let is_itself = |source| destination == Destination::ProxiedVip && source == Source::Outside;
    let sources = Source::ALL.into_iter().filter(|source| !is_itself(*source));
    let all = sources.flat_map(|source| matrix().map(move |of| (source, of)));
    all.map(|(source, (family, protocol))| {
        let to = frontend(destination, number, family)?;
        Ok(Question { policy, state, destination, source, family, protocol, to })
    })
    .collect()
}

/// The Service that has an address with `ipMode: Proxy`.
pub(super) const PROXIED_SERVICE: (Policy, State) = (Policy::Cluster, State::Both);
