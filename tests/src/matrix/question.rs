//! A question of the matrix (client, destination, state of the Service), and its possible outcomes.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use crate::rig::matrix;
use crate::topology::address::{self, Addresses, Family, Segment};
use crate::traffic::Protocol;

/// The ranges of `ClusterIP`s, which all members route to `node-a`.
pub(super) const CLUSTER: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
/// The ranges of external IPs, which all members route to `node-a`.
pub(super) const EXTERNAL: [&str; 2] = ["203.0.113.0/24", "fd00:203::/64"];
/// The ranges of load balancer addresses, which all members route to `node-a`.
pub(super) const VIPS: [&str; 2] = ["198.51.100.0/24", "fd00:198::/64"];
/// The address of a load balancer that is not served by the proxy (`ipMode: Proxy`).
pub(super) const PROXIED: Addresses = Addresses {
    v4: std::net::Ipv4Addr::new(198, 51, 101, 1),
    v6: std::net::Ipv6Addr::new(0xfd00, 0x198, 1, 0, 0, 0, 0, 1),
};
/// The port of every Service.
pub(super) const PORT: u16 = 80;
/// The `NodePort` of Service number 0.
const NODE_PORTS: u16 = 30_000;
/// The ports from there that the API server assigns only on request: any other one may be taken.
const RESERVED: u8 = 86;
/// The time in milliseconds without an answer that proves an expected silence.
const SHORT: u64 = 700;
/// The time in milliseconds to wait for an expected answer, on a busy machine.
const LONG: u64 = 6_000;

/// Defines a fieldless enum with `ALL` and a name for people.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($variant:ident = $name:literal, $meaning:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $type { $(#[doc = $meaning] $variant,)* }

        impl $type {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name in tables.
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
    /// The kind of address at which a Service is used.
    Destination {
        ClusterIp = "cluster-ip", "`spec.clusterIPs`.";
        NodePort = "node-port", "The `NodePort` on the address of `node-a`.";
        ExternalIp = "external-ip", "`spec.externalIPs`.";
        Vip = "vip", "`status.loadBalancer.ingress` with `ipMode: VIP`.";
        ProxiedVip = "proxied-vip", "The same with `ipMode: Proxy`.";
    }
}

named! {
    /// The value of both traffic policies of a Service.
    Policy {
        Cluster = "cluster", "Every endpoint.";
        Local = "local", "Endpoints of the node that decides.";
    }
}

named! {
    /// The endpoints of a Service.
    State {
        Both = "both", "A ready endpoint on each node.";
        Remote = "remote", "A ready endpoint on `node-b`.";
        LocalDraining = "local-draining", "A terminating endpoint on `node-a`, a ready one on `node-b`.";
        Draining = "draining", "A terminating endpoint on each node.";
        RemoteDraining = "remote-draining", "A terminating endpoint on `node-b`.";
        Unready = "unready", "An endpoint on each node that is serving but not ready.";
        Hosts = "hosts", "A ready endpoint on the host network of each node.";
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Both traffic policies of the Service.
    pub policy: Policy,
    /// The endpoints of the Service.
    pub state: State,
    /// The kind of address that the client uses.
    pub destination: Destination,
    pub source: Source,
    pub family: Family,
    /// The transport of the question.
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

/// One outcome of a question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    /// A server of this name answered, and saw this address.
    Answer(String, IpAddr),
    /// The client was refused (RST, or ICMP port unreachable).
    Refused,
    /// No answer came within the time.
    Silence,
    /// The client's own node refused to send (`EPERM`).
    NotPermitted,
    Other(String),
}

/// All outcomes of a question that is repeated often enough.
pub type Outcome = BTreeSet<Seen>;

/// A question and its expected outcomes.
#[derive(Debug, Clone)]
pub struct Case {
    /// The question in words.
    pub name: String,
    pub source: Source,
    /// The transport of the question.
    pub protocol: Protocol,
    /// The address and port that the client uses.
    pub to: SocketAddr,
    pub expected: Outcome,
}

impl Question {
    /// Makes a case of the question and its expected outcomes.
    pub fn expecting(self, expected: Outcome) -> Case {
        let Self { source, protocol, to, .. } = self;
        Case { name: self.to_string(), source, protocol, to, expected }
    }
}

/// The largest number of repetitions, and the time for each in milliseconds, for an expected outcome.
pub(super) fn at_most(expected: &Outcome) -> (u32, u64) {
    let is_silent = expected.contains(&Seen::Silence);
    let answers = expected.iter().filter(|seen| matches!(seen, Seen::Answer(..))).count();
    let times = match (expected.len(), answers) {
        // Repeated until both have answered: one of two equal servers is missed once in 10^18 times.
        (2.., _) => 60,
        (_, 1..) => 6,
        (_, 0) if is_silent => 1,
        (_, 0) => 2,
    };
    (times, if is_silent { SHORT } else { LONG })
}

/// The number of the first Service.
pub(super) const FIRST: u8 = 10;

/// The number of a Service, which determines its addresses.
pub(super) const fn number(policy: Policy, state: State) -> u8 {
    FIRST + policy as u8 * 8 + state as u8
}

/// The name of the Service with these policies and endpoints.
pub(super) fn name(policy: Policy, state: State) -> String {
    format!("{}-{}", policy.name(), state.name())
}

/// The `NodePort` of the Service with this number.
pub(super) fn node_port(number: u8) -> u16 {
    NODE_PORTS + u16::from(if number < 100 { number } else { (number - 60) % RESERVED })
}

/// The addresses of a Service for one kind of destination.
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

/// The address and port of a Service for one kind of destination.
pub fn frontend(destination: Destination, number: u8, family: Family) -> Result<SocketAddr> {
    let port = if destination == Destination::NodePort { node_port(number) } else { PORT };
    Ok(addresses(destination, number)?.socket(family, port))
}

/// All questions of the matrix (contract 3.3).
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

/// The questions of all clients to one destination of one Service.
fn asked(policy: Policy, state: State, destination: Destination) -> Result<Vec<Question>> {
    let number = number(policy, state);
    // The external client itself is the load balancer with `ipMode: Proxy`.
    let is_itself = |source| destination == Destination::ProxiedVip && source == Source::Outside;
    let sources = Source::ALL.into_iter().filter(|source| !is_itself(*source));
    let all = sources.flat_map(|source| matrix().map(move |of| (source, of)));
    all.map(|(source, (family, protocol))| {
        let to = frontend(destination, number, family)?;
        Ok(Question { policy, state, destination, source, family, protocol, to })
    })
    .collect()
}

/// The Service that has the address with `ipMode: Proxy`.
pub(super) const PROXIED_SERVICE: (Policy, State) = (Policy::Cluster, State::Both);
