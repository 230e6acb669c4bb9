//! Making flows.

pub(super) mod first;
pub(super) mod ports;

use crate::addr::Ip;
use crate::config::Settings;
use crate::event::{DropReason, Verdict};
use crate::flow::{Entry, Flow, FlowKey, Kind, Shown, Side, Tuple};
use crate::forward::Scratch;
use crate::forward::begin::ports::Reservation;
use crate::forward::exit::rewrite;
use crate::forward::life::flows;
use crate::forward::rare::fragments;
use crate::forward::{Choice, Found, Step, choose, ready};
use crate::packet::Packet;
use crate::tables::{Clock, Flows, Tables};
use crate::wire::View;

/// How a new flow is made, beside what [`Choice`] says of service and backend. Written by the part that
/// decides about the first packet (`first`, `direct`, `host`), read by `begin` and `ports`.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one packet")]
pub struct Begin {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub now: u64,
    /// Index of the device that its client is behind.
    pub device: u32,
    /// Flags of its first packet.
    pub shown: Shown,
    /// [`Flow::expected`] of its first packet.
    pub expected: u32,
    /// The key has an entry of an earlier flow, which lies in [`Found::flow`]. Written by the search.
    pub renews: bool,
    /// The source becomes ours where the packet leaves the node.
    pub masquerade: bool,
    /// Its first packet can get no other port (SCTP in pieces): no flow, rather than one it cannot follow.
    pub port_stays: bool,
    /// A client that is its own backend is turned round on its device, under an address that stands for it.
    pub may_turn: bool,
    /// The address of this node under which a packet of this host
    /// goes on, with a port of ours; unspecified for all others.
    pub source: Ip,
}

impl Begin {
    /// A flow that begins with a packet as it came, which keeps its source. `renews`: [`Begin::renews`].
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
            shown: flows::shown(view),
            expected: flows::acknowledged(packet, view),
            renews,
            masquerade: false,
            port_stays: rewrite::port_stays(packet, view),
            may_turn: false,
            source: Ip::UNSPECIFIED,
        }
    }
}

/// The entries of a flow in the making, or of its masquerade where that gets its source. Written by `begin` and
/// `ports`; nobody reads them once they are in the tables.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair {
    /// The entry that the client's packets meet. Its key is that of the packet.
    pub forward: Flow,
    /// The entry that the answers meet, whose key is reserved (`ports`).
    pub reply: Entry,
    /// The entry that has the source become ours where the packet leaves, until when that is not chosen.
    pub pending_masquerade: Entry,
    /// The entry that is in the way of the reply: that of another flow, under the key of the reply.
    pub occupant: Flow,
    /// The entry of the other direction of the occupant's flow.
    pub occupant_opposite: Entry,
    /// The packet of the new flow that made its reply.
    pub reservation: Reservation,
}

/// Writes the forward entry of the flow of `scratch.headers.key` that begins as `scratch.begin` says into
/// `scratch.pair`, and its reply. Until both ends have spoken its entries may be displaced (`life/tiers`).
#[inline(always)]
pub(super) fn prepare<T: Tables>(tables: &T, scratch: &mut Scratch) -> Step<()> {
    let Scratch { headers, found, choice, begin, pair, .. } = scratch;
    let settings = ready(tables)?;
    // The old reply must go before the new one is reserved: it may have the very same key.
    if begin.renews {
        end_old(tables, found);
    }
    write_forward(settings, &headers.key, (choice, begin), &mut pair.forward);
    let is_hosts = !begin.source.is_unspecified();
    let keeps_port = pair.forward.to.destination_port == headers.key.tuple.destination_port;
    if begin.port_stays && (is_hosts || !keeps_port) {
        return Err(Verdict::Drop(DropReason::SctpChecksum));
    }
    write_reply(&headers.key, &pair.forward, begin.device, &mut pair.reply);
    // Egress looks up only packets of backends in this filter,
    // so the bit must be set before the first reply can arrive.
    tables.put_in_use(&choice.backend.ip, choice.backend.port);
    Ok(())
}

#[inline(always)]
fn write_forward(
    settings: &Settings,
    key: &FlowKey,
    (choice, begin): (&Choice, &Begin),
    flow: &mut Flow,
) {
    let backend = &choice.backend;
    let is_hairpin = begin.may_turn && backend.ip == key.tuple.source;
    flow.to = key.tuple;
    flow.kind = if is_hairpin { Kind::HAIRPIN } else { Kind::FORWARD };
    flow.service = choice.service.id;
    flow.backend = choice.backend_id;
    flow.epoch = backend.epoch;
    flow.seen = begin.now;
    flow.begun = Flow::moment(begin.now);
    flow.shown = begin.shown;
    flow.expected = begin.expected;
    flow.frontends_epoch = settings.services.frontends_epoch;
    flow.client_device = 0;
    let sticky = if choice.service.affinity != 0 { Flow::STICKY } else { 0 };
    flow.flags = sticky | if begin.masquerade { Flow::MASQUERADED } else { 0 };
    flow.to.destination = backend.ip;
    flow.to.destination_port = backend.port;
    if is_hairpin {
        flow.to.source = settings.node.hairpin(backend.ip.is_v4());
    } else if !begin.source.is_unspecified() {
        flow.to.source = begin.source;
    }
}

/// Puts the other entries of the flow in the making, whose reply stands, the forward one last, and what else is
/// remembered of its first packet, which follows that entry from here on.
#[inline(always)]
pub(super) fn stand<T: Tables>(tables: &T, scratch: &mut Scratch) -> Step<()> {
    let Scratch { headers, found, choice, begin, pair, fragment, .. } = scratch;
    (found.key, found.flow) = (headers.key, pair.forward);
    let mut stands = true;
    let mark = &mut pair.pending_masquerade;
    if begin.masquerade {
        write_masquerade(&found.key, &found.flow, mark);
        stands = tables.put_flow(&mark.key, &mark.flow);
    } else if tables.settings().is_some_and(|all| all.has(Settings::MASQUERADE_KUBE_PROXY)) {
        // An earlier flow of these ends, by another frontend, may have left there without its source.
        found.key.write_masquerade_key(&found.flow, &mut mark.key);
        tables.remove_flow(&mark.key);
    }
    // The forward entry is last: a packet that finds it may rely on all others.
    stands = stands && tables.put_flow(&found.key, &found.flow);
    // The protected table is asked first: an old entry there would hide the new transient one.
    if begin.renews {
        tables.remove_protected(&found.key);
    }
    if stands {
        choose::remember(tables, choice, begin.now);
        fragments::remember(tables, headers, fragment);
        return Ok(());
    }
    // A reply that another CPU wrote for the same flow belongs to that CPU's forward entry: leave it.
    if pair.reservation == Reservation::Made {
        end_tail(tables, found);
    }
    Err(Verdict::Drop(DropReason::FlowTableFull))
}

/// Writes the reply of a forward entry, and its key. `device`: that by which the client's packets come.
#[inline(always)]
const fn write_reply(key: &FlowKey, forward: &Flow, device: u32, reply: &mut Entry) {
    key.write_opposite(forward, &mut reply.key);
    let is_hairpin = forward.kind.0 == Kind::HAIRPIN.0;
    forward.write_answer(if is_hairpin { Kind::HAIRPIN } else { Kind::REPLY }, &mut reply.flow);
    key.tuple.write_reversed(&mut reply.flow.to);
    reply.flow.client_device = device;
}

/// Writes the entry that has the source of a flow become ours.
#[inline(always)]
const fn write_masquerade(key: &FlowKey, forward: &Flow, mark: &mut Entry) {
    forward.write_entry(Kind::MASQUERADE, &mut mark.flow);
    mark.flow.to = Tuple::NONE;
    key.write_masquerade_key(forward, &mut mark.key);
}

/// Ends the flow in `found`, which the packet's key meant before, but for its forward entry. Where another flow has
/// taken its reply over ([`ports::reserve`]), nothing is left to end: the masquerade beside that is the other's too.
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

/// Makes the reply of the forward entry that was found anew. `device`: that of its client. False where its tuple is
/// another flow's by now: then this one ends, and its next packet begins anew with another port.
#[inline(always)]
pub(super) fn make_reply<T: Flows>(
    tables: &T,
    found: &Found,
    pair: &mut Pair,
    device: u32,
) -> bool {
    write_reply(&found.key, &found.flow, device, &mut pair.reply);
    let stands = matches!(ports::stand(tables, pair), Ok(Reservation::Made | Reservation::Found));
    if !stands {
        tables.remove_flow(&found.key);
    }
    stands
}

/// Removes all entries of the flow whose forward entry is in `found`, but that one. Its reply comes last:
/// who makes it anew makes the others after that.
#[inline(never)]
pub(super) fn end_tail<T: Flows>(tables: &T, found: &mut Found) {
    let Found { key, flow, visited, .. } = found;
    if flow.flags & Flow::MASQUERADED != 0 {
        key.write_masquerade_key(flow, &mut visited.key);
        if tables.flow(&visited.key, &mut visited.flow) {
            tables.remove_flow(&visited.key);
            visited.flow.to.write_reversed(&mut visited.key.tuple);
            visited.key.side = Side::INGRESS;
            // Where the kernel has displaced it, the tuple may be another flow's by now.
            let has_answers = tables.flow(&visited.key, &mut visited.flow);
            if has_answers && visited.flow.to.is_reverse_of(&flow.to) {
                tables.remove_flow(&visited.key);
            }
        }
    }
    key.write_opposite(flow, &mut visited.key);
    tables.remove_flow(&visited.key);
}
