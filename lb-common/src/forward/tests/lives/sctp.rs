//! SCTP associations: what an INIT and an ABORT show, and what they keep alive.

use std::vec::Vec;

use super::{FORWARD, NEW, SECOND, destination};
use crate::addr::{Endpoint, Protocol};
use crate::event::{Hook, PassReason, Verdict};
use crate::fake::{Datagram, Fake, at, run, world};
use crate::forward::tests::step;
use crate::service::{Frontend, Service};
use crate::wire::sctp;

const DATA: u8 = 0;
const INIT_ACK: u8 = 2;
const COOKIE_ECHO: u8 = 10;

fn chunk(from: &str, to: &str, kind: u8) -> Vec<u8> {
    Datagram::sctp(from, to).with(&[kind, 0, 0, 4]).build()
}

/// A pod, a ClusterIP and its backends.
struct Association {
    tables: Fake,
    service: Service,
}

impl Association {
    fn new(backends: &[(&str, bool)]) -> Self {
        let mut tables = Fake::node();
        let service = tables.add_service(1, backends);
        tables.cluster_ip(world::CLUSTER4, Protocol::SCTP, service);
        Self { tables, service }
    }

    fn asks(&self, kind: u8) -> (Verdict, Endpoint) {
        let packet = chunk(world::POD4, world::CLUSTER4, kind);
        let (verdict, out) = run(&step(Hook::PodIngress, packet), &self.tables);
        (verdict, destination(&out))
    }

    fn answers(&self, kind: u8) {
        let packet = chunk(world::LOCAL4, world::POD4, kind);
        let _verdict = run(&step(Hook::PodEgress, packet), &self.tables);
    }

    fn wait(&self, seconds: u64) {
        self.tables.clock.set(self.tables.clock.get() + seconds * SECOND);
    }

    fn protected(&self) -> usize {
        self.tables.flows.borrow().len()
    }
}

/// A forger sees no INIT ACK.
#[test]
fn only_what_follows_an_init_ack_protects_an_association() {
    let association = Association::new(&[(world::LOCAL4, true)]);
    for verdict in [NEW, FORWARD, FORWARD] {
        assert_eq!(association.asks(sctp::INIT).0, verdict);
        association.answers(INIT_ACK);
        association.wait(3);
    }
    assert_eq!(association.asks(sctp::ABORT).0, FORWARD);
    assert_eq!(association.protected(), 0);
    assert_eq!(association.asks(COOKIE_ECHO).0, FORWARD);
    assert_eq!(association.protected(), 2);
}

/// The endpoint terminates: it is in no set any more, but its backend is served while flows use it.
#[test]
fn repeated_inits_reach_another_backend_in_the_end() {
    for was_open in [false, true] {
        let mut association = Association::new(&[(world::LOCAL4, true), (world::REMOTE4, false)]);
        let (_, first) = association.asks(sctp::INIT);
        let other = if first == at(world::LOCAL4) { 2 } else { 1 };
        if was_open && first == at(world::LOCAL4) {
            association.answers(INIT_ACK);
            let _opened = association.asks(COOKIE_ECHO);
        }
        let set = association.tables.add_set(&[other]);
        let to = at(world::CLUSTER4);
        let frontend = Frontend::new(to.ip, to.port, Protocol::SCTP);
        let service = Service { cluster: set, ..association.service };
        association.tables.services.insert(frontend, service);
        let mut tries = 0;
        while association.asks(sctp::INIT).1 == first {
            association.answers(sctp::ABORT);
            association.wait(20);
            tries += 1;
            assert!(tries <= 11, "open before: {was_open}");
        }
    }
}

#[test]
fn open_association_keeps_its_backend_whatever_inits_arrive() {
    let association = Association::new(&[(world::LOCAL4, true)]);
    let _opened = association.asks(sctp::INIT);
    association.answers(INIT_ACK);
    let _opened = association.asks(COOKIE_ECHO);
    for _ in 0..30 {
        association.wait(30);
        assert_eq!(association.asks(sctp::INIT).0, FORWARD, "forged");
        assert_eq!(association.asks(DATA).0, FORWARD);
        association.answers(DATA);
    }
    assert_eq!(association.protected(), 2);
}

/// Without the Service, the stack of the node refuses each try.
#[test]
fn client_that_was_refused_reaches_a_node_port_that_appears() {
    let mut tables = Fake::node();
    let refuse = |tables: &Fake| {
        let mut abort =
            step(Hook::ExternalEgress, chunk(world::NODE4, world::CLIENT4, sctp::ABORT));
        abort.from_host = true;
        assert_eq!(run(&abort, tables).0, Verdict::Pass(PassReason::NotOurs));
    };
    refuse(&tables);
    assert!(tables.own_answers.borrow().is_empty(), "an ABORT gets no reply");
    let service = tables.add_service(1, &[(world::LOCAL4, true)]);
    tables.node_port(world::NODE4, Protocol::SCTP, service);
    let init = step(Hook::ExternalIngress, chunk(world::CLIENT4, world::NODE4, sctp::INIT));
    assert_eq!(run(&init, &tables).0, NEW);
}

/// The node has an association from the number of a `NodePort`, whose peer opens one with the Service.
#[test]
fn init_is_no_reply_to_an_association_of_the_node() {
    let mut tables = Fake::node();
    let mut own = step(Hook::ExternalEgress, chunk(world::NODE4, world::CLIENT4, DATA));
    own.from_host = true;
    assert_eq!(run(&own, &tables).0, Verdict::Pass(PassReason::NotOurs));
    let service = tables.add_service(1, &[(world::LOCAL4, true)]);
    tables.node_port(world::NODE4, Protocol::SCTP, service);
    let from_peer = |kind| {
        let packet = chunk(world::CLIENT4, world::NODE4, kind);
        run(&step(Hook::ExternalIngress, packet), &tables).0
    };
    assert_eq!(from_peer(DATA), Verdict::Pass(PassReason::NotOurs));
    assert_eq!(from_peer(sctp::INIT), NEW);
}
