//! Segments that nothing proves: what a second one changes, and how soon a RST is refuted.

use super::{Exchange, FORWARD, REPLY};
use crate::flow::Kind;
use crate::wire::tcp;

/// A number that neither end expects.
const FORGED: [u32; 2] = [0x8000_0000, 0];
const MILLISECOND: u64 = 1_000_000;

impl Exchange {
    fn wait_ms(&self, milliseconds: u64) {
        self.tables.clock.set(self.tables.clock.get() + milliseconds * MILLISECOND);
        // A later packet is marked in any case, however short the time was.
        self.tables.ticks.set(Some(self.tables.ticks.get().unwrap_or(0) + 1));
    }
}

/// The claim of the first one is not withdrawn by the second: the flow is idle for a keep-alive interval at most.
#[test]
fn second_reset_that_nothing_proves_is_a_claim_as_the_first() {
    for resets in 1..=3 {
        let exchange = Exchange::opened();
        for _ in 0..resets {
            exchange.wait(5);
            assert_eq!(exchange.asks_with(tcp::RST, FORGED).0, FORWARD);
            assert_eq!(exchange.entry(Kind::FORWARD).shown.claimed, 1, "{resets}");
        }
    }
}

/// A segment in the name of each end: the number that one acknowledges proves nothing about the other.
#[test]
fn forged_acknowledgement_proves_no_forged_reset() {
    let far = 0x4000_0000;
    for flags in [tcp::ACK, tcp::FIN | tcp::ACK] {
        let exchange = Exchange::opened();
        exchange.wait_ms(2_000);
        let _forged = exchange.asks_with(flags, [FORGED[0], far]);
        let _forged = exchange.answers_with(tcp::RST, [far, 0]);
        assert_eq!(exchange.entry(Kind::REPLY).shown.rst, 0, "flags {flags:#x}");
        assert_eq!(exchange.protected(), 2, "flags {flags:#x}");
    }
}

/// The client of a fast download acknowledges more than any other end would in this time, and sends nothing itself.
#[test]
fn reset_at_the_end_of_a_fast_download_is_proven() {
    let exchange = Exchange::opened();
    let mut number = 9;
    for _ in 0..3 {
        exchange.wait_ms(2_000);
        number += 0x2000_0000;
        assert_eq!(exchange.asks_with(tcp::ACK, [10, number]).0, FORWARD);
    }
    assert_eq!(exchange.answers_with(tcp::RST, [number, 0]), REPLY);
    assert_eq!((exchange.entry(Kind::REPLY).shown.rst, exchange.protected()), (1, 0));
}

/// Both ends send, and neither of them much between two packets that are marked.
#[test]
fn reset_in_a_conversation_is_proven() {
    let exchange = Exchange::opened();
    let (mut ours, mut theirs) = (10_u32, 9_u32);
    for _ in 0..50 {
        exchange.wait_ms(2_000);
        (ours, theirs) = (ours + 500_000, theirs + 1_000_000);
        let _asked = exchange.asks_with(tcp::ACK, [ours, theirs]);
        let _answered = exchange.answers_with(tcp::ACK, [theirs, ours]);
    }
    assert_eq!(exchange.answers_with(tcp::RST, [theirs, 0]), REPLY);
    assert_eq!((exchange.entry(Kind::REPLY).shown.rst, exchange.protected()), (1, 0));
}

/// The other end had sent before the RST arrived: its packet refutes nothing.
#[test]
fn packets_right_after_a_reset_do_not_refute_it() {
    for (later, is_reset) in [(50, 1), (200, 0)] {
        let exchange = Exchange::opened();
        exchange.wait_ms(2_000);
        // The backend expects this number.
        assert_eq!(exchange.asks_with(tcp::RST, [10, 0]).0, FORWARD);
        exchange.wait_ms(later);
        assert_eq!(exchange.answers(tcp::ACK), REPLY);
        exchange.wait_ms(1);
        assert_eq!(exchange.asks(tcp::ACK).0, FORWARD);
        assert_eq!(exchange.entry(Kind::FORWARD).shown.rst, is_reset, "after {later} ms");
    }
}

/// A segment whose sequence number proves nothing: how far its acknowledgement may be ahead of the last one.
#[test]
fn acknowledgement_without_proof_is_recorded_up_to_a_distance() {
    for (ahead, is_recorded) in [(1 << 20, true), ((1 << 20) + 1, false)] {
        let exchange = Exchange::opened();
        let before = exchange.entry(Kind::FORWARD).expected;
        exchange.wait_ms(2_000);
        let _sent = exchange.asks_with(tcp::ACK, [FORGED[0], before + ahead]);
        let wanted = if is_recorded { before + ahead } else { before };
        assert_eq!(exchange.entry(Kind::FORWARD).expected, wanted, "{ahead}");
    }
}
