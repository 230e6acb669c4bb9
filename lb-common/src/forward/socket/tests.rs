//! Socket calls of a node's processes and pods, on this host.

use std::vec::Vec;

use super::{Asker, Call, Choice, Outcome, connect, named, peer_name};
use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::config::Settings;
use crate::event::Event;
use crate::fake::{Fake, at, world};
use crate::flow::Peer;
use crate::service::{Backend, Flags, Frontend, Service};

mod pods;

const HOST: u64 = 7;
const SOCKET: u64 = 1_000;
const NOBODY: &str = "203.0.113.77:80";
const UNBOUND: Endpoint = Endpoint::new(Ip::UNSPECIFIED, Port::NONE);

/// The addresses of one family: two frontends, two backends, the loopback, a ClusterIP of one port.
struct Family {
    cluster: &'static str,
    node: &'static str,
    loopback: &'static str,
    backends: [(&'static str, bool); 2],
}

const V4: Family = Family {
    cluster: world::CLUSTER4,
    node: world::NODE4,
    loopback: "127.0.0.1:30080",
    backends: [(world::LOCAL4, true), (world::REMOTE4, false)],
};
const FAMILIES: [Family; 2] = [
    V4,
    Family {
        cluster: world::CLUSTER6,
        node: world::NODE6,
        loopback: "[::1]:30080",
        backends: [(world::LOCAL6, true), (world::REMOTE6, false)],
    },
];

/// A node whose one service has these backends, under both protocols and by all frontends of a family.
fn node(family: &Family, backends: &[(&str, bool)], flavour: impl Fn(Service) -> Service) -> Fake {
    let mut tables = Fake::node();
    tables.settings.node.netns_cookie = HOST;
    tables.settings.node.flags |= Settings::LOOPBACK_NODE_PORTS;
    for (id, protocol) in [(1, Protocol::TCP), (2, Protocol::UDP)] {
        let service = flavour(tables.add_service(id, backends));
        tables.cluster_ip(family.cluster, protocol, service);
        tables.node_port(family.node, protocol, service);
    }
    tables
}

fn plain(family: &Family) -> Fake {
    node(family, &family.backends, |service| service)
}

fn call(to: &str, protocol: Protocol, socket: u64) -> Call {
    Call { remote: at(to), local: UNBOUND, protocol, socket, netns: HOST }
}

/// Working memory as another call left it.
fn used_memory() -> Choice {
    let other = at("198.51.100.9:9999");
    Choice {
        service: Service { id: 99, flags: Flags(u32::MAX), affinity: 99, ..Service::default() },
        frontend: Frontend::new(other.ip, other.port, Protocol::SCTP),
        asker: Asker { client: other.ip, source: other.ip, hash: 99, local: 1 },
        backend: Backend { ip: other.ip, port: other.port, epoch: 99, ..Backend::default() },
        backend_id: 99,
        scope: 1,
        frontends_epoch: 0,
    }
}

fn connects(tables: &Fake, call: &Call) -> Outcome {
    let Some(named) = named(tables, call) else { return Outcome::Leave };
    connect(tables, &mut used_memory(), call, named)
}

/// The backend that a call was sent to.
#[track_caller]
fn used(outcome: Outcome) -> Endpoint {
    match outcome {
        Outcome::Use(end) => end,
        Outcome::Leave | Outcome::Refuse => panic!("{outcome:?}"),
    }
}

#[test]
fn connected_socket_gets_a_backend_and_is_shown_the_frontend() {
    for family in &FAMILIES {
        let tables = plain(family);
        let ends: Vec<Endpoint> = family.backends.iter().map(|(end, _)| at(end)).collect();
        for frontend in [family.cluster, family.node, family.loopback] {
            let mut seen = Vec::new();
            for socket in 0..64 {
                let backend =
                    used(connects(&tables, &call(frontend, Protocol::TCP, SOCKET + socket)));
                assert!(ends.contains(&backend), "{frontend} {backend:?}");
                seen.push(backend);
                let peer = Peer { frontend: at(frontend), backend };
                let shown = peer_name(&tables, Some(&peer), &backend);
                assert_eq!(shown, Outcome::Use(at(frontend)));
                let other = peer_name(&tables, Some(&peer), &at(frontend));
                assert_eq!(other, Outcome::Leave, "another peer");
                assert_eq!(peer_name(&tables, None, &backend), Outcome::Leave, "not ours");
            }
            assert!(ends.iter().all(|end| seen.contains(end)), "{frontend}: {seen:?}");
        }
        assert!(tables.all_flows().is_empty(), "connections are the kernel's to remember");
    }
}

/// Source ranges, and the way back of answers, depend on it: through a tunnel also where it is the node's own.
#[test]
fn socket_that_is_bound_to_an_address_is_left_to_its_packets() {
    let tables = plain(&V4);
    let unbound = call(world::CLUSTER4, Protocol::TCP, SOCKET);
    for (local, is_served) in [
        ("0.0.0.0:0", true),
        ("192.168.0.10:0", false),
        ("127.0.0.1:0", false),
        ("198.51.100.1:0", false),
        ("10.1.0.5:0", false),
    ] {
        let outcome = connects(&tables, &Call { local: at(local), ..unbound });
        assert_eq!(matches!(outcome, Outcome::Use(_)), is_served, "{local}");
    }
}

/// The kernel has one connection from a port to a backend, frontends have several.
#[test]
fn socket_that_is_bound_to_a_port_is_left_to_its_packets() {
    for family in &FAMILIES {
        let tables = plain(family);
        for frontend in [family.cluster, family.node, family.loopback] {
            let unbound = call(frontend, Protocol::TCP, SOCKET);
            let local = Endpoint::new(Ip::UNSPECIFIED, Port::new(25_000));
            assert_eq!(connects(&tables, &Call { local, ..unbound }), Outcome::Leave, "{frontend}");
        }
    }
}

#[test]
fn unspecified_address_is_left_alone() {
    for (family, any) in FAMILIES.iter().zip(["0.0.0.0:30080", "[::]:30080"]) {
        let mut tables = plain(family);
        tables.settings.node.socket_mode = Settings::SOCKETS_ALL;
        for protocol in [Protocol::TCP] {
            let own = call(any, protocol, SOCKET);
            for asked in [own, Call { netns: HOST + 1, ..own }] {
                assert_eq!(connects(&tables, &asked), Outcome::Leave, "{asked:?}");
            }
        }
    }
}

#[test]
fn calls_to_no_service_are_left_alone() {
    let tables = plain(&V4);
    for to in [NOBODY, world::REMOTE4, "192.168.0.10:30081", "192.168.0.11:30080", "127.0.0.1:80"] {
        let asked = call(to, Protocol::TCP, SOCKET);
        assert_eq!(connects(&tables, &asked), Outcome::Leave, "{to}");
    }
    assert!(tables.all_flows().is_empty());
}

#[test]
fn call_is_refused_without_backends_and_left_if_forbidden() {
    for family in &FAMILIES {
        let empty = node(family, &[], |service| service);
        let forbidden = node(family, &family.backends, |service| Service {
            flags: service.flags.with(Flags::SOURCE_RANGES),
            ..service
        });
        let elsewhere = [family.backends[1]];
        let not_here = node(family, &elsewhere, |service| Service {
            flags: service.flags.with(Flags::LOCAL_POLICY),
            ..service
        });
        for protocol in [Protocol::TCP] {
            let asked = call(family.cluster, protocol, SOCKET);
            for (tables, outcome) in [
                (&empty, Outcome::Refuse),
                (&forbidden, Outcome::Leave),
                (&not_here, Outcome::Leave),
            ] {
                assert_eq!(connects(tables, &asked), outcome);
            }
            let asked = call(family.node, protocol, SOCKET);
            let served = used(connects(&not_here, &asked));
            assert_eq!(served, at(elsewhere[0].0), "no external policy binds a host");
        }
        assert_eq!(empty.counted(Event::SocketRefused), 1);
    }
    let tables = plain(&V4);
    let wrong = call("10.96.0.10:81", Protocol::TCP, SOCKET);
    assert_eq!(connects(&tables, &wrong), Outcome::Refuse, "a ClusterIP without such a port");
}

#[test]
fn allowed_source_is_the_nodes_own() {
    let mut tables = node(&V4, &V4.backends, |service| Service {
        flags: service.flags.with(Flags::SOURCE_RANGES),
        ..service
    });
    let own = at(world::NODE4).ip;
    let [a, b, c, d] = own.v4_octets();
    tables.allow(1, &std::format!("{a}.{b}.{c}.{d}"), 32);
    let _backend = used(connects(&tables, &call(world::CLUSTER4, Protocol::TCP, SOCKET)));
}

/// The client is the address that the packets have: a process that is bound to a port has the same backend.
#[test]
fn affinity_is_left_to_the_packets() {
    for family in &FAMILIES {
        let tables = node(family, &family.backends, |service| Service { affinity: 60, ..service });
        for frontend in [family.cluster, family.node, family.loopback] {
            let asked = call(frontend, Protocol::TCP, SOCKET);
            assert_eq!(connects(&tables, &asked), Outcome::Leave, "{frontend}");
        }
        assert!(tables.affinity.borrow().is_empty());
    }
}

#[test]
fn mapped_address_is_the_ipv4_frontend() {
    let tables = plain(&V4);
    let mut asked = call(world::CLUSTER4, Protocol::TCP, SOCKET);
    let [a, b, c, d] = asked.remote.ip.v4_octets();
    asked.remote.ip = Ip::v6([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]);
    let backend = used(connects(&tables, &asked));
    assert!(backend.ip.is_v4());
    let peer = Peer { frontend: asked.remote, backend };
    let shown = peer_name(&tables, Some(&peer), &backend);
    assert_eq!(shown, Outcome::Use(at(world::CLUSTER4)));
}
