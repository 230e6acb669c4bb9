//! Ports and halves of two packets of a flow, where one of them finds no room.

use std::collections::{BTreeMap, BTreeSet};

use super::{source_port, wish};
use crate::addr::{Endpoint, Port, Protocol};
use crate::config::Settings;
use crate::event::{DropReason, Event, Hook, Translation, Verdict};
use crate::fake::{Datagram, Fake, Meanwhile, Step, at, run, world};
use crate::flow::{Flow, FlowKey, Kind, Side, Tuple};

fn step(hook: Hook, packet: &Datagram) -> Step {
    let verdict = Verdict::Translated(Translation::NewFlow);
    Step { hook, from_host: false, packet: packet.build(), verdict, out: None }
}

/// A client outside asks a `NodePort` of this node, whose backend is on another.
fn node() -> (Fake, Step, Step) {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::REMOTE4, false)]);
    tables.node_port(world::NODE4, Protocol::TCP, service);
    let comes = step(Hook::EdgeIngress, &Datagram::syn(world::CLIENT4, world::NODE4));
    let leaves = step(Hook::EdgeEgress, &Datagram::syn(world::CLIENT4, world::REMOTE4));
    (tables, comes, leaves)
}

fn key(from: &str, to: &str, side: Side) -> FlowKey {
    FlowKey::new(Tuple::new(at(from), at(to)), Protocol::TCP, side)
}

#[test]
fn source_without_room_for_its_flow_is_given_back() {
    let (mut tables, comes, leaves) = node();
    let _new = run(&comes, &tables);
    let before = tables.flows.borrow().clone();
    let mark = key(world::CLIENT4, world::REMOTE4, Side::EGRESS);
    assert_eq!(before[&mark].kind, Kind::MASQUERADE);
    let _: bool = tables.flow_failures.insert(mark);
    let (verdict, out) = run(&leaves, &tables);
    assert_eq!(verdict, Verdict::Drop(DropReason::FlowTableFull));
    assert_eq!(out, leaves.packet);
    assert_eq!(*tables.flows.borrow(), before, "nothing is left of it");
    tables.flow_failures.clear();
    assert_eq!(run(&leaves, &tables).0, Verdict::Translated(Translation::Masquerade));
}

#[test]
fn no_half_stands_where_another_finds_no_room() {
    for (from, to, side) in [
        (world::CLIENT4, world::NODE4, Side::INGRESS),
        (world::CLIENT4, world::REMOTE4, Side::EGRESS),
        (world::REMOTE4, world::CLIENT4, Side::EGRESS),
    ] {
        let (mut tables, comes, _) = node();
        let _: bool = tables.flow_failures.insert(key(from, to, side));
        let (verdict, out) = run(&comes, &tables);
        assert_eq!(verdict, Verdict::Drop(DropReason::FlowTableFull), "{from} {to}");
        assert_eq!(out, comes.packet);
        assert!(tables.flows.borrow().is_empty(), "{from} {to}: {:#?}", tables.flows);
        assert_eq!(tables.counted(Event::FlowNoMemory), 1, "told from a full table");
    }
}

#[test]
fn half_that_another_packet_of_the_flow_made_outlives_a_failure() {
    for mark in [None, Some(key(world::CLIENT4, world::REMOTE4, Side::EGRESS))] {
        let (mut tables, comes, leaves) = node();
        let _new = run(&comes, &tables);
        let _left = run(&leaves, &tables);
        let forward = key(world::CLIENT4, world::NODE4, Side::INGRESS);
        // As if the other one were about to write it.
        let _: Option<_> = tables.flows.borrow_mut().remove(&forward);
        let _: bool = tables.flow_failures.insert(mark.unwrap_or(forward));
        let before: BTreeSet<FlowKey> = tables.flows.borrow().keys().copied().collect();
        assert_eq!(run(&comes, &tables).0, Verdict::Drop(DropReason::FlowTableFull));
        let after: BTreeSet<FlowKey> = tables.flows.borrow().keys().copied().collect();
        assert_eq!(after, before);
    }
}

/// Lets another CPU remove or put halves right before one is written.
fn meanwhile(tables: &Fake, before: FlowKey, writes: &[(FlowKey, Option<Flow>)]) {
    let turn = Meanwhile { before, writes: writes.to_vec() };
    tables.meanwhile.borrow_mut().push_back(turn);
}

/// What stands once the first packet came in, and once it left.
fn halves() -> [BTreeMap<FlowKey, Flow>; 2] {
    let (tables, comes, leaves) = node();
    [comes, leaves].map(|step| {
        let _done = run(&step, &tables);
        tables.flows.borrow().clone()
    })
}

#[test]
fn halves_that_another_cpu_takes_back_stand_again() {
    let [came, left] = halves();
    let forward = key(world::CLIENT4, world::NODE4, Side::INGRESS);
    let mark = key(world::CLIENT4, world::REMOTE4, Side::EGRESS);
    let reply = key(world::REMOTE4, world::CLIENT4, Side::EGRESS);

    // It made the reply, found no room for its forward half, and takes back before ours stands.
    let (tables, comes, leaves) = node();
    let _: Option<Flow> = tables.flows.borrow_mut().insert(reply, came[&reply]);
    meanwhile(&tables, forward, &[(mark, None), (reply, None)]);
    assert_eq!(run(&comes, &tables).0, Verdict::Translated(Translation::NewFlow));
    assert_eq!(*tables.flows.borrow(), came);

    // The same with the source of what leaves.
    let (back, unmasquerade) = of_kind(&left, Kind::UNMASQUERADE);
    let _: Option<Flow> = tables.flows.borrow_mut().insert(back, unmasquerade);
    meanwhile(&tables, mark, &[(back, None)]);
    assert_eq!(run(&leaves, &tables).0, Verdict::Translated(Translation::Masquerade));
    assert_eq!(*tables.flows.borrow(), left);
    assert!(tables.meanwhile.borrow().is_empty());
}

#[test]
fn what_is_taken_back_stands_again_for_another_cpu() {
    let [came, left] = halves();
    let forward = key(world::CLIENT4, world::NODE4, Side::INGRESS);
    let mark = key(world::CLIENT4, world::REMOTE4, Side::EGRESS);
    let reply = key(world::REMOTE4, world::CLIENT4, Side::EGRESS);

    // We make the reply and find no room; it puts its forward half before we take back.
    let (mut tables, comes, leaves) = node();
    let _: bool = tables.flow_failures.insert(forward);
    meanwhile(&tables, reply, &[]);
    meanwhile(&tables, reply, &[(forward, Some(came[&forward]))]);
    assert_eq!(run(&comes, &tables).0, Verdict::Drop(DropReason::FlowTableFull));
    assert_eq!(*tables.flows.borrow(), came);

    // The same with the source of what leaves.
    let (back, _) = of_kind(&left, Kind::UNMASQUERADE);
    let _: bool = tables.flow_failures.insert(mark);
    meanwhile(&tables, back, &[]);
    meanwhile(&tables, back, &[(mark, Some(left[&mark]))]);
    assert_eq!(run(&leaves, &tables).0, Verdict::Drop(DropReason::FlowTableFull));
    assert_eq!(*tables.flows.borrow(), left);
    assert!(tables.meanwhile.borrow().is_empty());
}

#[test]
fn no_half_stands_alone_where_what_was_taken_back_finds_no_room() {
    let [came, _] = halves();
    let forward = key(world::CLIENT4, world::NODE4, Side::INGRESS);
    let reply = key(world::REMOTE4, world::CLIENT4, Side::EGRESS);
    let (mut tables, comes, _) = node();
    tables.flow_capacity = 3;
    let _: Option<Flow> = tables.flows.borrow_mut().insert(reply, came[&reply]);
    let other = key(world::POD4, world::NODE4, Side::INGRESS);
    let writes = [(reply, None), (other, Some(came[&forward]))];
    meanwhile(&tables, forward, &writes);
    assert_eq!(run(&comes, &tables).0, Verdict::Drop(DropReason::FlowTableFull));
    assert!(!tables.flows.borrow().contains_key(&forward), "{:#?}", tables.flows);
}

fn of_kind(flows: &BTreeMap<FlowKey, Flow>, kind: Kind) -> (FlowKey, Flow) {
    let mut halves = flows.iter().filter(|(_, flow)| flow.kind == kind);
    let (key, flow) = halves.next().expect("there is one");
    (*key, *flow)
}

/// What Linux gives its own connections by default.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 32_768..=60_999;

#[test]
fn ports_of_one_client_become_as_many_others() {
    let settings = Settings {
        source_port_low: Port::new(1_024),
        source_port_high: Port::new(29_999),
        ..Settings::default()
    };
    for number in 0..64 {
        let backend = Endpoint::new(at("10.244.2.7:0").ip, Port::new(8_000 + number));
        let client = at("192.168.0.9:0").ip;
        let port = |port| {
            let tuple = Tuple::new(Endpoint::new(client, Port::new(port)), backend);
            source_port(&settings, wish(&tuple, Protocol::TCP))
        };
        let ports: BTreeSet<_> = EPHEMERAL.map(port).collect();
        assert_eq!(ports.len(), EPHEMERAL.len(), "{backend:?}");
        assert!(ports.iter().all(|port| (1_024..30_000).contains(&port.get())));
    }
}
