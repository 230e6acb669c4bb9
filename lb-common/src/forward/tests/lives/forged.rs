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
