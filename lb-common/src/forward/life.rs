//! Whether the flow of an entry is still alive.
//!
//! Idle flows end without any process: an entry that has not been seen for its lifetime is treated as absent, and the
//! next flow that needs its place takes it. The agent's sweep only keeps the tables small.

pub(super) mod close;
pub(super) mod flows;
pub(super) mod opening;
pub(super) mod tiers;

use crate::config::Settings;
use crate::forward::Found;
use crate::tables::{Clock, Flows};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// The shortest lifetime of all, in nanoseconds: an entry seen more recently needs no closer check.
pub(super) const SHORTEST: u64 = crate::flow::CLOSED as u64 * SECOND;

/// Whether the flow of the entry that was found has been idle for longer than its lifetime.
#[inline(always)]
pub(super) fn is_expired<T: Clock + Flows>(
    tables: &T,
    settings: &Settings,
    found: &mut Found,
) -> bool {
    // An entry of the current tick was seen a moment ago, so the clock need not be read.
    found.flow.tick() != tables.tick() && is_idle(tables, settings, found)
}

#[inline(never)]
fn is_idle<T: Clock + Flows>(tables: &T, settings: &Settings, found: &mut Found) -> bool {
    let now = tables.now();
    // A masquerade lives as long as its flow, whose lifetime is judged by the other entries.
    if now.saturating_sub(found.flow.seen) < SHORTEST || found.flow.is_masquerade() {
        return false;
    }
    let has_opposite = found.find_opposite(tables);
    let opposite = has_opposite.then_some(&found.opposite.flow);
    settings.node.lifetimes.is_over(&found.key, &found.flow, opposite, now)
}
