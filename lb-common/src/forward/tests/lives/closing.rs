//! How connections end, from either side, and how long what is left of them counts.

use super::{Exchange, FORWARD, NEW, REPLY, step};
use crate::addr::Protocol;
use crate::event::{Hook, PassReason, Redirect, Return, Verdict};
use crate::fake::{Datagram, Fake, at, run, world};
use crate::flow::{Kind, Shown};
use crate::service::{Flags, Service};
use crate::wire::tcp;

const FIN: u8 = tcp::FIN | tcp::ACK;
/// An external IP, and the verdict on packets of a process to it.
const VIP: &str = "198.51.100.1:80";
const LEAVES: Verdict = Verdict::Redirected(Redirect::FromHost);

#[test]
fn server_that_closes_first_is_still_sent_to() {
    let exchange = Exchange::opened();
    assert_eq!(exchange.answers(FIN), REPLY);
    for _ in 0..4 {
        exchange.wait(600);
        assert_eq!(exchange.asks(tcp::ACK).0, FORWARD, "the client has more to say");
        assert_eq!(exchange.answers(tcp::ACK), REPLY);
        assert_eq!(exchange.protected(), 2);
    }
    assert_eq!(exchange.asks(FIN).0, FORWARD);
    assert_eq!(exchange.protected(), 2, "its acknowledgement is to come");
    assert_eq!(exchange.answers(tcp::ACK), REPLY);
    assert_eq!(exchange.protected(), 0);
    exchange.wait(9);
    assert_eq!(exchange.answers(tcp::ACK), REPLY, "sent again");
    exchange.wait(10);
    assert_eq!(exchange.asks(FIN).0, Verdict::Pass(PassReason::NoFlow));
}

#[test]
fn fin_alone_shortens_no_life_below_that_of_a_half_closed_connection() {
    for is_client in [true, false] {
        let exchange = Exchange::opened();
        let _fin = if is_client { exchange.asks(FIN).0 } else { exchange.answers(FIN) };
        exchange.wait(3_599);
        assert_eq!(exchange.asks(tcp::ACK).0, FORWARD);
        exchange.wait(3_600);
        assert_eq!(exchange.answers(tcp::ACK), Verdict::Pass(PassReason::NotOurs));
    }
}

#[test]
fn fin_of_both_at_once_waits_for_the_acknowledgements() {
    let exchange = Exchange::opened();
    let _fins = (exchange.asks(FIN), exchange.answers(FIN));
    assert_eq!(exchange.protected(), 2);
    let _again = (exchange.asks(FIN), exchange.answers(FIN));
    assert_eq!(exchange.protected(), 2, "a FIN that is sent again acknowledges nothing that ends");
    let _last = exchange.answers(tcp::ACK);
    assert_eq!(exchange.protected(), 0);
    assert_eq!(
        (exchange.entry(Kind::FORWARD).shown, exchange.entry(Kind::REPLY).shown),
        (Shown::FIN, Shown::FIN)
    );
}

/// A forger knows no number.
#[test]
fn fin_that_nothing_proves_leaves_a_keep_alive_interval() {
    let forged = [0x8000_0000, 0];
    for (is_client, is_server) in [(true, false), (false, true), (true, true)] {
        let exchange = Exchange::opened();
        exchange.wait(5);
        if is_client {
            let _fin = exchange.asks_with(FIN, forged);
        }
        if is_server {
            let _fin = exchange.answers_with(FIN, forged);
        }
        let _challenges = (exchange.asks(tcp::ACK), exchange.answers(tcp::ACK));
        assert_eq!(exchange.protected(), 2, "{is_client} {is_server}");
        lives_for_a_keep_alive_interval(&exchange);
    }
}

/// Both numbers of the server's FIN are far from those that are known.
#[test]
fn fin_that_nothing_proves_ends_a_connection_with_a_proven_one() {
    for is_servers_first in [true, false] {
        let exchange = Exchange::opened();
        exchange.wait(5);
        let far = |exchange: &Exchange| exchange.answers_with(FIN, [1 << 24, 1 << 24]);
        let near = |exchange: &Exchange| exchange.asks(FIN).0;
        let fins = if is_servers_first {
            [far(&exchange), near(&exchange)]
        } else {
            let near = near(&exchange);
            [far(&exchange), near]
        };
        assert_eq!((fins, exchange.protected()), ([REPLY, FORWARD], 2));
        assert_eq!(exchange.asks(tcp::ACK).0, FORWARD);
        assert_eq!(exchange.protected(), 0);
        exchange.wait(11);
        assert_eq!(exchange.asks(tcp::SYN).0, NEW, "its port may be used again");
    }
}

#[test]
fn reset_within_its_window_ends_a_connection_and_one_beyond_does_not() {
    for (ahead, is_reset) in [(0, 1), (1 << 16, 1), ((1 << 16) + 1, 0), (u32::MAX, 0)] {
        let exchange = Exchange::opened();
        exchange.wait(60);
        // The backend expects 10, by its last acknowledgement.
        let _rst = exchange.asks_with(tcp::RST, [10_u32.wrapping_add(ahead), 0]);
        assert_eq!(exchange.entry(Kind::FORWARD).shown.rst, is_reset, "{ahead}");
        let exchange = Exchange::opened();
        exchange.wait(60);
        // The client expects 9.
        let sequence = 9_u32.wrapping_add(ahead);
        let _rst = exchange.answers_with(tcp::RST, [sequence, 0]);
        assert_eq!(exchange.entry(Kind::REPLY).shown.rst, is_reset, "{ahead} of the backend");
    }
}

#[test]
fn reset_of_a_connection_that_one_end_never_spoke_in_counts_at_any_number() {
    let exchange = Exchange::tcp();
    let _new = exchange.asks(tcp::SYN);
    exchange.wait(20);
    assert_eq!(exchange.answers_with(tcp::RST | tcp::ACK, [0x8000_0000, 8]), REPLY);
    assert_eq!(exchange.entry(Kind::REPLY).shown.rst, 1);
    assert_eq!(exchange.asks(tcp::SYN).0, NEW, "a client that tries again begins a flow");
}

#[test]
fn sequence_numbers_come_round() {
    let exchange = Exchange::opened();
    exchange.wait(2);
    let _near_the_end = exchange.answers_with(tcp::ACK, [8, u32::MAX - 3]);
    exchange.wait(60);
    let _rst = exchange.asks_with(tcp::RST, [5, 0]);
    assert_eq!(exchange.entry(Kind::FORWARD).shown.rst, 1);
}

#[test]
fn second_reset_does_not_move_the_time_of_the_first() {
    let exchange = Exchange::opened();
    let _rst = exchange.answers_with(tcp::RST, [9, 0]);
    let first = exchange.entry(Kind::REPLY).seen;
    exchange.wait(5);
    let _again = exchange.answers_with(tcp::RST, [9, 0]);
    assert_eq!(exchange.entry(Kind::REPLY).seen, first);
}

#[test]
fn reset_of_a_connection_that_one_end_alone_spoke_in_counts_at_any_number() {
    let exchange = Exchange::tcp();
    let _opens = (exchange.asks(tcp::SYN), exchange.answers(tcp::SYN | tcp::ACK));
    exchange.wait(20);
    let _rst = exchange.asks_with(tcp::RST, [0x8000_0000, 0]);
    assert_eq!(exchange.entry(Kind::FORWARD).shown.rst, 1);
}

fn lives_for_a_keep_alive_interval(exchange: &Exchange) {
    exchange.wait(7_250);
    assert_eq!(exchange.asks(tcp::SYN).0, FORWARD, "a connection in use is not moved");
    assert_eq!(exchange.asks(tcp::ACK).0, FORWARD);
    assert_eq!(exchange.answers(tcp::ACK), REPLY);
    exchange.wait(7_270);
    assert_eq!(exchange.answers(tcp::ACK), Verdict::Pass(PassReason::NotOurs));
}

#[test]
fn reset_that_nothing_proves_leaves_a_keep_alive_interval() {
    for is_client in [true, false] {
        let exchange = Exchange::opened();
        // It may have been silent for longer than a connection with a claim lives.
        exchange.wait(20_000);
        let numbers = [0x8000_0000, 0];
        let _rst = if is_client {
            exchange.asks_with(tcp::RST, numbers).0
        } else {
            exchange.answers_with(tcp::RST, numbers)
        };
        let kind = if is_client { Kind::FORWARD } else { Kind::REPLY };
        let shown = exchange.entry(kind).shown;
        assert_eq!((shown.rst, shown.claimed, exchange.protected()), (0, 1, 2));
        lives_for_a_keep_alive_interval(&exchange);
    }
}

/// A backend that is gone without a word answers nothing, however often its client tries.
#[test]
fn syn_keeps_no_connection_alive_that_its_backend_has_left() {
    let mut exchange = Exchange::opened();
    exchange.change_backend();
    for _ in 0..3 {
        assert_eq!(exchange.asks(tcp::SYN), (FORWARD, at(world::LOCAL4)));
        exchange.wait(40);
    }
    exchange.wait(2);
    for _ in 0..2 {
        assert_eq!(exchange.asks(tcp::SYN), (FORWARD, at(world::LOCAL4)), "the backend may answer");
        exchange.wait(1);
    }
    exchange.wait(1);
    assert_eq!(exchange.asks(tcp::SYN), (NEW, at("10.1.0.99:8080")));
}

/// Another host, or the same one without a server, has the backend's address by now.
#[test]
fn syn_that_a_removed_backend_resets_moves_the_connection_in_the_end() {
    let mut exchange = Exchange::opened();
    exchange.change_backend();
    // The first RST counts as traffic.
    for _ in 0..2 {
        exchange.wait(121);
        assert_eq!(exchange.asks(tcp::SYN), (FORWARD, at(world::LOCAL4)));
        // Its number is 0, which is far from those of the connection.
        assert_eq!(exchange.answers_with(tcp::RST | tcp::ACK, [0x8000_0000, 8]), REPLY);
    }
    exchange.wait(3);
    assert_eq!(exchange.asks(tcp::SYN), (NEW, at("10.1.0.99:8080")));
}

/// A backend that is no endpoint any more may still have the connection: its answer shows that the SYN was forged.
#[test]
fn syn_moves_no_idle_connection_whose_backend_answers() {
    let mut exchange = Exchange::opened();
    exchange.change_backend();
    for _ in 0..3 {
        exchange.wait(200);
        for _ in 0..3 {
            assert_eq!(exchange.asks(tcp::SYN), (FORWARD, at(world::LOCAL4)));
            assert_eq!(exchange.answers(tcp::ACK), REPLY, "its challenge");
            exchange.wait(3);
        }
    }
    assert_eq!(exchange.asks(tcp::ACK), (FORWARD, at(world::LOCAL4)));
}

#[test]
fn syn_in_a_half_closed_connection_begins_nothing() {
    for is_client in [true, false] {
        let exchange = Exchange::opened();
        let _fin = if is_client { exchange.asks(FIN).0 } else { exchange.answers(FIN) };
        assert_eq!(exchange.asks(tcp::SYN).0, FORWARD);
    }
}

#[test]
fn syn_after_resets_or_closes_of_both_begins_a_flow() {
    let exchange = Exchange::opened();
    let client = |exchange: &Exchange| exchange.asks_with(tcp::RST, [10, 0]).0;
    let backend = |exchange: &Exchange| exchange.answers_with(tcp::RST, [9, 0]);
    let _resets = (client(&exchange), backend(&exchange));
    assert_eq!(exchange.asks(tcp::SYN).0, NEW);
    for is_client in [true, false] {
        let exchange = Exchange::opened();
        let _fins = (exchange.asks(FIN), exchange.answers(FIN));
        let _rst = if is_client { client(&exchange) } else { backend(&exchange) };
        assert_eq!(exchange.asks(tcp::SYN).0, NEW);
    }
}

#[test]
fn syn_of_a_handshake_that_was_not_completed_follows_its_service() {
    let mut exchange = Exchange::tcp();
    let _opens = (exchange.asks(tcp::SYN), exchange.answers(tcp::SYN | tcp::ACK));
    exchange.change_backend();
    assert_eq!(exchange.asks(tcp::SYN), (NEW, at("10.1.0.99:8080")));
}

#[test]
fn ended_flow_is_not_protected_but_a_half_closed_one_is() {
    let opens = || {
        let exchange = Exchange::tcp();
        let _opens = (exchange.asks(tcp::SYN), exchange.answers(tcp::SYN | tcp::ACK));
        exchange
    };
    let exchange = opens();
    let _fin = exchange.asks(FIN);
    assert_eq!(exchange.protected(), 2, "the answer to its question is to come");
    let exchange = opens();
    let _resets = (exchange.asks(tcp::RST), exchange.answers(tcp::RST), exchange.asks(tcp::ACK));
    assert_eq!(exchange.protected(), 0);
    let exchange = opens();
    let _fin = exchange.answers(FIN);
    let _reset = exchange.answers(tcp::RST);
    let _fin = exchange.asks(FIN);
    assert_eq!(exchange.protected(), 0);
}

/// The reply entry now belongs to another flow, whose packets must not keep the first one alive.
#[test]
fn entry_of_another_flow_keeps_no_flow_alive() {
    let exchange = Exchange::udp();
    let _asked = exchange.asks(0);
    exchange.wait(31);
    let all = exchange.tables.all_flows();
    let (key, reply) = all.iter().find(|(_, flow)| flow.kind == Kind::REPLY).expect("a reply");
    let mut others = *reply;
    others.to.source = at("10.96.0.99:80").ip;
    (others.seen, others.shown) = (exchange.tables.clock.get(), Shown::ESTABLISHED);
    exchange.tables.put(*key, others);
    assert_eq!(exchange.asks(0).0, NEW);
}

/// Sends a segment of a process through the external interface.
fn sends(tables: &Fake, flags: u8) -> Verdict {
    let datagram = Datagram::tcp("192.168.0.10:45000", VIP, flags);
    let mut sends = step(Hook::ExternalEgress, datagram.build());
    sends.from_host = true;
    run(&sends, tables).0
}

/// A node with a process that has a closed connection to an external IP.
fn closed_by_both() -> (Fake, Service) {
    let mut tables = Fake::node();
    let service = tables.add_service(1, &[(world::REMOTE4, false)]);
    tables.external(VIP, Protocol::TCP, service);
    assert_eq!(sends(&tables, tcp::SYN), LEAVES);
    for flow in tables.transient.borrow_mut().values_mut() {
        flow.shown = Shown::FIN;
    }
    assert_eq!(sends(&tables, tcp::ACK), LEAVES);
    (tables, service)
}

/// A process reuses the port of a closed connection: what follows its SYN goes where the SYN went.
#[test]
fn syn_of_a_process_that_passes_ends_the_closed_connection() {
    let (mut tables, service) = closed_by_both();
    let draining = Service { flags: service.flags.with(Flags::DRAINING), ..service };
    tables.external(VIP, Protocol::TCP, draining);
    for flags in [tcp::SYN, tcp::ACK] {
        assert_eq!(sends(&tables, flags), Verdict::Pass(PassReason::DrainingFrontend));
    }
}

/// A refused SYN begins nothing: a repeated FIN of the closed connection still reaches its backend.
#[test]
fn syn_of_a_process_that_is_refused_ends_nothing() {
    let (mut tables, _) = closed_by_both();
    let empty = tables.add_service(2, &[]);
    tables.external(VIP, Protocol::TCP, empty);
    assert_eq!(sends(&tables, tcp::SYN), Verdict::Returned(Return::NoBackend));
    assert_eq!(sends(&tables, FIN), LEAVES);
}
