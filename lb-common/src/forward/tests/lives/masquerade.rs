//! Flows that leave under this node's address: what displaces their entries, and what restores them.

use super::*;
use crate::addr::{Ip, Port};
use crate::config::Settings;

#[test]
fn masquerade_whose_tuple_was_taken_gets_another_source() {
    let (tables, send) = masqueraded();
    let first = send(&tables);
    let all = tables.all_flows();
    let found = all.iter().find(|(_, flow)| flow.kind == Kind::UNMASQUERADE);
    let (key, mut anothers) = found.map(|(key, flow)| (*key, *flow)).expect("one");
    anothers.to.destination = Ip::v4([192, 0, 2, 77]);
    let _displaced = tables.transient.borrow_mut().insert(key, anothers);
    let second = send(&tables);
    assert_ne!(second, first);
    assert_eq!(send(&tables), second);
    assert_eq!(tables.all_flows().get(&key), Some(&anothers));
    assert_eq!(tables.all_flows().len(), 5);
}

/// A client outside, a `NodePort` and a backend of another node: the four entries of its flow.
fn masqueraded() -> (Fake, impl Fn(&Fake) -> Vec<u8>) {
    let send = |tables: &Fake| {
        let come = Datagram::udp(world::CLIENT4, world::NODE4).build();
        let (verdict, left) = run(&step(Hook::ExternalIngress, come), tables);
        assert!(matches!(verdict, NEW | FORWARD), "{verdict:?}");
        let (verdict, out) = run(&step(Hook::ExternalEgress, left), tables);
        assert_eq!(verdict, Verdict::Translated(Translation::Masquerade));
        out
    };
    (node(&[(world::REMOTE4, false)]), send)
}

#[test]
fn displaced_masquerade_is_restored() {
    let (tables, send) = masqueraded();
    let first = send(&tables);
    let all = tables.all_flows();
    assert_eq!(all.len(), 4);
    for kind in [Kind::MASQUERADE, Kind::UNMASQUERADE, Kind::REPLY] {
        let gone = all.iter().find(|(_, flow)| flow.kind == kind).map(|(key, _)| *key);
        let _displaced = tables.transient.borrow_mut().remove(&gone.expect("one of each"));
        assert_eq!(send(&tables), first, "{kind:?}");
        assert_eq!(kinds(&tables), kinds_of(&all), "{kind:?}");
    }
}

#[test]
fn one_packet_restores_displaced_reply_and_masquerade() {
    let (tables, send) = masqueraded();
    let first = send(&tables);
    let all = tables.all_flows();
    for kind in [Kind::MASQUERADE, Kind::UNMASQUERADE, Kind::REPLY] {
        let gone = all.iter().find(|(_, flow)| flow.kind == kind).map(|(key, _)| *key);
        let _displaced = tables.transient.borrow_mut().remove(&gone.expect("one of each"));
    }
    assert_eq!(send(&tables), first);
    assert_eq!(kinds(&tables), kinds_of(&all));
}

fn kinds(tables: &Fake) -> Vec<Kind> {
    kinds_of(&tables.all_flows())
}

fn kinds_of(flows: &BTreeMap<FlowKey, Flow>) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = flows.values().map(|flow| flow.kind).collect();
    kinds.sort_unstable();
    kinds
}

#[test]
fn all_entries_of_a_masqueraded_flow_are_protected_together() {
    let (tables, send) = masqueraded();
    for _ in 0..4 {
        let out = send(&tables);
        let ours = Endpoint::new(
            at(world::NODE4).ip,
            Port::from_wire(out[34..36].first_chunk().copied().expect("ports")),
        );
        let back = Datagram::new(at(world::REMOTE4), ours, Transport::Udp(true)).build();
        let (verdict, left) = run(&step(Hook::ExternalIngress, back), &tables);
        assert_eq!(verdict, Verdict::Translated(Translation::Unmasquerade));
        assert_eq!(run(&step(Hook::ExternalEgress, left), &tables).0, REPLY);
        tables.clock.set(tables.clock.get() + SECOND);
    }
    assert_eq!(tables.flows.borrow().len(), 4);
    tables.clock.set(tables.clock.get() + 121 * SECOND);
    let _again = send(&tables);
    assert_eq!(tables.flows.borrow().len(), 0, "idle for too long: another flow");
    assert_eq!(tables.all_flows().len(), 4);
}

/// The configuration changes from kube-proxy's masquerade to `edge`: the backend of an open flow sees the same source.
#[test]
fn flow_towards_a_pod_keeps_its_source_when_the_settings_change() {
    let mut tables = node(&[(world::LOCAL4, true)]);
    tables.settings.node.flags |= Settings::MASQUERADE_KUBE_PROXY;
    let send = |tables: &Fake| {
        let come = Datagram::udp(world::POD4, world::NODE4).build();
        let (_, left) = run(&step(Hook::PodIngress, come), tables);
        run(&step(Hook::PodEgress, left), tables)
    };
    let (verdict, first) = send(&tables);
    assert_eq!(verdict, Verdict::Translated(Translation::Masquerade));
    tables.settings.node.flags &= !Settings::MASQUERADE_KUBE_PROXY;
    tables.settings.node.flags |= Settings::MASQUERADED_PODS;
    assert_eq!(send(&tables), (verdict, first));
    // Another frontend leads to the same backend, after the first flow is over.
    let mut later = tables.clone();
    let service = later.add_service(2, &[(world::LOCAL4, true)]);
    later.cluster_ip(world::CLUSTER4, Protocol::UDP, service);
    later.clock.set(later.clock.get() + 200 * SECOND);
    let come = Datagram::udp(world::POD4, world::CLUSTER4).build();
    let (verdict, left) = run(&step(Hook::PodIngress, come), &later);
    assert_eq!(verdict, NEW);
    assert!(matches!(run(&step(Hook::PodEgress, left), &later).0, Verdict::Pass(_)));
    // A flow that begins now has the client's own source.
    let come = Datagram::udp("10.1.0.9:40001", world::NODE4).build();
    let (_, left) = run(&step(Hook::PodIngress, come), &tables);
    assert!(matches!(run(&step(Hook::PodEgress, left), &tables).0, Verdict::Pass(_)));
}

/// Every port that is tried towards the backend belongs to a flow of another client.
fn crowded(flags: u8) -> Fake {
    let tables = node(&[(world::REMOTE4, false)]);
    for port in 61_000..=65_000 {
        put_masquerade(&tables, Protocol::UDP, stranger(port), port, flags);
    }
    tables
}

fn own_port(port: u16) -> Endpoint {
    Endpoint::new(at(world::NODE4).ip, Port::new(port))
}

/// A client for each port.
fn stranger(port: u16) -> Endpoint {
    let [high, low] = port.to_be_bytes();
    Endpoint::new(Ip::v4([198, 51, high, low]), Port::new(port))
}

/// Adds the masquerade of a client's flow: the higher its port, the longer it is silent.
fn put_masquerade(tables: &Fake, protocol: Protocol, client: Endpoint, port: u16, flags: u8) {
    let (backend, own) = (at(world::REMOTE4), own_port(port));
    let to = Tuple::new(backend, client);
    let seen = tables.clock.get() - u64::from(port - 60_000) * 1_000_000;
    let mut flow = Flow::new(to, Kind::UNMASQUERADE, seen);
    flow.flags = flags | Flow::ANSWER;
    tables.put(FlowKey::new(Tuple::new(backend, own), protocol, Side::INGRESS), flow);
    let mut masquerade = Flow::new(Tuple::new(own, backend), Kind::MASQUERADE, seen);
    masquerade.flags = flags;
    tables.put(FlowKey::new(to.reversed(), protocol, Side::EGRESS), masquerade);
}

#[test]
fn flood_takes_no_port_away() {
    let tables = crowded(0);
    let before = tables.all_flows().len();
    let (_, send) = masqueraded();
    let out = send(&tables);
    let port = u16::from_be_bytes(out[34..36].first_chunk().copied().expect("ports"));
    assert_eq!(tables.counted(Event::PortDisplaced), 1);
    assert_eq!(tables.counted(Event::PortTaken), 16);
    // The flow that had it has lost both entries, and another one has four.
    assert_eq!(tables.all_flows().len(), before + 4 - 2);
    let lost = Tuple::new(stranger(port), at(world::REMOTE4));
    let masquerade = FlowKey::new(lost, Protocol::UDP, Side::EGRESS);
    assert!(tables.flow_at(&masquerade).is_none(), "its next packet gets another port");
}

#[test]
fn a_flow_that_has_another_source_by_now_keeps_it() {
    let tables = crowded(0);
    // Every flow has another port by now; only the answers to its old one are left to be displaced.
    for flow in tables.transient.borrow_mut().values_mut().filter(|it| it.kind == Kind::MASQUERADE)
    {
        flow.to.source_port = Port::new(60_999);
    }
    let before = tables.all_flows().len();
    let _out = masqueraded().1(&tables);
    assert_eq!(tables.counted(Event::PortDisplaced), 1);
    assert_eq!(tables.all_flows().len(), before + 4 - 1, "its answers lead to the new flow");
}

#[test]
fn answered_flows_keep_their_ports_and_a_new_one_leaves_nothing() {
    let tables = crowded(Flow::PROTECTED);
    let before = tables.all_flows();
    let come = Datagram::udp(world::CLIENT4, world::NODE4).build();
    let (_, left) = run(&step(Hook::ExternalIngress, come), &tables);
    let (verdict, out) = run(&step(Hook::ExternalEgress, left.clone()), &tables);
    assert_eq!((verdict, out), (Verdict::Drop(DropReason::PortsExhausted), left));
    assert_eq!(tables.all_flows(), before);
}

/// As with an agent that is dead: no sweep runs.
#[test]
fn answered_flows_that_are_idle_for_too_long_give_their_ports_up() {
    let tables = crowded(Flow::PROTECTED);
    for flow in tables.flows.borrow_mut().values_mut() {
        (flow.begun, flow.shown) = (0, Shown::ESTABLISHED);
    }
    let newest = tables.flows.borrow().values().map(|flow| flow.seen).max().expect("flows");
    tables.clock.set(newest + 115 * SECOND);
    let before = tables.all_flows();
    let (_, send) = masqueraded();
    let come = Datagram::udp(world::CLIENT4, world::NODE4).build();
    let (_, left) = run(&step(Hook::ExternalIngress, come), &tables);
    let refused = run(&step(Hook::ExternalEgress, left), &tables).0;
    assert_eq!(refused, Verdict::Drop(DropReason::PortsExhausted));
    assert_eq!(tables.all_flows(), before);
    tables.clock.set(newest + 121 * SECOND);
    let _out = send(&tables);
    assert_eq!(tables.counted(Event::PortDisplaced), 1);
    assert_eq!(tables.all_flows().len(), before.len() + 4 - 2);
}

/// The kernel has displaced the answers to a flow's source, and another client has that source by now.
#[test]
fn flow_that_begins_again_leaves_the_answers_of_another() {
    let (tables, send) = masqueraded();
    let _out = send(&tables);
    let another = Tuple::new(at(world::REMOTE4), at("198.51.100.7:1"));
    let answers = {
        let mut flows = tables.transient.borrow_mut();
        let (key, flow) =
            flows.iter_mut().find(|(_, it)| it.kind == Kind::UNMASQUERADE).expect("answers");
        flow.to = another;
        *key
    };
    tables.clock.set(tables.clock.get() + 31 * SECOND);
    let _again = send(&tables);
    assert_eq!(tables.flow_at(&answers).map(|flow| flow.to), Some(another));
    assert_eq!(tables.all_flows().len(), 4 + 1);
}

/// The client's first port towards the backend was taken when its flow began, and is free by now. The answers of its
/// flow are displaced: the flow keeps the port that it has.
#[test]
fn masquerade_whose_answers_were_displaced_keeps_its_source() {
    let (tables, send) = masqueraded();
    let _first = send(&tables);
    let all = tables.all_flows();
    let (taken, flow) = all.iter().find(|(_, flow)| flow.kind == Kind::UNMASQUERADE).expect("one");
    let mut anothers = *flow;
    anothers.to.destination = Ip::v4([192, 0, 2, 77]);
    let (tables, send) = masqueraded();
    tables.put(*taken, anothers);
    let out = send(&tables);
    let answers = |tables: &Fake| -> Vec<FlowKey> {
        let all = tables.all_flows();
        let ours =
            all.iter().filter(|(key, flow)| flow.kind == Kind::UNMASQUERADE && *key != taken);
        ours.map(|(key, _)| *key).collect()
    };
    let own = answers(&tables);
    assert_eq!(own.len(), 1);
    for gone in [*taken, own[0]] {
        let _displaced = tables.transient.borrow_mut().remove(&gone);
    }
    assert_eq!(send(&tables), out, "the port of the flow is another one");
    assert_eq!(answers(&tables), own);
}

/// The reply entry was displaced, and an older flow of another kind has its key: it does not decide about the
/// masquerade.
#[test]
fn entry_of_another_kind_ends_no_masquerade() {
    let (tables, send) = masqueraded();
    let out = send(&tables);
    let all = tables.all_flows();
    let reply = all.iter().find(|(_, flow)| flow.kind == Kind::REPLY).map(|(key, _)| *key);
    let reply = reply.expect("a reply entry");
    let mut other = all[&reply];
    other.kind = Kind::FORWARD;
    tables.clock.set(tables.clock.get() + 200 * SECOND);
    let _displaced = tables.transient.borrow_mut().insert(reply, other);
    let ours = Endpoint::new(
        at(world::NODE4).ip,
        Port::from_wire(out[34..36].first_chunk().copied().expect("ports")),
    );
    let back = Datagram::new(at(world::REMOTE4), ours, Transport::Udp(true)).build();
    let verdict = run(&step(Hook::ExternalIngress, back), &tables).0;
    assert_eq!(verdict, Verdict::Translated(Translation::Unmasquerade));
}

/// Its answer would go to the source of the flow, which is over, and reach nobody.
#[test]
fn datagram_straight_to_the_backend_gets_no_source_of_a_flow_that_has_ended() {
    let (tables, send) = masqueraded();
    let _first = send(&tables);
    let direct = || {
        let packet = Datagram::udp(world::CLIENT4, world::REMOTE4).build();
        run(&step(Hook::ExternalEgress, packet), &tables).0
    };
    let wait = |seconds| tables.clock.set(tables.clock.get() + seconds * SECOND);
    wait(20);
    assert_eq!(direct(), Verdict::Translated(Translation::Masquerade), "the flow is alive");
    wait(200);
    assert_eq!(direct(), Verdict::Pass(PassReason::NotOurs));
}
