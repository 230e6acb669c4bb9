//! Which flows are safe from displacement.
//!
//! Every flow begins in the tables `TRANSIENT4` and `TRANSIENT6`, where the newest displaces the oldest: whatever a flood
//! begins lives there. Once both ends have spoken, all its entries go to `FLOWS4` or `FLOWS6`, where no other flow takes
//! their place; once it is over they go back (ADR 0025). An entry is copied before it is removed, and both tables are asked
//! in this order, so that it is found at every moment.

use crate::addr::{Ip, Protocol};
use crate::event::Event;
use crate::flow::{Flow, Kind, Side, Tuple, has_lasted};
use crate::packet::Packet;
use crate::scratch::{Next, Scratch};
use crate::tables::{Added, Tables};

use super::begin;

/// Whether [`mend`] must look at the flow that was found for a packet.
#[inline(always)]
pub(super) fn must_mend(scratch: &Scratch) -> bool {
    let is_followed = scratch.next == Next::Follow && scratch.found.flow.is_forward();
    is_followed && !scratch.found.flow.is_protected()
}

/// Makes anew what was displaced of the transient flow in `scratch.found.flow`, which a packet is about to follow: its entries are
/// displaced one by one, and the packet would leave by a tuple whose answers lead nowhere, or to another client that has the
/// tuple by now. True in that last case: the flow is gone, and its packet begins it anew with another port.
#[inline(always)]
pub(super) fn mend<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    if !scratch.found.find_opposite(tables) && !begin::make_reply(tables, scratch, packet.device())
    {
        return true;
    }
    if scratch.found.flow.flags & Flow::MASQUERADED != 0 {
        mend_masquerade(tables, scratch);
    }
    false
}

/// Protects the flow of the forward entry in `scratch.found.flow` if both ends have spoken. A datagram flow must have lasted as well:
/// question and answer are no proof that the client is where its address says.
#[inline(never)]
pub(super) fn raise<T: Tables>(tables: &T, scratch: &mut Scratch, now: u64) {
    if !scratch.found.find_opposite(tables) {
        return;
    }
    let (forward, reply) = (scratch.found.flow.shown, scratch.found.opposite.flow.shown);
    let both_spoke = forward.established & reply.established != 0;
    let is_ending = forward.rst | reply.rst | forward.fin & reply.fin != 0;
    let has_lasted =
        scratch.found.key.protocol == Protocol::TCP || has_lasted(&scratch.found.flow, now);
    if !both_spoke || is_ending || !has_lasted {
        return;
    }
    if !each(tables, scratch, protect) {
        // The flow goes on among the displaceable ones.
        let _all: bool = each(tables, scratch, expose);
        tables.count(Event::FlowUnprotected);
    }
}

/// Makes anew the entries that were displaced of the masquerade of the flow in `scratch.found.flow`, or the whole masquerade where
/// another flow has its tuple by now.
#[inline(always)]
fn mend_masquerade<T: Tables>(tables: &T, scratch: &mut Scratch) {
    scratch.found.key.write_masquerade_key(&scratch.found.flow, &mut scratch.found.visited.key);
    let is_marked = tables.flow(&scratch.found.visited.key, &mut scratch.found.visited.flow);
    if is_marked && scratch.found.visited.flow.to.source == Ip::UNSPECIFIED {
        return;
    }
    if is_marked && has_answers(tables, scratch) {
        return;
    }
    // Its packet finds a source for it where it leaves.
    scratch.found.key.write_masquerade_key(&scratch.found.flow, &mut scratch.found.visited.key);
    scratch.found.flow.write_entry(Kind::MASQUERADE, &mut scratch.found.visited.flow);
    scratch.found.visited.flow.to = Tuple::NONE;
    let _put: bool = tables.put_flow(&scratch.found.visited.key, &scratch.found.visited.flow);
}

/// Whether answers to the masquerade in `scratch.found.visited`, of the flow in `scratch.found.flow`, lead to that flow: also because they do
/// from now on.
#[inline(always)]
fn has_answers<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    scratch.found.visited.flow.to.write_reversed(&mut scratch.found.visited.key.tuple);
    scratch.found.visited.key.side = Side::INGRESS;
    if tables.flow(&scratch.found.visited.key, &mut scratch.found.visited.flow) {
        return scratch.found.visited.flow.to.is_reverse_of(&scratch.found.flow.to);
    }
    scratch.found.flow.write_answer(Kind::UNMASQUERADE, &mut scratch.found.visited.flow);
    scratch.found.flow.to.write_reversed(&mut scratch.found.visited.flow.to);
    tables.add_flow(&scratch.found.visited.key, &scratch.found.visited.flow) == Added::Yes
}

/// Makes all entries of the flow of `scratch.found.flow`, which is one of its pair, displaceable.
#[inline(never)]
pub(super) fn release<T: Tables>(tables: &T, scratch: &mut Scratch) {
    let _all: bool = each(tables, scratch, expose);
}

/// Calls `step` for the key in `scratch.found.visited.key` of each entry of a flow, until it fails. `scratch.found.flow` is either
/// entry of its pair.
#[inline(always)]
fn each<T: Tables>(
    tables: &T,
    scratch: &mut Scratch,
    step: impl Fn(&T, &mut Scratch) -> bool,
) -> bool {
    scratch.found.visited.key = scratch.found.key;
    if !step(tables, scratch) {
        return false;
    }
    scratch.found.key.write_opposite(&scratch.found.flow, &mut scratch.found.visited.key);
    if !step(tables, scratch) {
        return false;
    }
    if scratch.found.flow.flags & Flow::MASQUERADED == 0 {
        return true;
    }
    // Client to backend, where that leaves.
    if scratch.found.flow.is_answer() {
        scratch.found.key.tuple.write_reversed(&mut scratch.found.visited.key.tuple);
    } else {
        scratch.found.visited.key.tuple = scratch.found.flow.to;
    }
    scratch.found.visited.key.side = Side::EGRESS;
    if !step(tables, scratch) {
        return false;
    }
    if scratch.found.visited.flow.to.source == Ip::UNSPECIFIED {
        return true;
    }
    scratch.found.visited.flow.to.write_reversed(&mut scratch.found.visited.key.tuple);
    scratch.found.visited.key.side = Side::INGRESS;
    step(tables, scratch)
}

/// Copies an entry to where nothing displaces it. The older copy stays behind and is displaced in its time.
#[inline(never)]
fn protect<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    if !tables.flow(&scratch.found.visited.key, &mut scratch.found.visited.flow) {
        return false;
    }
    if scratch.found.visited.flow.is_protected() {
        return true;
    }
    scratch.found.visited.flow.flags |= Flow::PROTECTED;
    tables.put_flow(&scratch.found.visited.key, &scratch.found.visited.flow)
}

/// Moves an entry to where newer ones displace it. True, also where there is none.
#[inline(never)]
fn expose<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    if !tables.flow(&scratch.found.visited.key, &mut scratch.found.visited.flow) {
        scratch.found.visited.flow.to.source = Ip::UNSPECIFIED;
        return true;
    }
    if scratch.found.visited.flow.is_protected() {
        scratch.found.visited.flow.flags &= !Flow::PROTECTED;
        // Without memory there the flow goes, as it would in a while.
        let _put: bool = tables.put_flow(&scratch.found.visited.key, &scratch.found.visited.flow);
        tables.remove_protected(&scratch.found.visited.key);
    }
    true
}
