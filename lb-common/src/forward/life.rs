//! Whether the flow of an entry is still alive.
//!
//! Idle flows end without any process: an entry that has not been seen for its lifetime is treated as absent, and the
//! next flow that needs its place takes it. The agent's sweep only keeps the tables small.

pub(super) mod close;
pub(super) mod flows;
pub(super) mod opening;
pub(super) mod tiers;

use crate::config::Settings;
use crate::flow::{Kind, Lifetimes, Side};
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
    if now.saturating_sub(found.flow.seen) < SHORTEST {
        return false;
    }
    let lifetimes = &settings.node.lifetimes;
    match found.flow.kind {
        Kind::UNMASQUERADE => is_reply_over(tables, lifetimes, found, now),
        // The client's packet has just met its forward entry.
        Kind::MASQUERADE => false,
        _ => {
            let has_opposite = found.find_opposite(tables);
            let opposite = has_opposite.then_some(&found.opposite.flow);
            lifetimes.is_over(&found.key, &found.flow, opposite, now)
        }
    }
}

/// Whether the flow of the reply to a masqueraded source, which was found, is over: a masquerade lives as long as its
/// flow.
///
/// Otherwise the packet would get its client's address here, and no translation where it leaves. Unknown where the
/// reply entry was displaced: the client's next packet restores it.
#[inline(never)]
fn is_reply_over<T: Flows>(
    tables: &T,
    lifetimes: &Lifetimes,
    Found { key, flow, opposite, visited, .. }: &mut Found,
    now: u64,
) -> bool {
    (visited.key.tuple, visited.key.protocol) = (flow.to, key.protocol);
    visited.key.side = Side::EGRESS;
    if !tables.flow(&visited.key, &mut visited.flow) || visited.flow.kind != Kind::REPLY {
        return false;
    }
    visited.key.write_opposite(&visited.flow, &mut opposite.key);
    let has_forward = tables.flow(&opposite.key, &mut opposite.flow)
        && opposite.flow.to.is_reverse_of(&visited.key.tuple);
    lifetimes.is_over(&visited.key, &visited.flow, has_forward.then_some(&opposite.flow), now)
}
