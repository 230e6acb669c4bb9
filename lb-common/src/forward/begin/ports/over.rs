//! Flows that are over and give their tuple up to a new one.

use crate::addr::Protocol;
use crate::config::Settings;
use crate::flow::{Entry, Flow, FlowKey};
use crate::forward::choose::SECOND;
use crate::forward::life::{self, tiers};
use crate::tables::{Clock, Flows, Node};

/// Seconds of silence after which the port of a transient flow is free, at least: a TCP connection that is unanswered
/// lives as long.
const LEAST: u32 = 60;

/// Nanoseconds of silence after which the port of a transient flow is free: no such flow lives longer unanswered.
#[inline(always)]
pub(super) fn stale(settings: &Settings, protocol: Protocol) -> u64 {
    let unreplied = settings.node.lifetimes.unreplied;
    let seconds = if protocol == Protocol::TCP { LEAST } else { unreplied.max(LEAST) };
    u64::from(seconds) * SECOND
}

/// Whether the flow of a reply is over.
///
/// A transient flow is over once it is closed by both ends, reset, or silent for long; a protected one once it is
/// idle for longer than any such flow lives. `opposite`: working memory for the other direction.
#[inline(always)]
pub(in crate::forward) fn is_over<T: Flows + Node>(
    tables: &T,
    key: &FlowKey,
    reply: &mut Flow,
    now: u64,
    opposite: &mut Entry,
) -> bool {
    if reply.is_protected() {
        end_idle(tables, key, reply, now, opposite)
    } else {
        has_ended(tables, key, reply, now, opposite)
    }
}

#[inline(never)]
fn has_ended<T: Flows + Node>(
    tables: &T,
    key: &FlowKey,
    reply: &Flow,
    now: u64,
    forward: &mut Entry,
) -> bool {
    if reply.shown.rst != 0 {
        return true;
    }
    let Some(settings) = tables.settings() else { return false };
    let stale = stale(settings, key.protocol);
    let is_silent = now.saturating_sub(reply.seen) >= stale;
    // A flow without an answer, as a flood has them, is over only by its age.
    if !is_silent && reply.shown.established == 0 {
        return false;
    }
    // A client that gets no answers, as one that sends to a collector of logs, is active although its reply entry is
    // silent. And only this entry shows that the client has reset an open connection; that of a masquerade shows no RST
    // (`close::reset`).
    key.write_opposite(reply, &mut forward.key);
    if !tables.flow(&forward.key, &mut forward.flow) {
        // The next packet of the client begins a flow again, with another port if necessary.
        return is_silent || reply.shown.ends();
    }
    // During the handshake any RST counts as proven (`close`): a forged one must not give the tuple away.
    let has_opened = reply.shown.ends() || forward.flow.shown.established != 0;
    is_silent && now.saturating_sub(forward.flow.seen) >= stale
        || has_opened && reply.shown.is_over(forward.flow.shown)
}

/// The time of the last packet of a flow in either direction: an answer's entry alone does not show the packets of an
/// unanswered flow. `opposite`: working memory for the other direction.
///
/// VERIFIER: a function of its own, as the next one.
#[inline(never)]
pub(super) fn last_seen<T: Flows>(
    tables: &T,
    key: &FlowKey,
    reply: &Flow,
    opposite: &mut Entry,
) -> u64 {
    key.write_opposite(reply, &mut opposite.key);
    opposite.flow.seen = 0;
    // The entry may belong to another flow by now: then its packets only delay the end of this one.
    let _found: bool = tables.flow(&opposite.key, &mut opposite.flow);
    reply.seen.max(opposite.flow.seen)
}

/// Ends a protected flow that is idle. The agent's sweep judges more precisely, but without an agent nothing else would
/// ever free the port.
///
/// VERIFIER: a function of its own, so that its stack is not added to that of its callers.
#[inline(never)]
pub(super) fn end_idle<T: Flows + Node>(
    tables: &T,
    key: &FlowKey,
    reply: &mut Flow,
    now: u64,
    opposite: &mut Entry,
) -> bool {
    if !is_idle(tables, key, reply, now, opposite) {
        return false;
    }
    // The entry that the client's packets meet goes first and the reply last, as in a sweep (ADR 0009).
    tables.remove_flow(&opposite.key);
    tables.remove_flow(key);
    reply.flags &= !Flow::PROTECTED;
    true
}

/// As [`end_idle`], for an entry of the replies to a masqueraded source. The client may still send, without an answer,
/// so the entries that its packets meet become transient: the next one gets another source.
///
/// VERIFIER: a function of its own, so that its stack is not added to that of its callers.
#[inline(never)]
pub(super) fn end_idle_masquerade<T: Clock + Flows + Node>(
    tables: &T,
    key: &FlowKey,
    replies: &Flow,
    now: u64,
    opposite: &mut Entry,
) -> bool {
    if !is_idle(tables, key, replies, now, opposite) {
        return false;
    }
    tiers::release_masqueraded(tables, key, replies, opposite);
    key.write_opposite(replies, &mut opposite.key);
    tables.remove_flow(&opposite.key);
    tables.remove_flow(key);
    true
}

/// Whether a flow has been idle for longer than any such flow lives. `opposite`: room for the entry of the other
/// direction.
#[inline(always)]
fn is_idle<T: Flows + Node>(
    tables: &T,
    key: &FlowKey,
    reply: &Flow,
    now: u64,
    opposite: &mut Entry,
) -> bool {
    let idle = now.saturating_sub(reply.seen);
    // Most flows that are tried end here, without a lookup of their other direction.
    if idle < life::SHORTEST {
        return false;
    }
    let idle = now.saturating_sub(last_seen(tables, key, reply, opposite));
    let Some(settings) = tables.settings() else { return false };
    idle >= u64::from(settings.node.lifetimes.longest(key.protocol)) * SECOND
}
