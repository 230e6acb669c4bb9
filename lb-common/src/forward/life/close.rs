//! The end of a TCP connection, as far as packets claim it.
//!
//! A FIN or RST may be forged, late or duplicated, so it removes nothing. One that is only claimed limits the idle time
//! of its flow; a proven RST, or FINs of both ends, make its entries transient. Packets that still arrive are
//! translated.

use crate::flow::{Flow, Shown};
use crate::packet::Packet;
use crate::tables::{Clock, Flows, Touch};
use crate::wire::{View, tcp};

use crate::forward::Found;
use crate::forward::life::shown::acknowledged;
use crate::forward::life::tiers;

/// TCP flags of packets that begin or end a connection.
const BEGIN_OR_END: u8 = tcp::FIN | tcp::SYN | tcp::RST;
/// The largest distance of a proven RST or FIN ahead of the last known acknowledgement of the other end.
///
/// A forger needs up to 65,536 guesses of a sequence number, for a FIN 32,768. Receive windows are larger, so a genuine
/// sender with more data in flight is known by both of its numbers ([`FLIGHT`]).
const PROVEN: u32 = 1 << 16;
/// The largest distance of both numbers of a proven RST or FIN from those that are known of the two ends, in either
/// direction: data in flight, and segments that offloads have merged. A forger guesses one of 262,144 pairs.
const FLIGHT: u32 = 1 << 22;
/// The progress of the acknowledgements of one end from which on a packet is recorded. It is less than [`PROVEN`], so
/// that a FIN or RST after any progress that is not yet recorded is near enough.
const STEP: u32 = 1 << 15;
/// The largest progress of the acknowledgements of one end from one record to the next that is believed as it is. A
/// larger one acknowledges a gap of a bulk transfer, in which the sequence numbers of that end hardly move.
const PROGRESS: u32 = 1 << 20;
/// Nanoseconds between a RST and a later packet of its sender that proves the RST forged: reordering delays no segment
/// for so long.
const REFUTED: u64 = 1 << 27;

/// Whether a packet begins or ends a connection, by its TCP flags.
#[inline(always)]
pub(in crate::forward) const fn begins_or_ends(view: &View) -> bool {
    view.tcp_flags & BEGIN_OR_END != 0
}

/// Whether a packet acknowledges so much more than its entry has recorded that the number must be recorded.
///
/// A record that is as old as a tick would prove no FIN or RST after a burst of data in both directions. A number that
/// is a little behind is that of a segment that was reordered. The entries of a masquerade see one direction each, and
/// their numbers prove nothing.
#[inline(always)]
pub(super) const fn has_progressed(acknowledged: u32, flow: &Flow) -> bool {
    !flow.is_masquerade() && acknowledged.wrapping_sub(flow.expected).wrapping_add(STEP) > 2 * STEP
}

/// Whether an acknowledgement number is about the last one that the entry of the same end has recorded.
#[inline(always)]
pub(super) const fn acknowledges_recent(acknowledged: u32, flow: &Flow) -> bool {
    is_about(acknowledged, flow, PROVEN)
}

/// Whether an acknowledgement number is at most this far from the last one that the entry of the same end has recorded.
#[inline(always)]
const fn is_about(acknowledged: u32, flow: &Flow, distance: u32) -> bool {
    acknowledged != 0
        && flow.expected != 0
        && acknowledged.wrapping_sub(flow.expected).wrapping_add(distance) <= 2 * distance
}

/// Whether a FIN comes from the end that it names, as far as its numbers show.
///
/// A FIN without proof counts if the other end closes, too ([`Shown::is_over`]).
#[inline(never)]
pub(in crate::forward) fn is_end<P: Packet, T: Flows>(
    packet: &P,
    tables: &T,
    view: &View,
    found: &mut Found,
) -> bool {
    // The masquerade entry sees only one direction, and without a reply entry there is no acknowledgement to compare
    // with.
    found.flow.is_masquerade()
        // A FIN after a proven one of the same end tells nothing new, and needs no proof.
        || found.flow.shown.fin != 0
        || !found.find_opposite(tables)
        || is_proven(packet, view, found, PROVEN)
}

/// Makes the flow that was found transient once both ends have sent FIN and this packet follows (RFC 9293 3.6).
#[inline(always)]
pub(in crate::forward) fn release_if_over<T: Clock + Flows>(
    tables: &T,
    view: &View,
    found: &mut Found,
) {
    let may_be_last = found.flow.shown.ends() && !begins_or_ends(view);
    // The masquerade entry sees only one direction: the pair of forward and reply decides.
    if may_be_last && found.flow.is_protected() && !found.flow.is_masquerade() {
        release_closed(tables, found);
    }
}

#[inline(never)]
fn release_closed<T: Clock + Flows>(tables: &T, found: &mut Found) {
    // One FIN is a half-closed connection, which may live for an hour and must stay protected.
    if found.find_opposite(tables) && found.flow.shown.is_over(found.opposite.flow.shown) {
        tiers::release(tables, found);
    }
}

/// Records a RST of the flow that was found, as proven or as claimed. A proven one makes the flow transient.
#[inline(never)]
pub(in crate::forward) fn reset<P: Packet, T: Clock + Flows>(
    packet: &P,
    tables: &T,
    view: &View,
    found: &mut Found,
) {
    // A RST that is recorded keeps its time: a later one must not move the moment from which packets refute it
    // (`is_refuted`).
    if found.flow.is_masquerade() || found.flow.shown.rst != 0 {
        return;
    }
    let has_opposite = found.find_opposite(tables);
    // Without a reply entry there is no acknowledgement to compare the RST with, so the RST counts as proven.
    let is_proven = !has_opposite || is_proven(packet, view, found, 0);
    let shown = if is_proven { Shown::RST } else { Shown::CLAIMED };
    // The first RST that may be forged makes the life of the flow shorter, so it counts as traffic: the flow may have
    // been silent for longer. Later ones do not: a host that has a removed backend's address by now answers each SYN
    // so, and the connection has to move in the end (`follow`).
    let renews = is_proven || found.flow.shown.claimed & Shown::CLAIMED.claimed == 0;
    let now = Flow::seen_at(tables.now(), tables.tick());
    let seen = if renews { now } else { found.flow.seen };
    // The acknowledgement number of a RST is not recorded: a forged one would prove a RST of the other end.
    tables.touch_flow(&found.key, &Touch { seen, shown, expected: 0, cleared: Shown::NOTHING });
    if is_proven && found.flow.is_protected() {
        tiers::release(tables, found);
    }
}

/// The acknowledgement number of a packet if it is credible enough to be recorded, else 0.
///
/// A recorded number proves a later RST or FIN of the other end. So a number far from the last one counts only in a
/// segment whose sequence number is what the other end expects: otherwise one forged segment in the name of each
/// end would end a flow. In the first packets of a client it does not count at all: they have to prove that the client
/// received the SYN-ACK ([`opening`](super::opening)), and a forger knows its own sequence number.
#[inline(never)]
pub(in crate::forward) fn recorded<P: Packet, T: Flows>(
    packet: &P,
    tables: &T,
    view: &View,
    found: &mut Found,
    acknowledged: u32,
) -> u32 {
    let last = found.flow.expected;
    let is_near = acknowledged.wrapping_sub(last).wrapping_add(PROVEN) <= PROGRESS + PROVEN;
    let is_opening = found.flow.is_forward() && !found.flow.is_protected();
    let is_believed = last == 0
        || is_near
        || !is_opening && (!found.find_opposite(tables) || is_proven(packet, view, found, PROVEN));
    if is_believed { acknowledged } else { 0 }
}

/// Whether a RST or FIN comes from the end that it names, by its sequence number, as in netfilter
/// (`nf_conntrack_proto_tcp.c`, `TCP_RST_SET`), or by both of its numbers.
///
/// The flow and its other direction are in `found`. `behind`: how far the sequence number may be behind the last known
/// acknowledgement of the other end, as in a FIN that is retransmitted together with data.
#[inline(always)]
fn is_proven<P: Packet>(packet: &P, view: &View, found: &Found, behind: u32) -> bool {
    let (flow, opposite) = (&found.flow, &found.opposite.flow);
    // Before both ends have spoken, or without a recorded number, there is nothing to compare with. The packet is
    // believed, as in netfilter (`IP_CT_TCP_FLAG_MAXACK_SET` in nf_conntrack_proto_tcp.c).
    if flow.shown.established & opposite.shown.established == 0 || opposite.expected == 0 {
        return true;
    }
    let Some(sequence) = view.word(packet, 4) else { return false };
    let ahead = u32::from_be(sequence).wrapping_sub(opposite.expected);
    ahead.wrapping_add(behind) <= PROVEN + behind
        || ahead.wrapping_add(FLIGHT) <= 2 * FLIGHT
            && is_about(acknowledged(packet, view), flow, FLIGHT)
}

/// Whether both ends have continued after the RST that the found entry has recorded, so that the RST was forged. After
/// a genuine RST neither its sender nor the other end sends anything more.
#[inline(never)]
pub(in crate::forward) fn is_refuted<T: Clock + Flows>(
    tables: &T,
    found: &mut Found,
    now: u64,
) -> bool {
    now.saturating_sub(found.flow.seen) > REFUTED
        && found.find_opposite(tables)
        && found.opposite.flow.seen > found.flow.seen
}
