//! The marks that packets leave in the entries of their flows.

use crate::addr::Protocol;
use crate::flow::{Flow, Shown};
use crate::forward::life::shown::{acknowledged, shown};
use crate::forward::life::{close, opening, tiers};
use crate::forward::{Found, Scratch, fragments};
use crate::packet::Packet;
use crate::tables::{Clock, Flows, Fragments, Node, Services, Touch};
use crate::wire::{Piece, View};

/// Whether a packet has something to mark in its entry.
///
/// It has once a tick, when it shows something new, when it acknowledges much more than the entry has recorded, when a
/// FIN or RST was seen or is carried, when it accepts a connection, and when it is a first fragment, whose ports must
/// be stored.
#[inline(always)]
pub(in crate::forward) fn must_touch<P: Packet, T: Clock>(
    packet: &P,
    tables: &T,
    view: &View,
    flow: &Flow,
) -> bool {
    flow.shown != flow.shown.with(shown(view))
        || flow.tick() != tables.tick()
        || close::has_progressed(acknowledged(packet, view), flow)
        || flow.shown.fin | flow.shown.rst != 0
        || view.is_rst()
        || view.is_syn_ack()
        || view.piece == Piece::First
}

/// Marks the entry that a packet follows as seen. The fast path leaves this to a part, because reading the clock costs
/// a call of the kernel.
///
/// Where the packet ends its connection, or completes the proof that both ends are there, the flow moves to the other
/// table.
#[inline(always)]
pub(in crate::forward) fn touch_part<P: Packet, T: Clock + Flows + Fragments + Node + Services>(
    packet: &mut P,
    tables: &T,
    Scratch { headers, found, fragment, .. }: &mut Scratch,
) {
    fragments::remember(tables, headers, fragment);
    let view = &headers.view;
    if view.is_rst() {
        close::reset(packet, tables, view, found);
    } else {
        record(packet, tables, view, found);
        close::release_if_over(tables, view, found);
    }
}

#[inline(always)]
fn record<P: Packet, T: Clock + Flows + Fragments + Node + Services>(
    packet: &P,
    tables: &T,
    view: &View,
    found: &mut Found,
) {
    let now = tables.now();
    let (mut shown, mut expected) = (shown(view), acknowledged(packet, view));
    let mut cleared = Shown::NOTHING;
    if view.is_syn_ack() && opening::accept(packet, tables, view, found) {
        cleared = Shown::ENDS;
    } else if shown.fin != 0 && !close::is_end(packet, tables, view, found) {
        // A forger's acknowledgement number would prove a later RST in the name of the other end.
        (shown, expected) = (Shown::CLAIMED_FIN, 0);
    } else if expected != 0 {
        expected = close::recorded(packet, tables, view, found, expected);
    }
    let mut touch = Touch { seen: Flow::seen_at(now, tables.tick()), shown, expected, cleared };
    if found.flow.shown.rst != 0 {
        if close::is_refuted(tables, found, now) {
            touch.cleared = Shown::RST;
        } else {
            // The entry keeps the time of the RST: a later packet refutes the RST by its distance from that time.
            touch.seen = found.flow.seen;
        }
    } else if view.shows_no_association() || view.is_syn() && found.flow.shown.established != 0 {
        // A client that repeats its SYN must not keep a connection alive whose backend was removed ([`follow`]), nor
        // one that repeats its INIT the choice of a backend that refuses it.
        touch.seen = found.flow.seen;
    }
    tables.touch_flow(&found.key, &touch);
    // `tiers::raise` and `close::release_if_over` judge by the copy in the working memory, so it follows the entry.
    found.flow.shown.clear_ends(touch.cleared);
    found.flow.shown = found.flow.shown.with(shown);
    found.flow.seen = touch.seen;
    // An answer protects no flow: only a later packet of the client shows that the client has its address, for TCP by
    // an acknowledgement of the SYN-ACK's number (ADR 0025).
    let is_proof =
        if view.protocol == Protocol::TCP { expected != 0 } else { shown.established != 0 };
    if is_proof && !found.flow.is_protected() {
        tiers::raise(tables, found, now);
    }
}

/// Whether a packet that neither begins nor ends anything leaves nothing to be marked in its entry, and no other entry
/// of its flow may have been displaced (`begin/mend`).
#[inline(always)]
pub(in crate::forward) fn is_up_to_date<P: Packet, T: Clock>(
    packet: &P,
    tables: &T,
    view: &View,
    flow: &Flow,
) -> bool {
    let is_whole = flow.is_protected() || !flow.is_forward();
    flow.shown.is_open()
        && flow.tick() == tables.tick()
        && is_whole
        && !close::has_progressed(acknowledged(packet, view), flow)
}
