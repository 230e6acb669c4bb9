//! Every case of the data path as data: verdicts, packets, flows. Run on the host and in the kernel.

use std::vec::Vec;

use super::world::{
    CLIENT4, CLIENT6, CLUSTER4, CLUSTER6, LOCAL4, LOCAL6, NODE4, NODE6, OUT_MTU, POD4, POD6,
    REMOTE4, REMOTE6,
};
use super::{Datagram, Fake, Fixture, Transport, at};
use crate::addr::{Port, Protocol};
use crate::flow::{Flow, FlowKey, Kind, Shown, Side, Tuple};
use crate::wire::{self, tcp};

mod accelerated;
mod accelerator;
mod affinity;
mod answers;
mod beginning;
mod bypass;
mod cluster_ip;
mod collided;
mod delivery;
mod direct;
mod direct_and_service;
mod echo;
mod flows;
mod forged_sources;
mod fragments;
mod fragments_with_options;
mod fragments_without_ports;
mod handshakes;
mod host;
mod host_exits;
mod host_failures;
mod icmp;
mod inherited;
mod left_behind;
mod masquerade;
mod networks;
mod no_bypass;
mod node_port;
mod not_redirected;
mod own_source;
mod pod_replies;
mod pods;
mod policy;
mod quotes;
mod races;
mod ranges;
mod redirected;
mod refused;
mod removed;
mod renewed;
mod resets;
mod sctp;
mod sets;
mod shapes;
mod shared_source;
mod silent_sockets;
mod taken_over;

pub fn all() -> Vec<Fixture> {
    let parts = [
        cluster_ip::all(),
        node_port::all(),
        pods::all(),
        pod_replies::all(),
        masquerade::all(),
        networks::all(),
        policy::all(),
        affinity::all(),
        sets::all(),
        ranges::all(),
        refused::all(),
        resets::all(),
        removed::all(),
        renewed::all(),
        beginning::all(),
        flows::all(),
        collided::all(),
        fragments::all(),
        fragments_with_options::all(),
        fragments_without_ports::all(),
        host::all(),
        delivery::all(),
        answers::all(),
        direct::all(),
        inherited::all(),
        icmp::all(),
        echo::all(),
        shapes::all(),
        accelerator::all(),
        accelerated::all(),
        redirected::all(),
        shared_source::all(),
        bypass::all(),
        silent_sockets::all(),
        sctp::all(),
        races::all(),
        taken_over::all(),
        left_behind::all(),
        own_source::all(),
        direct_and_service::all(),
        no_bypass::all(),
        not_redirected::all(),
        quotes::all(),
        host_exits::all(),
        host_failures::all(),
        handshakes::all(),
        forged_sources::all(),
    ];
    parts.concat()
}

/// The fixtures with the value of the environment variable `LB_FIXTURE` in their names; without it all of them.
///
/// # Panics
/// If no fixture has that in its name.
pub fn chosen() -> Vec<Fixture> {
    let wanted = std::env::var("LB_FIXTURE").unwrap_or_default();
    let mut chosen = all();
    chosen.retain(|fixture| fixture.name.contains(&wanted));
    assert!(!chosen.is_empty(), "LB_FIXTURE: no fixture has {wanted:?} in its name");
    chosen
}

/// The `turn`-th source port that is tried for a tuple, from the range of the fixtures' node.
fn source_port(tuple: &Tuple, protocol: Protocol, turn: u32) -> Port {
    super::source_port(&(61_000..=65_000), tuple, protocol, turn)
}

/// Adds a flow of a client to a frontend and its backend, with packets of both directions, as an earlier run would have
/// left it.
fn open(
    tables: &Fake,
    protocol: Protocol,
    [client, asked, backend]: [&str; 3],
    change: impl Fn(&mut Flow),
) {
    let key = FlowKey::new(Tuple::new(at(client), at(asked)), protocol, Side::INGRESS);
    let to = Tuple::new(at(client), at(backend));
    let mut flow = Flow::new(to, Kind::FORWARD, tables.clock.get());
    (flow.shown, flow.flags) = (Shown::ESTABLISHED, Flow::PROTECTED);
    change(&mut flow);
    let mut back = Flow::new(key.tuple.reversed(), Kind::REPLY, tables.clock.get());
    flow.write_answer(Kind::REPLY, &mut back);
    back.shown = Shown::ESTABLISHED;
    tables.put(key.opposite(&flow), back);
    tables.put(key, flow);
}

/// The addresses of one family.
#[derive(Clone, Copy)]
struct Family {
    name: &'static str,
    cluster: &'static str,
    pod: &'static str,
    local: &'static str,
    remote: &'static str,
    client: &'static str,
    node: &'static str,
    /// A router on the way to a client or a backend.
    router: &'static str,
    /// The source address of a pod that reaches itself, with the pod's port.
    hairpin: &'static str,
    /// The `ClusterIP` of a second Service.
    other: &'static str,
    /// Sources that no host has.
    impossible: &'static [&'static str],
}

const V4: Family = Family {
    name: "v4",
    cluster: CLUSTER4,
    pod: POD4,
    local: LOCAL4,
    remote: REMOTE4,
    client: CLIENT4,
    node: NODE4,
    router: "10.9.9.9:1",
    hairpin: "192.0.0.8:40000",
    other: "10.96.0.11:80",
    impossible: &["127.0.0.1:7", "0.0.0.0:7", "224.0.0.1:7", "255.255.255.255:7"],
};

const V6: Family = Family {
    name: "v6",
    cluster: CLUSTER6,
    pod: POD6,
    local: LOCAL6,
    remote: REMOTE6,
    client: CLIENT6,
    node: NODE6,
    router: "[fd00:9::9]:1",
    hairpin: "[100::8]:40000",
    other: "[fd00:96::11]:80",
    impossible: &["[::1]:7", "[::]:7", "[ff02::1]:7"],
};

const FAMILIES: [Family; 2] = [V4, V6];

/// Transport headers of a first packet, of a later one, and of an answer.
const TRANSPORTS: [(&str, [Transport; 3]); 3] = [
    (
        "tcp",
        [Transport::Tcp(tcp::SYN), Transport::Tcp(tcp::ACK), Transport::Tcp(tcp::SYN | tcp::ACK)],
    ),
    ("udp", [Transport::Udp(true); 3]),
    ("sctp", [Transport::Sctp; 3]),
];

/// A packet between two ends.
fn packet(source: &str, destination: &str, transport: Transport) -> Datagram {
    Datagram::new(at(source), at(destination), transport)
}

/// A UDP packet as large as the routes of the fixtures take.
fn filled(datagram: Datagram) -> Datagram {
    let headers = if datagram.source.ip.is_v4() { 20 + 8 } else { 40 + 8 };
    datagram.with(&std::vec![7; usize::from(OUT_MTU) - headers])
}

const PROTOCOLS: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];

/// The service of a protocol on a [`node`], and the row of its backend if it has only one.
const fn service_id(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::TCP => 1,
        Protocol::UDP => 2,
        _ => 3,
    }
}

/// An SCTP packet that opens an association.
fn init(source: &str, destination: &str) -> Datagram {
    Datagram::sctp(source, destination).with(&[wire::sctp::INIT, 0, 0, 4])
}

/// A node where the ClusterIP and the `NodePort` of a family, in all protocols, have these backends.
fn node(family: Family, backends: &[(&str, bool)]) -> Fake {
    let mut node = Fake::node();
    for (id, protocol) in (1..).zip(PROTOCOLS) {
        let service = node.add_service(id, backends);
        node.cluster_ip(family.cluster, protocol, service);
        node.node_port(family.node, protocol, service);
    }
    node
}
