//! Handshakes: what proves that a client has its address, and what begins another connection with its tuple.

use super::{Exchange, FORWARD, NEW, REPLY, destination, node, step};
use crate::event::Hook;
use crate::fake::{Datagram, run, world};
use crate::flow::{Kind, Shown};
use crate::wire::tcp;

const FIN: u8 = tcp::FIN | tcp::ACK;
const SYN_ACK: u8 = tcp::SYN | tcp::ACK;

/// A forger sees no SYN-ACK, so it acknowledges nothing, or a number that it has guessed. Such segments may meet no
/// RST: the backend drops one without ACK, and a router one whose hop limit is over.
#[test]
fn forged_handshake_protects_nothing() {
    let far = 0x4000_0000;
    for flags in [0, tcp::FIN, 8, 8 | tcp::FIN, tcp::ACK, FIN, tcp::ACK | 8] {
        for is_early in [true, false] {
            let exchange = Exchange::tcp();
            let _new = exchange.asks(tcp::SYN);
            if is_early {
                let _early = exchange.asks_with(flags, [8, far]);
            }
            let _reply = exchange.answers(SYN_ACK);
            for _ in 0..3 {
                assert_eq!(exchange.asks_with(flags, [8, far]).0, FORWARD);
                let _again = exchange.answers(SYN_ACK);
            }
            assert_eq!(exchange.protected(), 0, "flags {flags:#x}, {is_early}");
            // The client itself, if there is one. Its packet is marked in a later tick, if not at once.
            exchange.wait(2);
            let _known = exchange.asks(tcp::ACK);
            let is_open = flags & tcp::FIN == 0;
            assert!(!is_open || exchange.protected() == 2, "flags {flags:#x}, {is_early}");
        }
    }
}

#[test]
fn handshake_is_proven_by_any_segment_that_acknowledges_the_syn_ack() {
    for (flags, number) in [(tcp::ACK, 9), (tcp::ACK | 8, 9 + 1_000), (FIN, 9)] {
        let exchange = Exchange::tcp();
        let _opens =
            (exchange.asks(tcp::SYN), exchange.answers(SYN_ACK), exchange.answers(SYN_ACK));
        assert_eq!(exchange.entry(Kind::FORWARD).expected, 9);
        assert_eq!(exchange.protected(), 0);
        let _known = exchange.asks_with(flags, [8, number]);
        assert_eq!(exchange.protected(), 2, "flags {flags:#x}");
    }
}

/// A backend that was restarted begins with another number.
#[test]
fn last_syn_ack_before_the_handshake_counts() {
    let exchange = Exchange::tcp();
    let _opens = (exchange.asks(tcp::SYN), exchange.answers(SYN_ACK));
    let (far, ours) = (0x4000_0000, 10);
    let _again = (exchange.asks(tcp::SYN), exchange.answers_with(SYN_ACK, [far, ours]));
    let _known = exchange.asks(tcp::ACK);
    assert_eq!(exchange.protected(), 0);
    exchange.wait(2);
    let _known = exchange.asks_with(tcp::ACK, [8, far + 1]);
    assert_eq!(exchange.protected(), 2);
}

/// A client that lost its half-closed connection comes back with the same port, and the backend accepts it.
#[test]
fn syn_ack_begins_another_connection_with_the_tuple_of_a_half_closed_one() {
    for is_server in [true, false] {
        let exchange = Exchange::opened();
        let _fin = if is_server { exchange.answers(FIN) } else { exchange.asks(FIN).0 };
        exchange.wait(60);
        let (ours, theirs) = (0x4000_0000, 0x8000_0000);
        assert_eq!(exchange.asks_with(tcp::SYN, [ours, 0]).0, FORWARD);
        assert_eq!(exchange.answers_with(SYN_ACK, [theirs, ours + 1]), REPLY);
        let (forward, reply) = (exchange.entry(Kind::FORWARD), exchange.entry(Kind::REPLY));
        assert_eq!((forward.shown, reply.shown), (Shown::ESTABLISHED, Shown::ESTABLISHED));
        assert_eq!((forward.expected, reply.expected), (theirs + 1, ours + 1));
        let _known = exchange.asks_with(tcp::ACK, [ours + 1, theirs + 1]);
        // The new connection may be half-closed as any other.
        assert_eq!(exchange.asks_with(FIN, [ours + 1, theirs + 1]).0, FORWARD);
        exchange.wait(600);
        assert_eq!(exchange.answers_with(tcp::ACK, [theirs + 1, ours + 2]), REPLY);
        assert_eq!(exchange.protected(), 2);
    }
}

/// The handshake's last packet was lost on its way to the backend, which sends the SYN-ACK again.
#[test]
fn syn_ack_that_is_sent_again_begins_nothing() {
    let exchange = Exchange::opened();
    let _fin = exchange.asks(FIN);
    assert_eq!(exchange.answers(SYN_ACK), REPLY);
    assert_eq!(exchange.entry(Kind::FORWARD).shown, Shown::FIN);
}

/// A SYN-ACK in an open connection is forged, or late.
#[test]
fn syn_ack_in_an_open_connection_changes_no_number() {
    let exchange = Exchange::opened();
    let _forged = exchange.answers_with(SYN_ACK, [0x8000_0000, 0x4000_0000]);
    assert_eq!(
        (exchange.entry(Kind::FORWARD).expected, exchange.entry(Kind::REPLY).expected),
        (9, 10)
    );
}

/// Entries may be lost, with the maps of an agent for one: an acknowledgement finds the backend that the SYN found, of
/// many.
#[test]
fn connection_without_entries_returns_to_its_backend() {
    let backends = ["10.1.0.21:8080", "10.1.0.22:8080", "10.1.0.23:8080", "10.2.0.24:8080"];
    let tables = node(&backends.map(|backend| (backend, backend.starts_with("10.1."))));
    let mut chosen = std::collections::BTreeSet::new();
    for port in 40_000..40_032 {
        let asks = |flags| {
            let from = std::format!("10.1.0.5:{port}");
            let packet = Datagram::tcp(&from, world::CLUSTER4, flags).build();
            let (verdict, out) = run(&step(Hook::PodIngress, packet), &tables);
            (verdict, destination(&out))
        };
        let (verdict, backend) = asks(tcp::SYN);
        assert_eq!(verdict, NEW);
        tables.transient.borrow_mut().clear();
        assert_eq!(asks(tcp::ACK), (NEW, backend));
        chosen.insert(backend);
    }
    assert_eq!(chosen.len(), backends.len());
}
