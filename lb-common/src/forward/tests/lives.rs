//! The lives of flows: what protects them, what ends them, and what restores displaced entries.

use std::collections::BTreeMap;
use std::vec::Vec;

use super::step;
use crate::addr::{Endpoint, Protocol};
use crate::event::{DropReason, Event, Hook, PassReason, Translation, Verdict};
use crate::fake::{Datagram, Fake, Transport, at, run, world};
use crate::flow::{Flow, FlowKey, Kind, Shown, Side, Tuple};
use crate::wire::tcp;

mod bursts;
mod closing;
mod crowds;
mod forged;
mod masquerade;
mod opening;
mod own;
mod sctp;

const SECOND: u64 = 1_000_000_000;
const FORWARD: Verdict = Verdict::Translated(Translation::Forward);
const NEW: Verdict = Verdict::Translated(Translation::NewFlow);
const REPLY: Verdict = Verdict::Translated(Translation::Reply);

/// A pod, a ClusterIP and its backends.
struct Exchange {
    tables: Fake,
    transport: fn(u8) -> Transport,
}

impl Exchange {
    fn tcp() -> Self {
        Self { tables: node(&[(world::LOCAL4, true)]), transport: Transport::Tcp }
    }

    fn udp() -> Self {
        Self { transport: |_| Transport::Udp(true), ..Self::tcp() }
    }

    fn wait(&self, seconds: u64) {
        self.tables.clock.set(self.tables.clock.get() + seconds * SECOND);
    }

    /// The client sends; says what became of it, and to which backend it went.
    fn asks(&self, flags: u8) -> (Verdict, Endpoint) {
        self.asks_with(flags, [7, 9])
    }

    fn asks_with(&self, flags: u8, [sequence, acknowledgement]: [u32; 2]) -> (Verdict, Endpoint) {
        let (from, to) = (at(world::POD4), at(world::CLUSTER4));
        let datagram = Datagram::new(from, to, (self.transport)(flags));
        let packet = datagram.numbered(sequence, acknowledgement).build();
        let (verdict, out) = run(&step(Hook::PodIngress, packet), &self.tables);
        (verdict, destination(&out))
    }

    /// The backend sends.
    fn answers(&self, flags: u8) -> Verdict {
        self.answers_with(flags, [8, 10])
    }

    fn answers_with(&self, flags: u8, [sequence, acknowledgement]: [u32; 2]) -> Verdict {
        let (from, to) = (at(world::LOCAL4), at(world::POD4));
        let datagram = Datagram::new(from, to, (self.transport)(flags));
        let packet = datagram.numbered(sequence, acknowledgement).build();
        run(&step(Hook::PodEgress, packet), &self.tables).0
    }

    /// A handshake, whose acknowledgements are what the numbers of the other calls follow.
    fn opened() -> Self {
        let exchange = Self::tcp();
        let _new = exchange.asks(tcp::SYN);
        let _reply = exchange.answers(tcp::SYN | tcp::ACK);
        let _known = exchange.asks(tcp::ACK);
        assert_eq!(exchange.protected(), 2);
        exchange
    }

    /// Its Service gets another backend, `10.1.0.99:8080`, and the one that it has leaves.
    fn change_backend(&mut self) {
        let service = self.tables.add_service(1, &[("10.1.0.99:8080", true)]);
        self.tables.cluster_ip(world::CLUSTER4, Protocol::TCP, service);
        if let Some(row) = self.tables.backends.get_mut(1) {
            row.epoch += 1;
        }
    }

    fn protected(&self) -> usize {
        self.tables.flows.borrow().len()
    }

    fn entry(&self, kind: Kind) -> Flow {
        let flows = self.tables.all_flows();
        *flows.values().find(|flow| flow.kind == kind).expect("an entry of this kind")
    }
}

fn node(backends: &[(&str, bool)]) -> Fake {
    let mut tables = Fake::node();
    for (id, protocol) in [(1, Protocol::TCP), (2, Protocol::UDP)] {
        let service = tables.add_service(id, backends);
        tables.cluster_ip(world::CLUSTER4, protocol, service);
        tables.node_port(world::NODE4, protocol, service);
    }
    tables
}

fn destination(packet: &[u8]) -> Endpoint {
    let bytes = |at: usize| packet[at..].first_chunk().copied().expect("a whole packet");
    Endpoint::new(
        crate::addr::Ip::v4(bytes(30)),
        crate::addr::Port::from_wire(packet[36..38].first_chunk().copied().expect("ports")),
    )
}

fn key(from: &str, to: &str, side: Side) -> FlowKey {
    FlowKey::new(Tuple::new(at(from), at(to)), Protocol::TCP, side)
}

#[test]
fn unanswered_flow_stays_transient() {
    let exchange = Exchange::tcp();
    for verdict in [NEW, FORWARD, FORWARD] {
        assert_eq!(exchange.asks(tcp::SYN).0, verdict);
        exchange.wait(1);
    }
    let _answered = exchange.answers(tcp::SYN | tcp::ACK);
    assert_eq!(exchange.protected(), 0, "the answer may have gone to a forged address");
    let _refused = exchange.answers(tcp::RST | tcp::ACK);
    assert_eq!(exchange.protected(), 0);
}

#[test]
fn rst_is_no_answer() {
    let exchange = Exchange::tcp();
    let _new = exchange.asks(tcp::ACK);
    let _reset = exchange.answers(tcp::RST);
    let _more = exchange.asks(tcp::ACK);
    exchange.wait(2);
    let _more = exchange.asks(tcp::ACK);
    assert_eq!(exchange.protected(), 0);
}

#[test]
fn datagrams_are_a_stream_after_two_seconds_of_both_ends() {
    let exchange = Exchange::udp();
    for (waits, protected) in [(0, 0), (1, 0), (1, 0), (1, 2)] {
        exchange.wait(waits);
        let _asked = exchange.asks(0);
        assert_eq!(exchange.protected(), protected, "after {waits} more seconds");
        let _answered = exchange.answers(0);
    }
    let silent = Exchange::udp();
    for _ in 0..9 {
        let _asked = silent.asks(0);
        silent.wait(1);
    }
    assert_eq!(silent.protected(), 0, "no answer");
}

#[test]
fn closed_connection_is_transient_and_goes_on_to_its_last_packet() {
    for ends in [
        // One after the other, and both at once.
        [
            (true, tcp::FIN | tcp::ACK),
            (false, tcp::ACK),
            (false, tcp::FIN | tcp::ACK),
            (true, tcp::ACK),
        ],
        [
            (true, tcp::FIN | tcp::ACK),
            (false, tcp::FIN | tcp::ACK),
            (true, tcp::ACK),
            (false, tcp::ACK),
        ],
    ] {
        let exchange = Exchange::opened();
        for (is_client, flags) in ends {
            assert_eq!(exchange.protected(), 2);
            let verdict = if is_client { exchange.asks(flags).0 } else { exchange.answers(flags) };
            assert_eq!(verdict, if is_client { FORWARD } else { REPLY });
            if exchange.protected() == 0 {
                break;
            }
        }
        assert_eq!(exchange.protected(), 0);
        for _ in 0..3 {
            exchange.wait(2);
            assert_eq!(exchange.answers(tcp::FIN | tcp::ACK), REPLY, "sent again");
            assert_eq!(exchange.asks(tcp::ACK).0, FORWARD);
        }
        assert_eq!(exchange.tables.all_flows().len(), 2);
        assert_eq!(exchange.protected(), 0, "what both ended is not protected again");
        exchange.wait(30);
        assert_eq!(exchange.asks(tcp::FIN | tcp::ACK).0, Verdict::Pass(PassReason::NoFlow));
    }
}

#[test]
fn half_closed_connection_lives_on() {
    let exchange = Exchange::opened();
    let _fin = exchange.asks(tcp::FIN | tcp::ACK);
    for _ in 0..4 {
        exchange.wait(600);
        assert_eq!(exchange.answers(tcp::ACK), REPLY);
        assert_eq!(exchange.asks(tcp::ACK).0, FORWARD);
        assert_eq!(exchange.protected(), 2);
    }
}

#[test]
fn syn_of_an_open_connection_moves_nothing() {
    let mut exchange = Exchange::opened();
    let before = exchange.entry(Kind::FORWARD).to;
    // Its service has another backend meanwhile.
    exchange.change_backend();
    assert_eq!(exchange.asks(tcp::SYN), (FORWARD, at(world::LOCAL4)));
    assert_eq!((exchange.entry(Kind::FORWARD).to, exchange.protected()), (before, 2));
    // Its client has forgotten it and says so to the challenge; or the backend is gone for good.
    let reset = Exchange { tables: exchange.tables.clone(), ..exchange };
    let _rst = reset.asks_with(tcp::RST, [10, 0]);
    assert_eq!(reset.asks(tcp::SYN), (NEW, at("10.1.0.99:8080")));
    exchange.wait(121);
    assert_eq!(exchange.asks(tcp::SYN), (FORWARD, at(world::LOCAL4)));
    exchange.wait(3);
    assert_eq!(exchange.asks(tcp::SYN), (NEW, at("10.1.0.99:8080")));
}

#[test]
fn unanswered_syn_follows_its_service() {
    let mut exchange = Exchange::tcp();
    let _new = exchange.asks(tcp::SYN);
    let service = exchange.tables.add_service(1, &[("10.1.0.99:8080", true)]);
    exchange.tables.cluster_ip(world::CLUSTER4, Protocol::TCP, service);
    assert_eq!(exchange.asks(tcp::SYN), (FORWARD, at(world::LOCAL4)), "while its backend is there");
    if let Some(row) = exchange.tables.backends.get_mut(1) {
        row.epoch += 1;
    }
    assert_eq!(exchange.asks(tcp::SYN), (NEW, at("10.1.0.99:8080")));
    assert_eq!(exchange.tables.counted(Event::FlowRenewed), 1);
}

#[test]
fn blind_reset_of_an_idle_connection_is_not_believed() {
    let exchange = Exchange::opened();
    exchange.wait(60);
    for sequence in [0x8000_0000_u32, 0xffff_0000, 10 + (2 << 20)] {
        assert_eq!(exchange.asks_with(tcp::RST, [sequence, 0]).0, FORWARD);
        assert_eq!(
            (exchange.protected(), exchange.entry(Kind::FORWARD).shown.rst),
            (2, 0),
            "{sequence}"
        );
    }
    // The number that the backend expects next, by its last acknowledgement.
    assert_eq!(exchange.asks_with(tcp::RST, [10, 0]).0, FORWARD);
    assert_eq!((exchange.protected(), exchange.entry(Kind::FORWARD).shown.rst), (0, 1));
}

#[test]
fn reset_that_both_ends_survive_was_forged() {
    let exchange = Exchange::opened();
    let _data = (exchange.asks(tcp::ACK), exchange.answers(tcp::ACK));
    let _forged = exchange.asks_with(tcp::RST, [10, 0]);
    assert_eq!(
        (exchange.protected(), exchange.entry(Kind::FORWARD).shown.rst),
        (0, 1),
        "it may be"
    );
    for protected in [0, 2] {
        exchange.wait(2);
        let _data = (exchange.asks(tcp::ACK), exchange.answers(tcp::ACK));
        assert_eq!(exchange.protected(), protected);
    }
    assert_eq!(exchange.entry(Kind::FORWARD).shown, Shown::ESTABLISHED);
}

/// One RST of a sender that guesses, right after a question and its answer, then silence, and the endpoints change.
#[test]
fn blind_reset_of_a_connection_in_use_does_not_move_it() {
    let mut exchange = Exchange::opened();
    let _data = (exchange.asks(tcp::ACK), exchange.answers(tcp::ACK));
    let _forged = exchange.asks_with(tcp::RST, [0x8000_0000, 0]);
    exchange.change_backend();
    assert_eq!(exchange.asks(tcp::SYN), (FORWARD, at(world::LOCAL4)), "nor does a SYN after it");
    exchange.wait(60);
    assert_eq!(exchange.asks(tcp::ACK), (FORWARD, at(world::LOCAL4)));
    assert_eq!((exchange.answers(tcp::ACK), exchange.protected()), (REPLY, 2));
}

#[test]
fn reset_that_only_its_sender_survives_stays() {
    let exchange = Exchange::opened();
    let _reset = exchange.answers_with(tcp::RST, [9, 0]);
    for _ in 0..3 {
        exchange.wait(2);
        let _unaware = exchange.asks(tcp::ACK);
        assert_eq!((exchange.protected(), exchange.entry(Kind::REPLY).shown.rst), (0, 1));
    }
}

#[test]
fn displaced_entries_are_restored() {
    let exchange = Exchange::tcp();
    let _new = exchange.asks(tcp::SYN);
    let reply = key(world::LOCAL4, world::POD4, Side::EGRESS);
    let _displaced = exchange.tables.transient.borrow_mut().remove(&reply);
    assert_eq!(exchange.asks(tcp::SYN), (NEW, at(world::LOCAL4)), "a SYN begins a flow");
    assert_eq!(exchange.answers(tcp::SYN | tcp::ACK), REPLY);
    let _displaced = exchange.tables.transient.borrow_mut().remove(&reply);
    assert_eq!(exchange.asks(tcp::ACK).0, FORWARD);
    assert_eq!(exchange.answers(tcp::ACK), REPLY);
    let forward = key(world::POD4, world::CLUSTER4, Side::INGRESS);
    let _displaced = exchange.tables.transient.borrow_mut().remove(&forward);
    assert_eq!(exchange.asks(tcp::ACK), (NEW, at(world::LOCAL4)));
    assert_eq!(exchange.tables.all_flows().len(), 2);
}

/// A tuple is given to whoever asks for it while its entry is displaced.
#[test]
fn flow_with_a_taken_reply_tuple_begins_again_at_once() {
    let exchange = Exchange::udp();
    let _new = exchange.asks(0);
    let mut reply = key(world::LOCAL4, world::POD4, Side::EGRESS);
    reply.protocol = Protocol::UDP;
    let mut anothers = exchange.entry(Kind::REPLY);
    anothers.to.source = crate::addr::Ip::v4([10, 96, 0, 77]);
    let _displaced = exchange.tables.transient.borrow_mut().insert(reply, anothers);
    assert_eq!(exchange.asks(0), (NEW, at(world::LOCAL4)));
    assert_eq!(exchange.tables.counted(Event::PortShifted), 1);
    assert_eq!(exchange.tables.all_flows().get(&reply), Some(&anothers));
    assert_eq!(exchange.asks(0).0, FORWARD);
    let kinds: Vec<Kind> = exchange.tables.all_flows().values().map(|flow| flow.kind).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
}

#[test]
fn idle_flow_counts_no_more() {
    for (exchange, seconds) in [(Exchange::udp(), 30), (Exchange::tcp(), 60)] {
        let _new = exchange.asks(tcp::SYN);
        exchange.wait(seconds - 1);
        assert_eq!(exchange.asks(tcp::SYN).0, FORWARD);
        exchange.wait(seconds + 1);
        assert_eq!(exchange.answers(tcp::SYN | tcp::ACK), Verdict::Pass(PassReason::NotOurs));
        assert_eq!(exchange.asks(tcp::SYN).0, NEW);
    }
    // A packet of one end keeps the entry of the other.
    let exchange = Exchange::opened();
    for _ in 0..3 {
        exchange.wait(80_000);
        assert_eq!(exchange.asks(tcp::ACK).0, FORWARD);
    }
    assert_eq!(exchange.answers(tcp::ACK), REPLY);
}

#[test]
fn error_is_translated_only_for_the_sender_of_the_quote() {
    let exchange = Exchange::opened();
    let quoted = Datagram::tcp(world::POD4, world::LOCAL4, tcp::ACK);
    let error = |to: &str| {
        let mut body = std::vec![0, 0, 5, 0x14];
        body.extend(quoted.network());
        Datagram::icmp("10.9.9.9:1", to, (3, 4), body).build()
    };
    let verdict = |to| run(&step(Hook::PodEgress, error(to)), &exchange.tables).0;
    assert_eq!(verdict("10.1.0.8:1"), Verdict::Pass(PassReason::NotOurs), "another pod's");
    assert_eq!(verdict("10.1.0.5:1"), Verdict::Translated(Translation::IcmpError));
}

#[test]
fn a_packet_without_memory_for_its_flow_is_dropped_and_counted() {
    let mut exchange = Exchange::tcp();
    let tuple = Tuple::new(at(world::POD4), at(world::CLUSTER4));
    let key = FlowKey::new(tuple, Protocol::TCP, Side::INGRESS);
    exchange.tables.flow_failures.insert(key);
    assert_eq!(exchange.asks(tcp::SYN).0, Verdict::Drop(DropReason::FlowTableFull));
    assert_eq!(exchange.tables.counted(Event::FlowNoMemory), 1);
    assert!(exchange.tables.all_flows().is_empty(), "nothing is left of it");
    exchange.tables.flow_failures.clear();
    assert_eq!(exchange.asks(tcp::SYN).0, NEW);
}

/// An entry holds its time with the tick in the last bits. A new forward entry does so too: with the bits of the clock
/// it would count as alive after its end, whenever these bits are equal to the tick.
#[test]
fn expired_forward_entry_is_absent() {
    let exchange = Exchange::udp();
    let tick = 9;
    exchange.tables.ticks.set(Some(7));
    exchange.tables.clock.set(exchange.tables.clock.get() & !0xffff | u64::from(tick));
    let _new = exchange.asks(0);
    assert_eq!(exchange.answers(0), REPLY);
    exchange.wait(31);
    exchange.tables.ticks.set(Some(tick));
    assert_eq!(exchange.asks(0).0, NEW);
    assert_eq!(exchange.answers(0), REPLY);
}
