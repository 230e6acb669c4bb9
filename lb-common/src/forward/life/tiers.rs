//! Which flows are safe from displacement.
//!
//! Every flow begins in the tables `TRANSIENT4` and `TRANSIENT6`, where the newest displaces the oldest: whatever a
//! flood begins lives there. Once both ends have spoken, all its entries go to `FLOWS4` or `FLOWS6`, where no other
//! flow takes their place; once it is over they go back (ADR 0025). An entry is copied before it is removed, and both
//! tables are asked in this order, so that it is found at every moment.

use crate::addr::{Ip, Protocol};
use crate::event::Event;
use crate::flow::{Entry, Flow, Kind, Side, Tuple, has_lasted};
use crate::forward::{Next, Scratch};
use crate::packet::Packet;
use crate::tables::{Added, Clock, Flows, Services};

use crate::forward::{Found, begin, choose};

/// Whether [`mend`] must look at the flow that was found for a packet.
#[inline(always)]
pub(in crate::forward) fn must_mend(next: Next, flow: &Flow) -> bool {
    next == Next::Follow && flow.is_forward() && !flow.is_protected()
}

/// Makes anew what was displaced of a transient flow, which a packet is about to follow: its entries are displaced one
/// by one, and the packet would leave by a tuple whose answers lead nowhere, or to another client that has the tuple
/// by now. In that last case the flow is gone, and its packet begins it anew with another port ([`Next::Again`]).
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

/// Protects the flow of the forward entry that was found if both ends have spoken. A datagram flow must have lasted
/// as well: question and answer are no proof that the client is where its address says.
#[inline(never)]
pub(in crate::forward) fn raise<T: Clock + Flows + Services>(
    tables: &T,
    found: &mut Found,
    now: u64,
) {
    if !found.find_opposite(tables) {
        return;
    }
    let (forward, reply) = (found.flow.shown, found.opposite.flow.shown);
    let both_spoke = forward.established & reply.established != 0;
    let is_ending = forward.is_over(reply);
    let has_lasted = found.key.protocol == Protocol::TCP || has_lasted(&found.flow, now);
    if !both_spoke || is_ending || !has_lasted {
        return;
    }
    if !each(tables, found, protect) {
        // The flow goes on among the displaceable ones.
        let _all: bool = each(tables, found, expose);
        tables.count(Event::FlowUnprotected);
    }
    choose::confirm(tables, &found.flow, found.key.tuple.source);
}

/// Makes anew the entries that were displaced of the masquerade of the flow that was found, or the whole masquerade
/// where another flow has its tuple by now.
#[inline(always)]
fn mend_masquerade<T: Clock + Flows>(tables: &T, found: &mut Found) {
    found.key.write_masquerade_key(&found.flow, &mut found.visited.key);
    let is_marked = tables.flow(&found.visited.key, &mut found.visited.flow);
    if is_marked && found.visited.flow.to.source == Ip::UNSPECIFIED {
        return;
    }
    if is_marked && has_answers(tables, found) {
        return;
    }
    // Its packet finds a source for it where it leaves.
    found.key.write_masquerade_key(&found.flow, &mut found.visited.key);
    found.flow.write_entry(Kind::MASQUERADE, &mut found.visited.flow);
    found.visited.flow.to = Tuple::NONE;
    let _put: bool = tables.put_flow(&found.visited.key, &found.visited.flow);
}

/// Whether answers to the masquerade in `found.visited`, of the flow in
/// `found.flow`, lead to that flow: also because they do from now on.
#[inline(always)]
fn has_answers<T: Clock + Flows>(tables: &T, found: &mut Found) -> bool {
    found.visited.flow.to.write_reversed(&mut found.visited.key.tuple);
    found.visited.key.side = Side::INGRESS;
    if tables.flow(&found.visited.key, &mut found.visited.flow) {
        return found.visited.flow.to.is_reverse_of(&found.flow.to);
    }
    found.flow.write_answer(Kind::UNMASQUERADE, &mut found.visited.flow);
    found.flow.to.write_reversed(&mut found.visited.flow.to);
    tables.add_flow(&found.visited.key, &found.visited.flow) == Added::Yes
}

/// Makes all entries of the flow that was found, by either of its pair, displaceable.
#[inline(never)]
pub(in crate::forward) fn release<T: Clock + Flows>(tables: &T, found: &mut Found) {
    let _all: bool = each(tables, found, expose);
}

/// Calls `step` for each entry of a flow, by its key, until it
/// fails. The entry that was found is either one of its pair.
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
    // Client to backend, where that leaves.
    if found.flow.is_answer() {
        found.key.tuple.write_reversed(&mut found.visited.key.tuple);
    } else {
        found.visited.key.tuple = found.flow.to;
    }
    found.visited.key.side = Side::EGRESS;
    if !step(tables, &mut found.visited) {
        return false;
    }
    if found.visited.flow.to.source == Ip::UNSPECIFIED {
        return true;
    }
    found.visited.flow.to.write_reversed(&mut found.visited.key.tuple);
    found.visited.key.side = Side::INGRESS;
    step(tables, &mut found.visited)
}

/// Copies an entry to where nothing displaces it. The older copy stays behind and is displaced in its time.
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

/// Moves an entry to where newer ones displace it. True, also where there is none.
#[inline(never)]
fn expose<T: Clock + Flows>(tables: &T, Entry { key, flow }: &mut Entry) -> bool {
    if !tables.flow(key, flow) {
        flow.to.source = Ip::UNSPECIFIED;
        return true;
    }
    if flow.is_protected() {
        flow.flags &= !Flow::PROTECTED;
        // Without memory there the flow goes, as it would in a while.
        let _put: bool = tables.put_flow(key, flow);
        tables.remove_protected(key);
    }
    true
}
