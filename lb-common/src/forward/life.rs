//! Whether the flow of an entry still counts.
//!
//! Idle flows end without anybody's help: an entry that has not been seen for its lifetime is treated as absent,
//! and the next flow that wants its place takes it. The agent's sweep only keeps the tables small.

pub(super) mod close;
pub(super) mod flows;
pub(super) mod tiers;

use crate::config::Settings;
use crate::forward::Found;
use crate::tables::{Clock, Flows};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// The shortest lifetime of all: an entry seen more recently needs no closer look.
pub(super) const SHORTEST: u64 = crate::flow::CLOSED as u64 * SECOND;

/// Whether the flow of the entry that was found has been idle for longer than its lifetime.
#[inline(always)]
pub(super) fn is_expired<T: Clock + Flows>(
    tables: &T,
    settings: &Settings,
    found: &mut Found,
) -> bool {
    // An entry of this very tick was seen a moment ago; the clock is not asked.
    found.flow.tick() != tables.tick() && is_idle(tables, settings, found)
}

#[inline(never)]
fn is_idle<T: Clock + Flows>(tables: &T, settings: &Settings, found: &mut Found) -> bool {
    let now = tables.now();
    // A masquerade lives as long as the flow that it belongs to, which is judged by its other entries.
    if now.saturating_sub(found.flow.seen) < SHORTEST || found.flow.is_masquerade() {
        return false;
    }
    let has_opposite = found.find_opposite(tables);
    let opposite = has_opposite.then_some(&found.opposite.flow);
    settings.node.lifetimes.is_over(&found.key, &found.flow, opposite, now)
}
