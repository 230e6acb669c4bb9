//! Whether the flow of an entry is still alive.
//!
//! Idle flows end without any process: an entry that has not been seen for its lifetime is treated as absent, and the
//! next flow that needs its place takes it. The agent's sweep only keeps the tables small.

pub(super) mod close;
pub(super) mod flows;
pub(super) mod follow;
pub(super) mod opening;
pub(super) mod shown;
pub(super) mod tiers;

use crate::config::Settings;
use crate::flow::Kind;
use crate::forward::Found;
use crate::forward::scratch::found::opposite_of;
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
    if now.saturating_sub(found.flow.seen) < SHORTEST {
        return false;
    }
    let Found { key, flow, opposite, visited, .. } = found;
    // A masquerade lives as long as its flow, which its reply entry shows. The client's packet has just met the forward
    // entry, or it is a stray one, which must not get the source of a flow that has ended. The reply has not met the
    // reply entry yet: without this test it would get its client's address here, and no translation where it leaves.
    let (key, flow) = if flow.is_masquerade() {
        key.write_leaving_key(flow, &mut visited.key);
        if !flow.is_answer() {
            key.tuple.write_reversed(&mut visited.key.tuple);
        }
        // Where the entry was displaced, the client's next packet restores it. A masquerade of an own connection has
        // none.
        if !tables.flow(&visited.key, &mut visited.flow) || visited.flow.kind != Kind::REPLY {
            return false;
        }
        (&visited.key, &visited.flow)
    } else {
        (&*key, &*flow)
    };
    let has_opposite = opposite_of(tables, key, flow, opposite);
    settings.node.lifetimes.is_over(key, flow, has_opposite.then_some(&opposite.flow), now)
}
