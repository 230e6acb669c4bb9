//! The end of a TCP connection, as far as packets claim it.
//!
//! FIN, RST and the acknowledgement of a FIN are claims: they may be forged, late or doubled. They shorten the life of a
//! flow and make its entries displaceable, so that nothing has to be removed; packets that still come are translated.

use crate::flow::{Flow, Shown};
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::tables::{Tables, Touch};
use crate::wire::tcp;

use super::tiers;

/// Flags of a packet that something must follow.
pub(super) const NOT_LAST: u8 = tcp::FIN | tcp::SYN | tcp::RST;
/// A RST is proven if its sequence number is at most so far ahead of the last known acknowledgement of the other end: a
/// forger guesses one of 65,536. Receive windows are larger, but a sender that idles has had all its data acknowledged, and
/// one in full flight shortens the life of its flow to a keep-alive interval only.
const PROVEN: u32 = 1 << 16;
/// Nanoseconds between a RST and a later packet of its sender that proves the RST forged: no segment is delayed so long by
/// reordering.
const REFUTED: u64 = 1 << 27;

/// Makes the flow of `scratch.found.flow` displaceable once both ends have sent FIN and this packet follows (RFC 9293 3.6).
#[inline(always)]
pub(super) fn after<T: Tables>(tables: &T, scratch: &mut Scratch) {
    let may_be_last =
        scratch.found.flow.shown.fin != 0 && scratch.headers.view.tcp_flags & NOT_LAST == 0;
    // The masquerade entry sees only one direction: the pair of forward and reply decides.
    if may_be_last && scratch.found.flow.is_protected() && !scratch.found.flow.is_masquerade() {
        release_closed(tables, scratch);
    }
}

#[inline(never)]
fn release_closed<T: Tables>(tables: &T, scratch: &mut Scratch) {
    // One FIN is a half-closed connection, which may live for an hour and must stay protected.
    if scratch.found.find_opposite(tables) && scratch.found.opposite.flow.shown.fin != 0 {
        tiers::release(tables, scratch);
    }
}

/// Takes note of a RST of the flow in `scratch.found.flow`.
#[inline(never)]
pub(super) fn reset<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) {
    if scratch.found.flow.is_masquerade() || scratch.found.flow.shown.rst != 0 {
        return;
    }
    let has_opposite = scratch.found.find_opposite(tables);
    // Without a reply entry there is no acknowledgement to compare the RST with: it counts.
    let is_proven = !has_opposite || is_proven(packet, scratch);
    let shown = if is_proven { Shown::RST } else { Shown::CLAIMED };
    let seen = Flow::seen_at(tables.now(), tables.tick());
    tables.touch_flow(&scratch.found.key, &Touch { seen, shown, expected: 0, is_alive: false });
    if is_proven && scratch.found.flow.is_protected() {
        tiers::release(tables, scratch);
    }
}

/// Whether a RST comes from the end that it names, by its sequence number, as in netfilter
/// (`nf_conntrack_proto_tcp.c`, `TCP_RST_SET`). Its flow is in `scratch.found.flow`, the other direction in `scratch.found.opposite`.
///
/// Acknowledgements are noted once a tick, so a genuine RST in the middle of fast traffic is not proven either. It shortens
/// the life of its flow to a keep-alive interval.
#[inline(always)]
fn is_proven<P: Packet>(packet: &P, scratch: &Scratch) -> bool {
    let (flow, opposite) = (&scratch.found.flow, &scratch.found.opposite.flow);
    if flow.shown.established & opposite.shown.established == 0 || opposite.expected == 0 {
        return true;
    }
    match scratch.headers.view.word(packet, 4) {
        Some(sequence) => u32::from_be(sequence).wrapping_sub(opposite.expected) <= PROVEN,
        None => false,
    }
}

/// Whether both ends have gone on after the RST that the entry in `scratch.found.flow` has noted: it was forged. A genuine sender
/// of a RST sends nothing more, and the other end nothing after it.
#[inline(never)]
pub(super) fn is_refuted<T: Tables>(tables: &T, scratch: &mut Scratch, now: u64) -> bool {
    now.saturating_sub(scratch.found.flow.seen) > REFUTED
        && scratch.found.find_opposite(tables)
        && scratch.found.opposite.flow.seen > scratch.found.flow.seen
}
