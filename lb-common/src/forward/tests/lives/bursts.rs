//! Connections that carry much within one tick, and end before the next one.

use super::{Exchange, FORWARD, NEW, REPLY};
use crate::flow::Kind;
use crate::wire::tcp;

const FIN: u8 = tcp::FIN | tcp::ACK;
/// More than the numbers of a genuine FIN or RST may be ahead.
const MUCH: u32 = 100_000;

/// An exchange in which both ends send, by steps of 20,000 bytes, and all but the last are acknowledged.
fn burst(bytes: u32) -> Exchange {
    let exchange = Exchange::opened();
    exchange.tables.ticks.set(Some(exchange.entry(Kind::FORWARD).tick()));
    for sent in (0..bytes).step_by(20_000) {
        assert_eq!(exchange.asks_with(tcp::ACK, [10 + sent, 9 + sent]).0, FORWARD);
        assert_eq!(exchange.answers_with(tcp::ACK, [9 + sent, 10 + sent]), REPLY);
    }
    exchange
}

fn ended(exchange: &Exchange) {
    assert_eq!(exchange.protected(), 0);
    exchange.wait(11);
    exchange.tables.ticks.set(None);
    assert_eq!(exchange.asks(tcp::SYN).0, NEW, "its port may be used again");
}

#[test]
fn close_after_a_burst_of_both_ends_ends_the_flow() {
    let exchange = burst(2 * MUCH);
    let (ours, theirs) = (10 + 2 * MUCH, 9 + 2 * MUCH);
    assert_eq!(exchange.asks_with(FIN, [ours, theirs]).0, FORWARD);
    assert_eq!(exchange.answers_with(FIN, [theirs, ours + 1]), REPLY);
    assert_eq!(exchange.asks_with(tcp::ACK, [ours + 1, theirs + 1]).0, FORWARD);
    assert_eq!(
        (exchange.entry(Kind::FORWARD).shown.fin, exchange.entry(Kind::REPLY).shown.fin),
        (1, 1)
    );
    ended(&exchange);
}

/// The other end has acknowledged nothing of the last data yet, but the FIN acknowledges what its sender has received.
#[test]
fn close_with_much_in_flight_in_both_directions_ends_the_flow() {
    let exchange = burst(MUCH);
    let (ours, theirs) = (10 + 9 * MUCH, 9 + 9 * MUCH);
    assert_eq!(exchange.asks_with(FIN, [ours, 9 + MUCH]).0, FORWARD);
    assert_eq!(exchange.entry(Kind::FORWARD).shown.fin, 1);
    assert_eq!(exchange.answers_with(FIN, [theirs, 10 + MUCH]), REPLY);
    assert_eq!(exchange.entry(Kind::REPLY).shown.fin, 1);
    assert_eq!(exchange.asks_with(tcp::ACK, [ours + 1, theirs + 1]).0, FORWARD);
    ended(&exchange);
}

/// A client that closes its socket with an answer in it resets the connection, with its own data in flight.
#[test]
fn reset_with_much_in_flight_ends_the_flow() {
    for is_client in [true, false] {
        let exchange = burst(MUCH);
        let flags = tcp::RST | tcp::ACK;
        if is_client {
            assert_eq!(exchange.asks_with(flags, [10 + 9 * MUCH, 9 + MUCH]).0, FORWARD);
        } else {
            assert_eq!(exchange.answers_with(flags, [9 + 9 * MUCH, 10 + MUCH]), REPLY);
        }
        ended(&exchange);
    }
}

/// A kernel without a socket resets with the number that the segment acknowledged, and acknowledges nothing.
#[test]
fn reset_of_a_closed_socket_after_a_burst_ends_the_flow() {
    let exchange = burst(MUCH);
    assert_eq!(exchange.asks_with(tcp::ACK, [10, 9 + MUCH + 60_000]).0, FORWARD);
    assert_eq!(exchange.answers_with(tcp::RST, [9 + MUCH + 60_000, 0]), REPLY);
    ended(&exchange);
}

/// A sender whose last segments were merged acknowledges several of 64 KiB at once.
#[test]
fn numbers_that_are_both_some_way_ahead_prove_a_close() {
    for (distance, proven) in [(300_000, 1), (1 << 22, 1), ((1 << 22) + 1, 0)] {
        for [by_sequence, by_acknowledgement] in [[distance, 90_000], [90_000, distance]] {
            let exchange = burst(MUCH);
            let known =
                [exchange.entry(Kind::REPLY).expected, exchange.entry(Kind::FORWARD).expected];
            let numbers = [known[0] + by_sequence, known[1] + by_acknowledgement];
            let _fin = exchange.asks_with(FIN, numbers);
            assert_eq!(exchange.entry(Kind::FORWARD).shown.fin, proven, "{numbers:?}");
        }
    }
}

/// Segments of a forger have numbers that are near neither record.
#[test]
fn fin_and_reset_with_two_far_numbers_end_nothing_after_a_burst() {
    for flags in [FIN, tcp::RST | tcp::ACK, tcp::RST] {
        let exchange = burst(MUCH);
        let far = [0x8000_0000, 0x4000_0000];
        let _forged = (exchange.asks_with(flags, far), exchange.answers_with(flags, far));
        let _more =
            (exchange.asks_with(tcp::ACK, [10 + MUCH, 9 + MUCH]), exchange.answers(tcp::ACK));
        let (forward, reply) = (exchange.entry(Kind::FORWARD), exchange.entry(Kind::REPLY));
        let ends = forward.shown.fin | forward.shown.rst | reply.shown.fin | reply.shown.rst;
        assert_eq!((ends, exchange.protected()), (0, 2), "flags {flags:#x}");
    }
}

/// The record moves by steps of 32 KiB, and by none that is smaller or behind.
#[test]
fn acknowledgement_is_recorded_after_a_step() {
    for (progress, recorded) in [(0, 0), (1 << 15, 0), ((1 << 15) + 1, (1 << 15) + 1), (-9, 0)] {
        let exchange = Exchange::opened();
        exchange.tables.ticks.set(Some(exchange.entry(Kind::FORWARD).tick()));
        let number = 9_u32.wrapping_add_signed(progress);
        let _data = exchange.asks_with(tcp::ACK, [10, number]);
        let expected = exchange.entry(Kind::FORWARD).expected;
        assert_eq!(expected, 9_u32.wrapping_add_signed(recorded), "{progress}");
    }
}

/// Where only the backend goes on to send, its packets keep the entry of the client from displacement.
#[test]
fn answers_of_a_stream_look_up_the_entry_of_its_client() {
    let exchange = Exchange::udp();
    let _new = exchange.asks(0);
    let look_ups = || {
        exchange.wait(1);
        exchange.tables.look_ups.set(0);
        assert_eq!(exchange.answers(0), REPLY);
        exchange.tables.look_ups.get()
    };
    let first = look_ups();
    exchange.wait(3);
    assert_eq!(look_ups(), first + 1);
}
