//! Writes the entries of new flows, and removes those of the flows that they replace.

pub(super) mod first;
pub(super) mod mend;
pub(super) mod ports;

use crate::addr::Ip;
use crate::config::Settings;
use crate::event::{DropReason, Verdict};
use crate::flow::{Entry, Flow, FlowKey, Kind, Side, Tuple};
use crate::forward::exit::rewrite;
use crate::forward::life::shown::{acknowledged, shown};
use crate::forward::{
    Begin, Choice, Found, Pair, Refusal, Reservation, Scratch, Step, choose, fragments, ready,
};
use crate::packet::Packet;
use crate::tables::{Clock, Flows, Tables};
use crate::wire::View;

impl Begin {
    /// A flow that begins with a packet as it came, and keeps the packet's source. `renews`: [`Begin::renews`].
    #[inline(always)]
    pub(super) fn of<P: Packet, T: Clock>(
        packet: &P,
        tables: &T,
        view: &View,
        renews: bool,
    ) -> Self {
        Self {
            now: tables.now(),
            device: packet.device(),
            shown: shown(view),
            expected: acknowledged(packet, view),
            renews,
            masquerade: false,
            is_of_pod: false,
            port_stays: rewrite::port_stays(packet, view),
            may_hairpin: false,
            source: Ip::UNSPECIFIED,
        }
    }
}

/// Removes the forward entry of an earlier connection if the new one passes untranslated: its later packets would
/// follow that entry. `why`: the reason of the refusal.
#[inline(always)]
pub(super) fn end_where_passed<T: Flows>(tables: &T, begin: &Begin, found: &Found, why: Refusal) {
    if begin.renews && matches!(why, Refusal::Pass(_)) {
        tables.remove_flow(&found.key);
    }
}

/// Writes the forward entry of the flow of `scratch.headers.key`, and its reply, into `scratch.pair`.
///
/// `scratch.begin` gives the properties. Until both ends have spoken the entries may be displaced (`life/tiers`).
#[inline(always)]
pub(super) fn prepare<T: Tables>(tables: &T, scratch: &mut Scratch) -> Step<()> {
    let Scratch { headers, found, choice, begin, pair, .. } = scratch;
    let settings = ready(tables)?;
    // The old reply must go before the new one is reserved: it may have the very same key.
    if begin.renews {
        end_old(tables, found);
    }
    write_forward(settings, &headers.key, choice, begin, &mut pair.forward);
    let is_hosts = !begin.source.is_unspecified();
    let keeps_port = pair.forward.to.destination_port == headers.key.tuple.destination_port;
    // The check precedes the first entry, so that a dropped packet leaves no flow. A flow of a process always has
    // another port than its client (`ports::own`).
    if begin.port_stays && (is_hosts || !keeps_port) {
        return Err(Verdict::Drop(DropReason::SctpChecksum));
    }
    write_reply(&headers.key, &pair.forward, begin.device, &mut pair.reply);
    // Egress looks up only packets of backends in this filter, so its byte must be set before the first reply can
    // arrive.
    tables.put_in_use(&choice.backend.ip, choice.backend.port);
    Ok(())
}

#[inline(always)]
fn write_forward(
    settings: &Settings,
    key: &FlowKey,
    choice: &Choice,
    begin: &Begin,
    flow: &mut Flow,
) {
    let backend = &choice.backend;
    let is_hairpin = begin.may_hairpin && backend.ip == key.tuple.source;
    flow.to = key.tuple;
    flow.kind = if is_hairpin { Kind::HAIRPIN } else { Kind::FORWARD };
    flow.service = choice.service.id;
    flow.backend = choice.backend_id;
    flow.epoch = backend.epoch;
    flow.seen = begin.now;
    flow.begun = Flow::moment(begin.now);
    flow.shown = begin.shown;
    flow.expected = begin.expected;
    flow.frontends_epoch = choice.frontends_epoch;
    flow.noted = 0;
    flow.client_device = 0;
    let sticky = if choice.service.affinity != 0 { Flow::STICKY } else { 0 };
    let of_pod = if begin.is_of_pod { Flow::OF_POD } else { 0 };
    flow.flags = sticky | of_pod | if begin.masquerade { Flow::MASQUERADED } else { 0 };
    flow.to.destination = backend.ip;
    flow.to.destination_port = backend.port;
    if is_hairpin {
        // A host drops an IPv4 packet whose source is its own address (`fib_validate_source` in
        // net/ipv4/fib_frontend.c), and would answer one of IPv6 by its own `lo`.
        flow.to.source = settings.node.hairpin(backend.ip.is_v4());
    } else if !begin.source.is_unspecified() {
        flow.to.source = begin.source;
    }
}

/// Puts the other entries of the flow in the making, whose reply is in the table, into the tables, the forward one
/// last.
///
/// Then stores what later packets need: affinity, and the ports of a fragmented datagram. The first packet follows the
/// forward entry from here on.
#[inline(always)]
pub(super) fn commit<T: Tables>(tables: &T, scratch: &mut Scratch) -> Step<()> {
    let Scratch { headers, found, choice, begin, pair, fragment, .. } = scratch;
    (found.key, found.flow) = (headers.key, pair.forward);
    // With the low bits of the clock an expired entry would count as alive whenever these are equal to the tick. The
    // tick before this one makes the next packet mark the entry, also a packet of the same tick.
    found.flow.seen = Flow::seen_at(begin.now, tables.tick().wrapping_sub(1));
    let mut stands = true;
    let pending = &mut pair.pending_masquerade;
    if begin.masquerade {
        write_masquerade(&found.key, &found.flow, pending);
        stands = tables.put_flow(&pending.key, &pending.flow);
        // A sweep that has just taken the forward entry of an earlier flow with this key may not have reached its
        // protected masquerade, which would hide the new one and then go.
        if !begin.renews {
            tables.remove_protected(&pending.key);
        }
    } else if tables.settings().is_some_and(|all| all.has(Settings::ANY_MASQUERADE_AT_PODS)) {
        // An earlier flow between these ends, by another frontend, may have left an entry there.
        found.key.write_leaving_key(&found.flow, &mut pending.key);
        // The reply of a flow in the other direction, from the backend to the client as its own backend, has this key
        // too.
        if tables.flow(&pending.key, &mut pending.flow) && pending.flow.kind == Kind::MASQUERADE {
            tables.remove_flow(&pending.key);
        }
    }
    // The forward entry is last: a packet that finds it may rely on all others.
    stands = stands && tables.put_flow(&found.key, &found.flow);
    // The protected table is looked up first: an old entry there would hide the new transient one.
    if begin.renews {
        tables.remove_protected(&found.key);
    }
    if stands {
        // Affinity and ports are stored only for a flow that stands, so that a dropped packet leaves neither.
        choose::remember(tables, choice, begin.now);
        fragments::remember(tables, headers, fragment);
        return Ok(());
    }
    // A reply that another CPU wrote for the same flow belongs to that CPU's forward entry, so it stays.
    if pair.reservation == Reservation::Made {
        end_tail(tables, found);
    }
    Err(Verdict::Drop(DropReason::FlowTableFull))
}

/// Writes the reply of a forward entry, and its key. `device`: the interface by which the client's packets come.
#[inline(always)]
const fn write_reply(key: &FlowKey, forward: &Flow, device: u32, reply: &mut Entry) {
    key.write_opposite(forward, &mut reply.key);
    let is_hairpin = forward.kind.0 == Kind::HAIRPIN.0;
    forward.write_answer(if is_hairpin { Kind::HAIRPIN } else { Kind::REPLY }, &mut reply.flow);
    key.tuple.write_reversed(&mut reply.flow.to);
    // The interface decides where replies to a pod are translated (ADR 0003), and where the stack receives those to a
    // process (ADR 0027).
    reply.flow.client_device = device;
}

/// Writes the entry that translates the source of a flow, with no address chosen yet.
#[inline(always)]
const fn write_masquerade(key: &FlowKey, forward: &Flow, pending: &mut Entry) {
    forward.write_entry(Kind::MASQUERADE, &mut pending.flow);
    pending.flow.to = Tuple::NONE;
    key.write_leaving_key(forward, &mut pending.key);
}

/// Ends the flow in `found`, which had the packet's key before, except for its forward entry.
///
/// If another flow has taken its reply over ([`ports::reserve`]), there is nothing to remove: the masquerade entry
/// beside that reply belongs to the other flow as well.
#[inline(never)]
fn end_old<T: Flows>(tables: &T, found: &mut Found) {
    let Found { key, flow, opposite, .. } = found;
    key.write_opposite(flow, &mut opposite.key);
    let is_anothers = tables.flow(&opposite.key, &mut opposite.flow)
        && !opposite.flow.to.is_reverse_of(&key.tuple);
    if !is_anothers {
        end_tail(tables, found);
    }
}

/// Restores the reply of the forward entry that was found. `device`: the interface of its client.
///
/// False where another flow has the tuple by now: then this flow ends, and its next packet begins a new one with
/// another port.
#[inline(always)]
fn make_reply<T: Flows>(tables: &T, found: &Found, pair: &mut Pair, device: u32) -> bool {
    write_reply(&found.key, &found.flow, device, &mut pair.reply);
    // A reply that another CPU has restored at the same moment serves this flow as well (ADR 0009).
    let stands =
        matches!(ports::add_reply(tables, pair), Ok(Reservation::Made | Reservation::Found));
    if !stands {
        tables.remove_flow(&found.key);
    }
    stands
}

/// Removes all entries of the flow whose forward entry is in `found`, except that one. The reply comes last: a CPU that
/// restores the flow makes the reply first, and the other entries after it.
#[inline(never)]
pub(super) fn end_tail<T: Flows>(tables: &T, found: &mut Found) {
    let Found { key, flow, visited, .. } = found;
    if flow.flags & Flow::MASQUERADED != 0 {
        key.write_leaving_key(flow, &mut visited.key);
        if tables.flow(&visited.key, &mut visited.flow) {
            tables.remove_flow(&visited.key);
            visited.flow.to.write_reversed(&mut visited.key.tuple);
            visited.key.side = Side::INGRESS;
            // Where the kernel has displaced the entry, another flow may have the tuple by now.
            let has_answers = tables.flow(&visited.key, &mut visited.flow);
            if has_answers && visited.flow.to.is_reverse_of(&flow.to) {
                tables.remove_flow(&visited.key);
            }
        }
    }
    key.write_opposite(flow, &mut visited.key);
    tables.remove_flow(&visited.key);
}
