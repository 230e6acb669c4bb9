//! The two tiers of flows: transient ones, which may be displaced, and protected ones.
//!
//! Every flow begins in the tables `TRANSIENT4` and `TRANSIENT6`, where the newest displaces the oldest: all flows that
//! a flood begins stay there. Once both ends have spoken, all entries of the flow are copied to `FLOWS4` or `FLOWS6`,
//! where no other flow takes their place; once it is over they move back (ADR 0025). The protected table is looked up
//! first. An entry is found at every moment: the transient copy of a protected one stays behind, and one that moves
//! back is written there before it is removed.

use crate::addr::{Ip, Protocol};
use crate::event::Event;
use crate::flow::{Entry, Flow, FlowKey, Kind, Side, has_lasted};
use crate::forward::{Found, choose};
use crate::tables::{Clock, Flows, Services};

/// Protects the flow of the entry that was found if it is the forward one, and both ends have spoken.
///
/// A datagram flow must also have lasted: a request and a reply do not prove that the client has the address that it
/// claims.
///
/// Where only the backend goes on to send, the other entries keep their places by the lookup that its packets make
/// here: the kernel displaces first what is not looked up, and the flow would end at the next pause.
#[inline(never)]
pub(in crate::forward) fn raise<T: Clock + Flows + Services>(
    tables: &T,
    found: &mut Found,
    now: u64,
) {
    let is_forward = found.flow.is_forward();
    let is_due = is_forward && found.key.protocol == Protocol::TCP || has_lasted(&found.flow, now);
    // The age comes first: it is in the entry at hand, and most datagram flows end here.
    if !is_due || !found.find_opposite(tables) || !is_forward {
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
    // The client has proven its address, also where the table of protected flows has no room.
    choose::confirm(tables, &found.flow, found.key.tuple.source);
}

/// Makes all entries of the flow transient. The entry that was found is the forward or the reply one.
#[inline(never)]
pub(in crate::forward) fn release<T: Clock + Flows>(tables: &T, found: &mut Found) {
    let _all: bool = each(tables, found, expose);
}

/// Makes the forward and the reply entry of a masqueraded flow transient, which restore its masquerade (`begin/mend`),
/// and removes the protected entry of the replies to its source: `replies`, at `key`. `room`: for the other entries.
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
