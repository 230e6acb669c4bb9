//! Source ports, and flows whose entries find no memory.

use std::collections::BTreeSet;
use std::format;
use std::vec::Vec;

use super::search::{NEXT, source_port, wish};
use crate::addr::{Endpoint, Port, Protocol};
use crate::config::{NodeSettings, Settings};
use crate::event::{DropReason, Event, Hook, PassReason, Translation, Verdict};
use crate::fake::{Datagram, Fake, Meanwhile, Step, Transport, at, run, world};
use crate::flow::{Flow, FlowKey, Kind, Side, Tuple};
use crate::forward::PortSearch;
use crate::hash;
use crate::tables::Filters as _;
use crate::wire::tcp;

fn step(hook: Hook, packet: &Datagram) -> Step {
    let verdict = Verdict::Translated(Translation::NewFlow);
    Step { hook, from_host: false, packet: packet.build(), verdict, out: None }
}

/// A client outside asks a `NodePort` of this node, whose backend is on another.
fn node() -> (Fake, Step, Step) {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::REMOTE4, false)]);
    tables.node_port(world::NODE4, Protocol::TCP, service);
    let comes = step(Hook::ExternalIngress, &Datagram::syn(world::CLIENT4, world::NODE4));
    let leaves = step(Hook::ExternalEgress, &Datagram::syn(world::CLIENT4, world::REMOTE4));
    (tables, comes, leaves)
}

fn key(from: &str, to: &str, side: Side) -> FlowKey {
    FlowKey::new(Tuple::new(at(from), at(to)), Protocol::TCP, side)
}

#[test]
fn source_without_memory_for_its_flow_leaves_nothing() {
    let (mut tables, comes, leaves) = node();
    let _new = run(&comes, &tables);
    let masquerade = key(world::CLIENT4, world::REMOTE4, Side::EGRESS);
    assert_eq!(tables.all_flows()[&masquerade].kind, Kind::MASQUERADE);
    tables.flow_failures.insert(masquerade);
    let (verdict, out) = run(&leaves, &tables);
    assert_eq!(verdict, Verdict::Drop(DropReason::FlowTableFull));
    assert_eq!(out, leaves.packet);
    assert!(tables.all_flows().is_empty(), "{:#?}", tables.all_flows());
    tables.flow_failures.clear();
    let _new = run(&comes, &tables);
    assert_eq!(run(&leaves, &tables).0, Verdict::Translated(Translation::Masquerade));
}

#[test]
fn answered_flow_outlives_a_packet_that_finds_no_source() {
    let (mut tables, comes, leaves) = node();
    let _new = run(&comes, &tables);
    let mut reply = tables.all_flows()[&key(world::REMOTE4, world::CLIENT4, Side::EGRESS)];
    reply.flags |= Flow::PROTECTED;
    tables.put(key(world::REMOTE4, world::CLIENT4, Side::EGRESS), reply);
    let before = tables.all_flows();
    let masquerade = key(world::CLIENT4, world::REMOTE4, Side::EGRESS);
    tables.flow_failures.insert(masquerade);
    assert_eq!(run(&leaves, &tables).0, Verdict::Drop(DropReason::FlowTableFull));
    assert_eq!(tables.all_flows(), before);
}

#[test]
fn no_entry_stands_where_another_finds_no_memory() {
    for (from, to, side) in [
        (world::CLIENT4, world::NODE4, Side::INGRESS),
        (world::CLIENT4, world::REMOTE4, Side::EGRESS),
        (world::REMOTE4, world::CLIENT4, Side::EGRESS),
    ] {
        let (mut tables, comes, _) = node();
        tables.flow_failures.insert(key(from, to, side));
        let (verdict, out) = run(&comes, &tables);
        assert_eq!(verdict, Verdict::Drop(DropReason::FlowTableFull), "{from} {to}");
        assert_eq!(out, comes.packet);
        assert!(tables.all_flows().is_empty(), "{from} {to}: {:#?}", tables.all_flows());
        assert_eq!(tables.counted(Event::FlowNoMemory), 1);
    }
}

/// While a new flow searches, another CPU changes the flow whose port it is about to take. Returns whether the new flow
/// has that port then.
fn search_beside(change: impl FnOnce(&mut Flow, u64)) -> bool {
    const WIDTH: u16 = 16;
    let (mut tables, ..) = node();
    let ports = (61_000, 61_000 + WIDTH - 1);
    let node = &mut tables.settings.node;
    node.set_source_ports(Port::new(ports.0), Port::new(ports.1));
    let ask = |tables: &Fake, number: u16| {
        let client = format!("203.0.113.9:{}", 50_000 + number);
        let comes = step(Hook::ExternalIngress, &Datagram::syn(&client, world::NODE4));
        let leaves = step(Hook::ExternalEgress, &Datagram::syn(&client, world::REMOTE4));
        (run(&comes, tables).0, run(&leaves, tables).0)
    };
    for number in 0..WIDTH {
        tables.clock.set(tables.clock.get() + 1_000_000_000);
        assert_eq!(ask(&tables, number).1, Verdict::Translated(Translation::Masquerade));
    }
    let of_port = |port: Port| {
        let node = Endpoint::new(at(world::NODE4).ip, port);
        FlowKey::new(Tuple::new(at(world::REMOTE4), node), Protocol::TCP, Side::INGRESS)
    };
    let all = tables.all_flows();
    let kept = |key: &FlowKey| all[key].seen;
    let keys: Vec<FlowKey> = (ports.0..=ports.1).map(|port| of_port(Port::new(port))).collect();
    let oldest = *keys.iter().min_by_key(|key| kept(key)).unwrap();
    let tuple = Tuple::new(at("203.0.113.9:50100"), at(world::REMOTE4));
    let wish = wish(&tuple, Protocol::TCP);
    let last = source_port(ports, wish.wrapping_add(NEXT.wrapping_mul(PortSearch::ROUND - 1)));
    assert_ne!(of_port(last), oldest, "the oldest flow must have been found by then");
    let mut flow = all[&oldest];
    change(&mut flow, tables.clock.get() + 1_000_000_000);
    let writes = std::vec![(oldest, Some(flow))];
    tables.meanwhile.borrow_mut().push_back(Meanwhile { before: of_port(last), writes });
    tables.clock.set(tables.clock.get() + 1_000_000_000);
    assert_eq!(ask(&tables, 100).1, Verdict::Translated(Translation::Masquerade));
    assert!(tables.meanwhile.borrow().is_empty(), "the other CPU has not written");
    let after = tables.all_flows();
    assert_eq!(after[&oldest], flow, "the entry of the other CPU stays");
    assert_eq!(
        after.get(&oldest.opposite(&all[&oldest])).map(|it| it.kind),
        Some(Kind::MASQUERADE)
    );
    let masquerade = after[&FlowKey::new(tuple, Protocol::TCP, Side::EGRESS)];
    masquerade.to.source_port == oldest.tuple.destination_port
}

#[test]
fn flow_that_was_protected_during_a_search_keeps_its_port() {
    assert!(!search_beside(|flow, _now| flow.flags |= Flow::PROTECTED));
}

/// Another flow has displaced the one that was found.
#[test]
fn flow_that_got_the_port_during_a_search_keeps_it() {
    assert!(!search_beside(|flow, now| {
        flow.to.destination_port = Port::new(50_099);
        flow.seen = now;
    }));
}

/// Another packet of the same flow has found the same port.
#[test]
fn flow_has_one_port_although_two_of_its_packets_search() {
    assert!(search_beside(|flow, now| {
        flow.to.destination_port = Port::new(50_100);
        flow.seen = now;
    }));
}

/// While a packet of a flow finds no source, another packet of it finds one on another CPU.
#[test]
fn source_that_another_packet_found_stays() {
    let (mut tables, comes, leaves) = node();
    tables.settings.node.set_source_ports(Port::new(61_000), Port::new(61_000));
    let own = Endpoint::new(at(world::NODE4).ip, Port::new(61_000));
    let replies = Tuple::new(at(world::REMOTE4), own);
    let answers = FlowKey::new(replies, Protocol::TCP, Side::INGRESS);
    let other = Tuple::new(at(world::REMOTE4), at("203.0.113.9:50001"));
    let mut occupant = Flow::new(other, Kind::UNMASQUERADE, tables.clock.get());
    occupant.flags |= Flow::PROTECTED | Flow::ANSWER;
    tables.put(answers, occupant);
    let _new = run(&comes, &tables);
    let masquerade = key(world::CLIENT4, world::REMOTE4, Side::EGRESS);
    let mut chosen = tables.all_flows()[&masquerade];
    chosen.to = replies.reversed();
    let writes = std::vec![(masquerade, Some(chosen))];
    tables.meanwhile.borrow_mut().push_back(Meanwhile { before: answers, writes });
    let before = tables.all_flows().len();
    assert_eq!(run(&leaves, &tables).0, Verdict::Drop(DropReason::PortsExhausted));
    assert!(tables.meanwhile.borrow().is_empty(), "the other CPU has not written");
    let after = tables.all_flows();
    assert_eq!((after.len(), after[&masquerade].to), (before, chosen.to));
}

/// A process of the node asks a server of the node, whose port is one of those for translated sources.
#[test]
fn translated_source_is_never_the_server_itself() {
    for client in 45_000..45_008 {
        let mut tables = Fake::node();
        let service = tables.add_service(1, &[("192.168.0.10:8080", true)]);
        tables.node_port(world::NODE4, Protocol::TCP, service);
        tables.settings.node.set_source_ports(Port::new(8_080), Port::new(8_081));
        let asked = Datagram::syn(&format!("192.168.0.10:{client}"), world::NODE4);
        let asked = Step { from_host: true, ..step(Hook::HostEgress, &asked) };
        let (verdict, packet) = run(&asked, &tables);
        assert_eq!(verdict, Verdict::Translated(Translation::NewFlow));
        let [source, destination] = ["192.168.0.10:8081", "192.168.0.10:8080"];
        assert_eq!(packet, Datagram::syn(source, destination).build());
    }
}

/// A collector gets datagrams and never answers. Another flow that needs a port takes that of an older one.
/// A UDP `NodePort` whose backend is on another node, with two source ports.
fn two_ports() -> Fake {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::REMOTE4, false)]);
    tables.node_port(world::NODE4, Protocol::UDP, service);
    tables.settings.node.set_source_ports(Port::new(61_000), Port::new(61_001));
    tables
}

/// The datagram of a client, by its number, as it leaves to the backend `seconds` later.
fn sends(tables: &Fake, number: u16, seconds: u64) -> Vec<u8> {
    tables.clock.set(tables.clock.get() + seconds * 1_000_000_000);
    let client = format!("203.0.113.9:{}", 50_000 + number);
    let datagram = |to: &str| Datagram::new(at(&client), at(to), Transport::Udp(true));
    let _followed = run(&step(Hook::ExternalIngress, &datagram(world::NODE4)), tables);
    let (verdict, packet) = run(&step(Hook::ExternalEgress, &datagram(world::REMOTE4)), tables);
    assert_eq!(verdict, Verdict::Translated(Translation::Masquerade));
    packet
}

#[test]
fn unanswered_flow_in_use_keeps_its_port() {
    let tables = two_ports();
    let first = sends(&tables, 0, 0);
    for _ in 0..5 {
        assert_eq!(sends(&tables, 0, 10), first);
    }
    let _other = sends(&tables, 1, 5);
    assert_eq!(sends(&tables, 0, 5), first);
    // Sixty-one seconds after the first datagram.
    let _newest = sends(&tables, 2, 1);
    assert_eq!(sends(&tables, 0, 0), first, "its port went to another flow");
}

/// A configured life of unanswered flows counts for their ports as well.
#[test]
fn unanswered_flow_keeps_its_port_for_its_life() {
    for number in 1..20 {
        let mut tables = two_ports();
        tables.settings.node.lifetimes.unreplied = 300;
        let port = |packet: Vec<u8>| packet[34..36].to_vec();
        let first = port(sends(&tables, 0, 0));
        assert_ne!(port(sends(&tables, number, 100)), first, "{number}");
    }
}

/// Where pods may be masqueraded, a flow that begins removes an older masquerade between its ends, and nothing else.
#[test]
fn flow_that_begins_leaves_the_reply_of_the_other_direction() {
    for (kind, stays) in [(Kind::REPLY, true), (Kind::MASQUERADE, false)] {
        let mut tables = Fake::node();
        let service = tables.add_service(1, &[(world::LOCAL4, true)]);
        tables.cluster_ip(world::CLUSTER4, Protocol::TCP, service);
        tables.settings.node.flags |= Settings::ANY_MASQUERADE_AT_PODS;
        let other = key(world::POD4, world::LOCAL4, Side::EGRESS);
        let to = Tuple::new(at("10.96.0.99:80"), at(world::LOCAL4));
        tables.put(other, Flow::new(to, kind, tables.clock.get()));
        let comes = step(Hook::PodIngress, &Datagram::syn(world::POD4, world::CLUSTER4));
        assert_eq!(run(&comes, &tables).0, comes.verdict);
        assert_eq!(tables.all_flows().contains_key(&other), stays, "{kind:?}");
    }
}

/// The backend's node would take the replies for requests to the external IP, which it serves too.
#[test]
fn no_source_port_is_that_of_an_external_ip_of_the_node() {
    for number in 0..8 {
        let (mut tables, ..) = node();
        tables.settings.node.set_source_ports(Port::new(61_000), Port::new(61_001));
        let service = tables.add_service(2, &[(world::LOCAL4, true)]);
        tables.external("192.168.0.10:61000", Protocol::TCP, service);
        let client = format!("203.0.113.9:{}", 50_000 + number);
        let _new =
            run(&step(Hook::ExternalIngress, &Datagram::syn(&client, world::NODE4)), &tables);
        let leaves = step(Hook::ExternalEgress, &Datagram::syn(&client, world::REMOTE4));
        let (verdict, out) = run(&leaves, &tables);
        assert_eq!(verdict, Verdict::Translated(Translation::Masquerade));
        assert_eq!(out, Datagram::syn("192.168.0.10:61001", world::REMOTE4).build(), "{client}");
    }
}

/// The ports that Linux gives its own connections by default.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32_768..=60_999;

#[test]
fn ports_of_one_client_become_as_many_others() {
    let settings = NodeSettings {
        source_port_low: Port::new(1_024),
        source_port_high: Port::new(29_999),
        ..NodeSettings::default()
    };
    for number in 0..8 {
        let backend = Endpoint::new(at("10.244.2.7:0").ip, Port::new(8_000 + number));
        let client = at("192.168.0.9:0").ip;
        let port = |port| {
            let tuple = Tuple::new(Endpoint::new(client, Port::new(port)), backend);
            source_port(settings.source_ports(tuple.source_port), wish(&tuple, Protocol::TCP))
        };
        let ports: BTreeSet<_> = EPHEMERAL.map(port).collect();
        assert_eq!(ports.len(), EPHEMERAL.len(), "{backend:?}");
        assert!(ports.iter().all(|port| (1_024..30_000).contains(&port.get())));
        let privileged: BTreeSet<_> = (1..1_024).map(port).collect();
        assert_eq!(privileged.len(), 424, "{backend:?}");
        assert!(privileged.iter().all(|port| (600..1_024).contains(&port.get())));
    }
}

/// As a mount of NFS from this node to the server that a `NodePort` leads to.
#[test]
fn privileged_source_is_no_port_that_the_node_talks_to_the_backend_from() {
    let host = |end: &str, port: u16| end.rsplit_once(':').map(|(ip, _)| format!("{ip}:{port}"));
    let source = |tables: &Fake| {
        let client = host(world::CLIENT4, 700).unwrap();
        let comes = Datagram::syn(&client, world::NODE4);
        let leaves = Datagram::syn(&client, world::REMOTE4);
        let begins = step(Hook::ExternalIngress, &comes);
        assert_eq!(run(&begins, tables).0, begins.verdict);
        let masqueraded = run(&step(Hook::ExternalEgress, &leaves), tables).0;
        assert_eq!(masqueraded, Verdict::Translated(Translation::Masquerade));
        let masquerade = key(&client, world::REMOTE4, Side::EGRESS);
        tables.all_flows()[&masquerade].to.source_port.get()
    };
    let (tables, ..) = node();
    let first = source(&tables);
    assert!((600..1_024).contains(&first), "{first}");
    let connects = |tables: &Fake, port| {
        let own = Datagram::syn(&host(world::NODE4, port).unwrap(), world::REMOTE4);
        run(&Step { from_host: true, ..step(Hook::ExternalEgress, &own) }, tables).0
    };
    let (tables, ..) = node();
    let _passed = connects(&tables, first);
    let second = source(&tables);
    assert!(second != first && (600..1_024).contains(&second), "{first}, then {second}");
    // It has connected from each of them once, and the record outlives connections.
    let (tables, ..) = node();
    for port in 600..1_024 {
        let _passed = connects(&tables, port);
    }
    assert!((600..1_024).contains(&source(&tables)));
}

/// A CNI plugin with random ports has masqueraded the connection of a pod to the backend.
#[test]
fn source_of_a_connection_that_netfilter_masquerades_is_not_used() {
    let source = |tables: &Fake| {
        let comes = step(Hook::ExternalIngress, &Datagram::syn(world::CLIENT4, world::NODE4));
        assert_eq!(run(&comes, tables).0, comes.verdict);
        let leaves = step(Hook::ExternalEgress, &Datagram::syn(world::CLIENT4, world::REMOTE4));
        let masqueraded = run(&leaves, tables).0;
        assert_eq!(masqueraded, Verdict::Translated(Translation::Masquerade));
        let masquerade = key(world::CLIENT4, world::REMOTE4, Side::EGRESS);
        tables.all_flows()[&masquerade].to.source_port
    };
    let (tables, ..) = node();
    let first = source(&tables);
    let (tables, ..) = node();
    let own = Endpoint::new(at(world::NODE4).ip, first);
    let connects = Datagram::new(own, at(world::REMOTE4), Transport::Tcp(tcp::SYN));
    let passed = run(&step(Hook::ExternalEgress, &connects), &tables).0;
    assert_eq!(passed, Verdict::Pass(PassReason::NotOurs));
    assert_ne!(source(&tables), first);
}

/// Records outlive connections: where all ports of one round have one, the next port is given all the same.
#[test]
fn records_of_own_connections_refuse_the_ports_of_one_round() {
    let (tables, ..) = node();
    let client = "203.0.113.9:700";
    for port in 600..1_024 {
        let own = Endpoint::new(at(world::NODE4).ip, Port::new(port));
        let hash = hash::whole(&Tuple::new(at(world::REMOTE4), own), Protocol::TCP);
        tables.put_own_answer(hash, Flow::moment(tables.clock.get()));
    }
    let comes = step(Hook::ExternalIngress, &Datagram::syn(client, world::NODE4));
    assert_eq!(run(&comes, &tables).0, comes.verdict);
    let leaves = step(Hook::ExternalEgress, &Datagram::syn(client, world::REMOTE4));
    assert_eq!(run(&leaves, &tables).0, Verdict::Translated(Translation::Masquerade));
    assert_eq!(tables.counted(Event::PortTaken), PortSearch::ROUND.into());
}

/// A protected flow in the way is over as soon as it was idle for as long as any flow may be: here that is the shortest
/// of all lives.
#[test]
fn idle_flow_is_over_at_the_end_of_its_life() {
    for (seconds, is_over) in [(9, false), (10, true), (11, true)] {
        let (mut tables, comes, _) = node();
        let lifetimes = &mut tables.settings.node.lifetimes;
        (lifetimes.open, lifetimes.half_closed) = (10, 10);
        let reply = key(world::REMOTE4, world::CLIENT4, Side::EGRESS);
        let frontend = Tuple::new(at("192.168.0.10:30081"), at(world::CLIENT4));
        let seen = tables.clock.get() - seconds * 1_000_000_000;
        let mut occupant = Flow::new(frontend, Kind::REPLY, seen);
        occupant.flags = Flow::PROTECTED | Flow::ANSWER;
        tables.put(reply, occupant);
        assert_eq!(run(&comes, &tables).0, comes.verdict);
        let has_its_place = tables.all_flows()[&reply].to != frontend;
        assert_eq!(has_its_place, is_over, "idle for {seconds} s");
        assert_eq!(tables.counted(Event::PortShifted), u64::from(!is_over));
    }
}
