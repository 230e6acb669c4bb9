//! Restores the entries of a transient flow that newer flows have displaced.

use crate::addr::Ip;
use crate::flow::{Flow, Kind, Side, Tuple};
use crate::forward::{Found, Next, Scratch, begin};
use crate::packet::Packet;
use crate::tables::{Added, Clock, Flows};

/// Whether [`mend`] must look at the flow that was found for a packet.
#[inline(always)]
pub(in crate::forward) fn must_mend(next: Next, flow: &Flow) -> bool {
    next == Next::Follow && flow.is_forward() && !flow.is_protected()
}

/// Restores the displaced entries of a transient flow, which a packet is about to follow.
///
/// The entries of a flow are displaced one by one. Without this step the packet would leave by a tuple whose replies
/// reach no entry, or another client that has the tuple by now. In that last case the flow is gone, and its packet
/// begins a new one with another port ([`Next::Again`]).
#[inline(always)]
pub(in crate::forward) fn mend<P: Packet, T: Clock + Flows>(
    packet: &mut P,
    tables: &T,
    Scratch { found, pair, next, .. }: &mut Scratch,
) {
    // The reply comes first: if another flow has its tuple by now, this flow ends, and its masquerade needs no repair.
    if !found.find_opposite(tables) && !begin::make_reply(tables, found, pair, packet.device()) {
        *next = Next::Again;
    } else if found.flow.flags & Flow::MASQUERADED != 0 {
        mend_masquerade(tables, found);
    }
}

/// Restores the displaced entries of the masquerade of the flow that was found, or the whole masquerade where another
/// flow has its tuple by now.
#[inline(always)]
fn mend_masquerade<T: Clock + Flows>(tables: &T, found: &mut Found) {
    found.key.write_leaving_key(&found.flow, &mut found.visited.key);
    let has_entry = tables.flow(&found.visited.key, &mut found.visited.flow);
    // No packet has left yet: the first one that does chooses the source.
    if has_entry && found.visited.flow.to.source == Ip::UNSPECIFIED {
        return;
    }
    if has_entry && has_answers(tables, found) {
        return;
    }
    // The packet gets a new source where it leaves.
    found.key.write_leaving_key(&found.flow, &mut found.visited.key);
    found.flow.write_entry(Kind::MASQUERADE, &mut found.visited.flow);
    found.visited.flow.to = Tuple::NONE;
    // A failure ends nothing: the next packet of the client finds the gap again.
    let _put: bool = tables.put_flow(&found.visited.key, &found.visited.flow);
}

/// Whether replies to the masquerade in `found.visited` reach the flow in `found.flow`. True also where this function
/// has just restored the entry that makes them.
#[inline(always)]
fn has_answers<T: Clock + Flows>(tables: &T, found: &mut Found) -> bool {
    found.visited.flow.to.write_reversed(&mut found.visited.key.tuple);
    found.visited.key.side = Side::INGRESS;
    if tables.flow(&found.visited.key, &mut found.visited.flow) {
        return found.visited.flow.to.is_reverse_of(&found.flow.to);
    }
    found.flow.write_answer(Kind::UNMASQUERADE, &mut found.visited.flow);
    found.flow.to.write_reversed(&mut found.visited.flow.to);
    // `add_flow` overwrites nothing: on another CPU another flow may have got the tuple just now.
    tables.add_flow(&found.visited.key, &found.visited.flow) == Added::Yes
}
