//! Answered flows of one client that have all source ports towards a backend.

use super::*;
use crate::addr::{Ip, Port};
use crate::fake::{masqueraded_flow, source_port};

/// The range of translated sources of the node.
const PORTS: core::ops::RangeInclusive<u16> = 61_000..=65_000;

/// A node all of whose source ports belong to answered, active flows. `client`: of the flow with a port.
fn crowded(protocol: Protocol, client: impl Fn(u16) -> Ip) -> Fake {
    let tables = node(&[(world::REMOTE4, false)]);
    let (frontend, backend) = (at(world::NODE4), at(world::REMOTE4));
    for port in PORTS {
        let client = Endpoint::new(client(port), Port::new(port));
        let own = Endpoint::new(frontend.ip, Port::new(port));
        for (kind, side, from, to) in masqueraded_flow([client, frontend, backend, own]) {
            let [from, to] = [from, to].map(|[one, other]| Tuple::new(one, other));
            let seen = tables.clock.get() - u64::from(port - 60_000) * 1_000_000;
            let mut flow = Flow::new(to, kind, seen);
            let is_answer = matches!(kind, Kind::REPLY | Kind::UNMASQUERADE);
            let answer = if is_answer { Flow::ANSWER } else { 0 };
            flow.flags = Flow::PROTECTED | Flow::MASQUERADED | answer;
            (flow.shown, flow.begun) = (Shown::ESTABLISHED, 0);
            (flow.service, flow.backend, flow.epoch) =
                (if protocol == Protocol::TCP { 1 } else { 2 }, 1, 101);
            tables.put(FlowKey::new(from, protocol, side), flow);
        }
    }
    tables
}

/// A packet of a client, through the node: the verdict where it leaves, and its source there.
fn send(tables: &Fake, protocol: Protocol, client: Endpoint) -> (Verdict, u16) {
    let transport =
        if protocol == Protocol::TCP { Transport::Tcp(tcp::SYN) } else { Transport::Udp(true) };
    let comes = Datagram::new(client, at(world::NODE4), transport).build();
    let (verdict, left) = run(&step(Hook::ExternalIngress, comes), tables);
    assert!(matches!(verdict, NEW | FORWARD), "{verdict:?}");
    let (verdict, out) = run(&step(Hook::ExternalEgress, left), tables);
    (verdict, u16::from_be_bytes(out[34..36].first_chunk().copied().expect("ports")))
}

fn crowd(_: u16) -> Ip {
    Ip::v4([198, 51, 100, 7])
}

const MASQUERADE: Verdict = Verdict::Translated(Translation::Masquerade);
const EXHAUSTED: Verdict = Verdict::Drop(DropReason::PortsExhausted);

#[test]
fn flow_of_a_client_with_all_ports_gives_its_own_up() {
    let tables = crowded(Protocol::UDP, crowd);
    let before = tables.all_flows().len();
    let (verdict, port) = send(&tables, Protocol::UDP, at("203.0.113.50:40000"));
    assert_eq!((verdict, tables.counted(Event::PortDisplaced)), (MASQUERADE, 1));
    // The other client has four entries, and the flow that had the port has lost its masquerade.
    assert_eq!(tables.all_flows().len(), before + 4 - 2);
    let lost = Endpoint::new(crowd(port), Port::new(port));
    let of_lost = |tables: &Fake| -> Vec<(Kind, bool)> {
        let all = tables.all_flows();
        let ends = |tuple: &Tuple| tuple.source == lost.ip && tuple.source_port == lost.port;
        let ours = all.iter().filter(|(key, flow)| ends(&key.tuple) || ends(&flow.to.reversed()));
        ours.map(|(_, flow)| (flow.kind, flow.is_protected())).collect()
    };
    let kinds = of_lost(&tables);
    assert_eq!(kinds.len(), 2, "{kinds:?}");
    assert!(kinds.iter().all(|(kind, is_protected)| {
        matches!(*kind, Kind::FORWARD | Kind::REPLY) && !is_protected
    }));
    let (verdict, another) = send(&tables, Protocol::UDP, lost);
    assert_eq!(verdict, MASQUERADE);
    assert_ne!(another, port, "it goes on with another port");
    assert_eq!(of_lost(&tables).len(), 4);
}

/// A backend that is gone for longer than an answered flow may be idle: the client's packets reach the node, and none
/// leaves it.
#[test]
fn client_that_sends_in_vain_gets_another_port_for_one_that_was_taken() {
    let clients = |port: u16| Ip::v4([198, 51, (port >> 8) as u8, port as u8]);
    let tables = crowded(Protocol::UDP, clients);
    let now = tables.clock.get() + 121 * SECOND;
    tables.clock.set(now);
    for flow in tables.flows.borrow_mut().values_mut().filter(|flow| flow.kind == Kind::FORWARD) {
        flow.seen = now - SECOND;
    }
    let (verdict, port) = send(&tables, Protocol::UDP, at("203.0.113.50:40000"));
    assert_eq!(verdict, MASQUERADE);
    let lost = Endpoint::new(clients(port), Port::new(port));
    let (verdict, another) = send(&tables, Protocol::UDP, lost);
    assert_eq!(verdict, MASQUERADE, "never with the client's own address");
    assert_ne!(another, port);
}

#[test]
fn clients_with_few_ports_each_keep_them() {
    let tables = crowded(Protocol::UDP, |port| Ip::v4([198, 51, (port >> 8) as u8, port as u8]));
    let before = tables.all_flows();
    assert_eq!(send(&tables, Protocol::UDP, at("203.0.113.50:40000")).0, EXHAUSTED);
    assert_eq!(tables.counted(Event::PortDisplaced), 0);
    assert!(before.keys().all(|key| tables.flow_at(key).is_some_and(|flow| flow.is_protected())));
}

#[test]
fn connections_of_a_client_with_all_ports_keep_them() {
    let tables = crowded(Protocol::TCP, crowd);
    assert_eq!(send(&tables, Protocol::TCP, at("203.0.113.50:40000")).0, EXHAUSTED);
    assert_eq!(tables.counted(Event::PortDisplaced), 0);
}

/// Several clients may crowd others out together.
#[test]
fn flows_of_some_clients_with_all_ports_give_their_own_up() {
    let tables = crowded(Protocol::UDP, |port| Ip::v4([198, 51, 100, (port % 5) as u8]));
    let clients =
        (1..=50).map(|host| Endpoint::new(Ip::v4([203, 0, 113, host]), Port::new(40_000)));
    for client in clients {
        assert_eq!(send(&tables, Protocol::UDP, client).0, MASQUERADE);
    }
    assert_eq!(tables.counted(Event::PortDisplaced), 50);
}

/// Only the last round may take a port in use: until then a free one may be found.
#[test]
fn free_port_is_found_before_the_last_round() {
    let client = at("203.0.113.50:40000");
    let tuple = Tuple::new(client, at(world::REMOTE4));
    for turn in [64, 100, 111, 112] {
        let tables = crowded(Protocol::UDP, crowd);
        let free = source_port(&PORTS, &tuple, Protocol::UDP, turn);
        let own = Tuple::new(at(world::REMOTE4), Endpoint::new(at(world::NODE4).ip, free));
        let key = FlowKey::new(own, Protocol::UDP, Side::INGRESS);
        assert!(tables.flows.borrow_mut().remove(&key).is_some());
        assert_eq!(send(&tables, Protocol::UDP, client), (MASQUERADE, free.get()), "{turn}");
        assert_eq!(tables.counted(Event::PortDisplaced), 0, "{turn}");
    }
}

/// The first port of a round may belong to a client that has no other one.
#[test]
fn client_with_one_port_hides_no_crowd() {
    let client = at("203.0.113.50:40000");
    let tuple = Tuple::new(client, at(world::REMOTE4));
    let first = source_port(&PORTS, &tuple, Protocol::UDP, 64).get();
    let tables = crowded(Protocol::UDP, |port| {
        if port == first { Ip::v4([198, 51, 100, 99]) } else { crowd(port) }
    });
    assert_eq!(send(&tables, Protocol::UDP, client).0, MASQUERADE);
    assert_eq!(tables.counted(Event::PortDisplaced), 1);
}

/// The client that has the ports tried in some turns; each other port has a client of its own.
fn crowded_in(turns: &[u32], client: Endpoint) -> Fake {
    let tuple = Tuple::new(client, at(world::REMOTE4));
    let port = |turn: &u32| source_port(&PORTS, &tuple, Protocol::UDP, *turn).get();
    let ports: Vec<u16> = turns.iter().map(port).collect();
    crowded(Protocol::UDP, |port| {
        if ports.contains(&port) {
            crowd(port)
        } else {
            Ip::v4([198, 51, (port >> 8) as u8, port as u8])
        }
    })
}

/// The first half of the tries looks for a free port only.
#[test]
fn ports_of_the_first_half_make_no_crowd() {
    let client = at("203.0.113.50:40000");
    let tables = crowded_in(&[16, 20, 120], client);
    assert_eq!(send(&tables, Protocol::UDP, client).0, EXHAUSTED);
    assert_eq!(tables.counted(Event::PortDisplaced), 0);
}

/// A client with two ports of one round is remembered until the last one.
#[test]
fn crowd_is_remembered_from_round_to_round() {
    let client = at("203.0.113.50:40000");
    let tables = crowded_in(&[64, 70, 120], client);
    assert_eq!(send(&tables, Protocol::UDP, client).0, MASQUERADE);
    assert_eq!(tables.counted(Event::PortDisplaced), 1);
}

/// The reply entry was displaced, and another flow has its key by now: that flow stays protected.
#[test]
fn flow_in_place_of_a_reply_keeps_its_protection() {
    let tables = crowded(Protocol::UDP, crowd);
    for flow in tables.flows.borrow_mut().values_mut().filter(|flow| flow.kind == Kind::REPLY) {
        flow.kind = Kind::FORWARD;
    }
    let protected = |tables: &Fake| {
        let flows = tables.flows.borrow();
        let is_other =
            |key: &FlowKey, flow: &Flow| key.side == Side::EGRESS && flow.kind == Kind::FORWARD;
        flows.iter().filter(|(key, flow)| is_other(key, flow)).count()
    };
    let before = protected(&tables);
    assert_eq!(send(&tables, Protocol::UDP, at("203.0.113.50:40000")).0, MASQUERADE);
    assert_eq!((protected(&tables), tables.counted(Event::PortDisplaced)), (before, 1));
}
