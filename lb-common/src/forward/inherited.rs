//! Packets left to the stack while another proxy's connections end, or while ours do (ADR 0031).
//!
//! While netfilter still translates connections that began before us, a segment without a flow is one of theirs: a flow
//! that it began would be another translation of the same connection. Datagrams tell nobody whether they begin something, so
//! the agent writes down which tuples netfilter knows.

use super::parts::end;
use crate::addr::Protocol;
use crate::config::Settings;
use crate::event::{PassReason, Verdict};
use crate::hash;
use crate::scratch::Scratch;
use crate::tables::Tables;

/// Ends the path of a packet to a frontend that has no flow and is not to begin one. One test of a bit where nothing is
/// taken over and nothing is given back.
#[inline(always)]
pub(super) fn ends<T: Tables>(tables: &T, settings: &Settings, scratch: &mut Scratch) -> bool {
    settings.has(Settings::TAKE_OVER | Settings::DRAIN) && leaves(tables, settings, scratch)
}

/// VERIFIER: a function of its own, for the hash would fill registers of the parts that ask.
#[inline(never)]
fn leaves<T: Tables>(tables: &T, settings: &Settings, scratch: &mut Scratch) -> bool {
    if settings.has(Settings::DRAIN) {
        return end(scratch, Verdict::Pass(PassReason::Draining));
    }
    let is_theirs = if scratch.headers.view.protocol == Protocol::TCP {
        !scratch.headers.view.is_syn()
    } else {
        tables.is_inherited(hash::whole(&scratch.headers.key.tuple, scratch.headers.key.protocol))
    };
    is_theirs && end(scratch, Verdict::Pass(PassReason::TakenOver))
}

/// Whether answers to the key of the reply in the making belong to a connection that netfilter translates: a new flow needs another port.
#[inline(always)]
pub(super) fn has_answers<T: Tables>(tables: &T, settings: &Settings, scratch: &Scratch) -> bool {
    settings.has(Settings::TAKE_OVER) && is_taken(tables, scratch)
}

#[inline(never)]
fn is_taken<T: Tables>(tables: &T, scratch: &Scratch) -> bool {
    tables.is_inherited(hash::whole(&scratch.pair.reply.key.tuple, scratch.pair.reply.key.protocol))
}
