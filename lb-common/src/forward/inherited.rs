//! Packets left to the stack while another proxy's connections end, or while those of this data path do (ADR 0031).
//!
//! While netfilter still translates connections that began before a take-over, a TCP segment without a flow belongs to
//! one of them: a flow begun for it would be a second translation of the same connection. A datagram does not show
//! whether it begins something, so the agent writes down the tuples that netfilter knows.

use crate::addr::Protocol;
use crate::config::Settings;
use crate::event::{PassReason, Verdict};
use crate::flow::FlowKey;
use crate::forward::Step;
use crate::hash;
use crate::tables::Filters;
use crate::wire::Headers;

/// Ends the path of a packet to a frontend that has no flow and must not begin one. It costs one test of a bit where
/// the agent neither takes over nor drains.
#[inline(always)]
pub(super) fn leaves<T: Filters>(tables: &T, settings: &Settings, headers: &Headers) -> Step<()> {
    if settings.has(Settings::TAKE_OVER | Settings::DRAIN) {
        judge(tables, settings, headers)
    } else {
        Ok(())
    }
}

/// VERIFIER: a function of its own: inlined, the hash would fill registers of the parts that call it.
#[inline(never)]
fn judge<T: Filters>(tables: &T, settings: &Settings, headers: &Headers) -> Step<()> {
    let Headers { view, key, .. } = headers;
    // A drain comes first: no packet without a flow begins one then, whatever netfilter knows of it (ADR 0031).
    if settings.has(Settings::DRAIN) {
        return Err(Verdict::Pass(PassReason::Draining));
    }
    // The flags of a segment show that it begins nothing. A list of tuples would miss connections that begin between
    // the agent's dump and its attachment (ADR 0031).
    let is_theirs = if view.protocol == Protocol::TCP {
        !view.is_syn()
    } else {
        tables.is_inherited(hash::whole(&key.tuple, key.protocol))
    };
    if is_theirs { Err(Verdict::Pass(PassReason::TakenOver)) } else { Ok(()) }
}

/// Whether the tuple of a reply in the making belongs to a connection that netfilter translates: then its flow needs
/// another port.
#[inline(always)]
pub(super) fn conflicts<T: Filters>(tables: &T, settings: &Settings, reply: &FlowKey) -> bool {
    // A drain has no list of netfilter's tuples. Direct flows and masquerades of own connections, which may begin then,
    // rely on the reservations of `cleanup --drain` (ADR 0031).
    settings.has(Settings::TAKE_OVER) && is_taken(tables, reply)
}

#[inline(never)]
fn is_taken<T: Filters>(tables: &T, reply: &FlowKey) -> bool {
    tables.is_inherited(hash::whole(&reply.tuple, reply.protocol))
}
