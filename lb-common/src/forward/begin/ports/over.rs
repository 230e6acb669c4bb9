//! Flows that give their tuple up to a new one.

use crate::flow::{Entry, Flow, FlowKey};
use crate::forward::choose::SECOND;
use crate::forward::life;
use crate::tables::{Flows, Node};

/// Nanoseconds of silence after which the port of a displaceable flow is free: no such flow lives longer unanswered.
pub(super) const STALE: u64 = 60 * SECOND;

/// Whether a reply is of a flow that is over: displaceable, and closed by both ends, reset, or silent for long; or
/// protected, and idle for longer than any such flow lives. `other`: room for the entry of the other direction.
#[inline(always)]
pub(in crate::forward) fn is_over<T: Flows + Node>(
    tables: &T,
    (key, reply): (&FlowKey, &mut Flow),
    now: u64,
    other: &mut Entry,
) -> bool {
    if reply.is_protected() {
        end_idle(tables, (key, reply), now, other)
    } else {
        has_ended(tables, (key, reply), now, other)
    }
}

#[inline(never)]
fn has_ended<T: Flows>(
    tables: &T,
    (key, reply): (&FlowKey, &Flow),
    now: u64,
    forward: &mut Entry,
) -> bool {
    if reply.shown.rst != 0 || now.saturating_sub(reply.seen) >= STALE {
        return true;
    }
    if !reply.shown.ends() {
        return false;
    }
    key.write_opposite(reply, &mut forward.key);
    let has_forward = tables.flow(&forward.key, &mut forward.flow);
    !has_forward || reply.shown.is_over(forward.flow.shown)
}

/// Ends a protected flow that is idle. The agent's sweep judges closer, but without
/// an agent nothing else would ever free its port.
///
/// VERIFIER: a function of its own, for nothing here may cost the others stack.
#[inline(never)]
pub(super) fn end_idle<T: Flows + Node>(
    tables: &T,
    (key, reply): (&FlowKey, &mut Flow),
    now: u64,
    other: &mut Entry,
) -> bool {
    let idle = now.saturating_sub(reply.seen);
    if idle < life::SHORTEST {
        return false;
    }
    key.write_opposite(reply, &mut other.key);
    other.flow.seen = 0;
    // An entry that is another flow's by now lives for itself, and only makes this one wait.
    let _found: bool = tables.flow(&other.key, &mut other.flow);
    let Some(settings) = tables.settings() else { return false };
    let idle = now.saturating_sub(reply.seen.max(other.flow.seen));
    if idle < u64::from(settings.node.lifetimes.longest(key.protocol)) * SECOND {
        return false;
    }
    tables.remove_flow(&other.key);
    tables.remove_flow(key);
    reply.flags &= !Flow::PROTECTED;
    true
}
