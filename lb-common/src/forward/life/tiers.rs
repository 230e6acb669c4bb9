//! The two tiers of flows: transient ones, which may be displaced, and protected ones.
//!
//! Every flow begins in the tables `TRANSIENT4` and `TRANSIENT6`, where the newest displaces the oldest: all flows that
//! a flood begins stay there. Once both ends have spoken, all entries of the flow move to `FLOWS4` or `FLOWS6`, where
//! no other flow takes their place; once it is over they move back (ADR 0025). An entry is copied before it is removed,
//! and both tables are looked up in this order, so that it is found at every moment.

use crate::addr::{Ip, Protocol};
use crate::event::Event;
use crate::flow::{Entry, Flow, FlowKey, Kind, Side, Tuple, has_lasted};
use crate::forward::{Found, Next, Scratch, begin, choose};
use crate::packet::Packet;
use crate::tables::{Added, Clock, Flows, Services};

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
    if !found.find_opposite(tables) && !begin::make_reply(tables, found, pair, packet.device()) {
        *next = Next::Again;
    } else if found.flow.flags & Flow::MASQUERADED != 0 {
        mend_masquerade(tables, found);
    }
}

/// Protects the flow of the forward entry that was found if both ends have spoken.
///
/// A datagram flow must also have lasted: a request and a reply do not prove that the client has the address that it
/// claims.
#[inline(never)]
pub(in crate::forward) fn raise<T: Clock + Flows + Services>(
    tables: &T,
    found: &mut Found,
    now: u64,
) {
    let has_lasted = found.key.protocol == Protocol::TCP || has_lasted(&found.flow, now);
    if !has_lasted || !found.find_opposite(tables) {
        return;
    }
    let (forward, reply) = (found.flow.shown, found.opposite.flow.shown);
    let both_spoke = forward.established & reply.established != 0;
    if !both_spoke || forward.is_over(reply) {
        return;
    }
    if !each(tables, found, protect) {
        // The flow continues as a transient one, with all entries in the same tier.
        let _all: bool = each(tables, found, expose);
        tables.count(Event::FlowUnprotected);
    }
    choose::confirm(tables, &found.flow, found.key.tuple.source);
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

/// Makes all entries of the flow transient. The entry that was found is the forward or the reply one.
#[inline(never)]
pub(in crate::forward) fn release<T: Clock + Flows>(tables: &T, found: &mut Found) {
    let _all: bool = each(tables, found, expose);
}

/// Makes the forward and the reply entry of a masqueraded flow transient, which restore its masquerade (`mend`), and
/// removes the protected entry of the replies to its source: `replies`, at `key`. `room`: for the other entries.
#[inline(never)]
pub(in crate::forward) fn release_masqueraded<T: Clock + Flows>(
    tables: &T,
    key: &FlowKey,
    replies: &Flow,
    room: &mut Entry,
) {
    key.write_leaving_key(replies, &mut room.key);
    if tables.flow(&room.key, &mut room.flow) && room.flow.kind == Kind::REPLY {
        let _moved: bool = expose(tables, room);
        room.flow.to.write_reversed(&mut room.key.tuple);
        room.key.side = Side::INGRESS;
        let _moved: bool = expose(tables, room);
    }
    tables.remove_protected(key);
}

/// Calls `step` for each entry of a flow, by its key, until it fails. The entry that was found is the forward or the
/// reply one.
#[inline(always)]
fn each<T: Clock + Flows>(
    tables: &T,
    found: &mut Found,
    step: impl Fn(&T, &mut Entry) -> bool,
) -> bool {
    found.visited.key = found.key;
    if !step(tables, &mut found.visited) {
        return false;
    }
    found.key.write_opposite(&found.flow, &mut found.visited.key);
    if !step(tables, &mut found.visited) {
        return false;
    }
    if found.flow.flags & Flow::MASQUERADED == 0 {
        return true;
    }
    // The key of the masquerade entry: client to backend, at egress.
    if found.flow.is_answer() {
        found.key.tuple.write_reversed(&mut found.visited.key.tuple);
    } else {
        found.visited.key.tuple = found.flow.to;
    }
    found.visited.key.side = Side::EGRESS;
    if !step(tables, &mut found.visited) {
        return false;
    }
    // Without a source there is no entry for the answers to it.
    if found.visited.flow.to.source == Ip::UNSPECIFIED {
        return true;
    }
    found.visited.flow.to.write_reversed(&mut found.visited.key.tuple);
    found.visited.key.side = Side::INGRESS;
    step(tables, &mut found.visited)
}

/// Copies an entry to the table where nothing displaces it. The older copy stays behind until it is displaced, or until
/// the agent removes the flow: on another CPU a packet that missed the new copy may be about to look the older one up.
#[inline(never)]
fn protect<T: Clock + Flows>(tables: &T, Entry { key, flow }: &mut Entry) -> bool {
    if !tables.flow(key, flow) {
        return false;
    }
    if flow.is_protected() {
        return true;
    }
    flow.flags |= Flow::PROTECTED;
    tables.put_flow(key, flow)
}

/// Moves an entry to the table where newer ones displace it. True also where there is no entry.
#[inline(never)]
fn expose<T: Clock + Flows>(tables: &T, Entry { key, flow }: &mut Entry) -> bool {
    if !tables.flow(key, flow) {
        // A displaced masquerade names no source, from which `each` would derive the key of the last entry.
        flow.to.source = Ip::UNSPECIFIED;
        return true;
    }
    if flow.is_protected() {
        flow.flags &= !Flow::PROTECTED;
        // If that table has no memory the entry is lost, as it would be by displacement later.
        let _put: bool = tables.put_flow(key, flow);
        tables.remove_protected(key);
    }
    true
}
