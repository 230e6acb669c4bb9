//! The records that egress and established flows leave for later: answers to connections that this node began, and
//! lookups that keep the affinity of a client.

use std::vec::Vec;

use super::step;
use crate::addr::Protocol;
use crate::config::{Settings, address};
use crate::event::{Hook, PassReason, Translation, Verdict};
use crate::fake::{Datagram, Fake, Transport, at, run, world};
use crate::flow::{Flow, Tuple};
use crate::hash;
use crate::service::Service;
use crate::wire::{sctp, tcp};

/// How many answers are recorded after a packet to a server outside.
fn recorded(from: &str, flags: u8, settings: u32) -> usize {
    recorded_to(world::CLIENT4, from, flags, settings)
}

/// The same after a packet to a backend or a server outside.
fn recorded_to(to: &str, from: &str, flags: u8, settings: u32) -> usize {
    let mut tables = Fake::node();
    let _service = tables.add_service(1, &[(world::REMOTE4, false)]);
    tables.settings.node.flags |= settings;
    let packet = Datagram::new(at(from), at(to), Transport::Tcp(flags));
    let mut sends = step(Hook::ExternalEgress, packet.build());
    sends.from_host = true;
    assert_eq!(run(&sends, &tables).0, Verdict::Pass(PassReason::NotOurs));
    tables.own_answers.take().len()
}

/// The table is small: it has room for connections whose answers look like requests, and for no others.
#[test]
fn only_connections_of_the_node_with_a_port_like_a_frontends_are_recorded() {
    assert_eq!(recorded(world::NODE4, tcp::SYN, 0), 1);
    assert_eq!(recorded("192.168.0.10:700", tcp::SYN, 0), 1, "the port of a translated source");
    assert_eq!(recorded("192.168.0.10:45000", tcp::SYN, 0), 0, "an ordinary port");
    assert_eq!(recorded("10.1.0.5:30080", tcp::SYN, 0), 0, "a pod");
}

/// A server outside whose port looks like a `NodePort` is asked by the path for packets of this host.
#[test]
fn requests_to_a_port_like_a_frontends_are_recorded_alike() {
    let to = "203.0.113.7:30500";
    assert_eq!(recorded_to(to, world::NODE4, tcp::SYN, 0), 1);
    assert_eq!(recorded_to(to, "192.168.0.10:45000", tcp::SYN, 0), 0, "an ordinary port");
    assert_eq!(recorded_to(to, "10.1.0.5:30080", tcp::SYN, 0), 0, "a pod");
}

/// CNI plugins that masquerade with random ports choose ports for translated sources, too. Only the first packet
/// counts: the table is small, and later ones pass at the cost of a packet for no Service.
#[test]
fn connections_to_a_backend_from_a_port_for_translated_sources_are_recorded() {
    let source = "192.168.0.10:61005";
    assert_eq!(recorded_to(world::REMOTE4, source, tcp::SYN, 0), 1);
    assert_eq!(recorded_to(world::REMOTE4, source, tcp::ACK, 0), 0, "a later segment");
    assert_eq!(recorded_to(world::CLIENT4, source, tcp::SYN, 0), 0, "no backend");
    assert_eq!(recorded_to(world::REMOTE4, "10.1.0.5:61005", tcp::SYN, 0), 0, "a pod");
}

/// A packet renews the record of its answers, which otherwise ends; most packets write nothing.
#[test]
fn record_is_renewed_by_packets_of_its_connection() {
    let tables = Fake::node();
    let mut sends = step(Hook::ExternalEgress, Datagram::udp(world::NODE4, world::CLIENT4).build());
    sends.from_host = true;
    let mut written = Vec::new();
    for _ in 0..10 {
        assert_eq!(run(&sends, &tables).0, Verdict::Pass(PassReason::NotOurs));
        written.extend(tables.own_answers.borrow().values().copied());
        tables.clock.set(tables.clock.get() + 6_000_000_000);
    }
    assert_eq!(written.len(), 10);
    written.dedup();
    assert_eq!(written.len(), 4, "at 0 s, 18 s, 36 s and 54 s");
    // 128 steps of a moment after the last one.
    let last = written.last().copied().expect("a record");
    tables.clock.set(u64::from(last + 128) << Flow::MOMENT_BITS);
    assert_eq!(run(&sends, &tables).0, Verdict::Pass(PassReason::NotOurs));
    assert!(tables.own_answers.borrow().values().all(|moment| *moment == last + 128));
}

/// Egress sees no packets of a connection to an address that became an external IP. They renew its record themselves:
/// such a connection, to the API server for one, lasts longer than a record in silence.
#[test]
fn record_of_a_connection_outside_is_renewed_by_its_packets() {
    let (external, pod) = ("198.51.100.109:80", world::POD4);
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::LOCAL4, true)]);
    tables.external(external, Protocol::TCP, service);
    let hash = hash::whole(&Tuple::new(at(pod), at(external)), Protocol::TCP);
    let moment = Flow::moment(tables.clock.get());
    tables.own_answers.borrow_mut().insert(hash, moment);
    let segment = step(Hook::PodIngress, Datagram::tcp(pod, external, tcp::ACK).build());
    let pass = |hours: u64| tables.clock.set(tables.clock.get() + hours * 3_600_000_000_000);
    for _ in 0..4 {
        pass(12);
        assert_eq!(run(&segment, &tables).0, Verdict::Pass(PassReason::NotOurs));
    }
    let before = tables.own_answers.borrow().clone();
    assert_eq!(run(&segment, &tables).0, Verdict::Pass(PassReason::NotOurs));
    assert_eq!(*tables.own_answers.borrow(), before, "written again at once");
    pass(25);
    assert_eq!(run(&segment, &tables).0, Verdict::Translated(Translation::NewFlow));
}

/// Records are written again after 17 s, so they count for twice that time, however short the lives of flows are.
#[test]
fn record_outlives_the_shortest_lives_of_flows() {
    for (silence, is_known) in [(34, true), (35, false)] {
        let (external, pod) = ("198.51.100.109:80", world::POD4);
        let mut tables = Fake::node();
        let service = tables.add_service(1, &[(world::LOCAL4, true)]);
        tables.external(external, Protocol::TCP, service);
        let lifetimes = &mut tables.settings.node.lifetimes;
        (lifetimes.open, lifetimes.half_closed) = (10, 10);
        let hash = hash::whole(&Tuple::new(at(pod), at(external)), Protocol::TCP);
        let moment = Flow::moment(tables.clock.get());
        tables.own_answers.borrow_mut().insert(hash, moment);
        tables.clock.set(tables.clock.get() + silence * 1_000_000_000);
        let segment = step(Hook::PodIngress, Datagram::tcp(pod, external, tcp::ACK).build());
        let passes = run(&segment, &tables).0 == Verdict::Pass(PassReason::NotOurs);
        assert_eq!(passes, is_known, "after {silence} s");
    }
}

/// A RST gets no answer, and a flood that is refused would fill the table. While the data path drains, answers are the
/// stack's in any case.
#[test]
fn resets_and_packets_of_a_draining_node_are_not_recorded() {
    for flags in [tcp::RST, tcp::RST | tcp::ACK, tcp::SYN | tcp::ACK] {
        assert_eq!(recorded(world::NODE4, flags, 0), 0);
        assert_eq!(recorded(world::NODE4, flags, Settings::DRAIN), 0);
    }
    assert_eq!(recorded(world::NODE4, tcp::SYN, Settings::DRAIN), 0);
}

/// The same for an SCTP server: its association is recorded with the packet after the INIT ACK.
#[test]
fn init_acks_are_not_recorded() {
    for (kind, count) in [(sctp::INIT_ACK, 0), (sctp::ABORT, 0), (0, 1)] {
        let tables = Fake::node();
        let packet = Datagram::sctp(world::NODE4, world::CLIENT4).with(&[kind, 0, 0, 4]);
        let mut sends = step(Hook::ExternalEgress, packet.build());
        sends.from_host = true;
        assert_eq!(run(&sends, &tables).0, Verdict::Pass(PassReason::NotOurs));
        assert_eq!(tables.own_answers.take().len(), count, "{kind}");
    }
}

/// How many lookups the packet costs with which both ends of a connection have spoken.
fn look_ups(affinity: u32) -> u64 {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::LOCAL4, true)]);
    tables.cluster_ip(world::CLUSTER4, Protocol::TCP, Service { affinity, ..service });
    let asks = |flags| {
        let packet = Datagram::tcp(world::POD4, world::CLUSTER4, flags).build();
        run(&step(Hook::PodIngress, packet), &tables).0
    };
    assert_eq!(asks(tcp::SYN), Verdict::Translated(Translation::NewFlow));
    let answer = Datagram::tcp(world::LOCAL4, world::POD4, tcp::SYN | tcp::ACK).build();
    let (verdict, _) = run(&step(Hook::PodEgress, answer), &tables);
    assert_eq!(verdict, Verdict::Translated(Translation::Reply));
    tables.look_ups.set(0);
    assert_eq!(asks(tcp::ACK), Verdict::Translated(Translation::Forward));
    assert_eq!(tables.flows.borrow().len(), 2, "the flow is protected now");
    tables.look_ups.get()
}

/// The kernel displaces rows without a recent lookup first: a confirmed client gets one for its row in each set.
#[test]
fn affinity_of_a_confirmed_client_is_looked_up() {
    assert_eq!(look_ups(60), look_ups(0) + 2);
}

/// Link-local addresses are in no filter: a router sends to a socket at one, whose port is that of a `NodePort`.
#[test]
fn reply_to_a_socket_at_a_link_local_address_begins_no_flow() {
    let (router, own) = (at("[fe80::1]:179"), at("[fe80::10]:30080"));
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::LOCAL6, true)]);
    tables.node_port(world::NODE6, Protocol::TCP, service);
    tables.addresses.insert(own.ip, address::NODE | address::NODE_PORTS);
    let segment = Datagram::new(router, own, Transport::Tcp(tcp::ACK)).build();
    let new = Verdict::Translated(Translation::NewFlow);
    assert_eq!(run(&step(Hook::ExternalIngress, segment.clone()), &tables).0, new);
    tables.flows.take();
    tables.transient.take();
    tables.sockets.insert((Protocol::TCP, Tuple::new(router, own)));
    let pass = Verdict::Pass(PassReason::NotOurs);
    assert_eq!(run(&step(Hook::ExternalIngress, segment), &tables).0, pass);
}
