//! The source of a masqueraded flow: an address of this node, and a port of the reserved range.

use super::search::try_port;
use crate::addr::Ip;
use crate::config::Settings;
use crate::event::{DropReason, Event, Verdict};
use crate::flow::{Kind, Side};
use crate::forward::exit::next_hop;
use crate::forward::{Found, Pair, PortSearch, Reservation, Scratch, Step, ready};
use crate::packet::Packet;
use crate::tables::{Clock, Flows, Node, Tables};
use crate::wire::Headers;

/// Gives the `MASQUERADE` entry in `scratch.found` its source, on the first packet that leaves. Where no source can be
/// had, no entry of the flow is left.
#[inline(always)]
pub(in crate::forward) fn masquerade<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers, found, pair, search, .. } = scratch;
    let translated = translate_source(packet, tables, settings, found, pair, search);
    translated.map_err(|reason| {
        if !search.goes_on {
            forget(tables, headers, found);
        }
        Verdict::Drop(reason)
    })
}

#[inline(always)]
fn translate_source<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    found: &mut Found,
    pair: &mut Pair,
    search: &mut PortSearch,
) -> Result<(), DropReason> {
    // Later tries find the source in the working memory: each try is a call of its own (ADR 0034).
    if search.tried == 0 {
        choose_source(packet, tables, settings, found, pair)?;
    }
    // Two packets of the flow that leave at once, on two CPUs, try the same ports in the same order (`wish`), so the
    // later one finds the reply entry of the earlier one and takes the same port.
    let _reservation: Reservation =
        try_port(packet, tables, settings, &found.key, pair, search, true)?;
    found.flow = pair.forward;
    if tables.put_flow(&found.key, &found.flow) {
        return Ok(());
    }
    // A reply entry without its masquerade would keep the port reserved.
    tables.remove_flow(&pair.reply.key);
    Err(DropReason::FlowTableFull)
}

/// Gives a masqueraded flow the address of its source, and writes the pair in the making: this entry, and the one of
/// its replies.
#[inline(always)]
fn choose_source<P: Packet, T: Node + Clock>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    Found { key, flow, .. }: &Found,
    Pair { forward, reply, .. }: &mut Pair,
) -> Result<(), DropReason> {
    let index = packet.device();
    let device = tables.device(index).ok_or(DropReason::NoSourceAddress)?;
    let v4 = key.tuple.destination.is_v4();
    let source = device.source(v4);
    // With the client's address the reply would bypass this node, and the client would reset the connection (ADR 0003).
    if source == Ip::UNSPECIFIED {
        return Err(DropReason::NoSourceAddress);
    }
    flow.write_answer(Kind::UNMASQUERADE, &mut reply.flow);
    // `try_port` takes this time as the present.
    reply.flow.seen = tables.now();
    key.tuple.write_reversed(&mut reply.flow.to);
    *forward = *flow;
    forward.to = key.tuple;
    forward.to.source = source;
    // Only where the interface has addresses of several networks, the first packet of a flow pays for a route lookup
    // (ADR 0011).
    if device.has_sources(v4) {
        // The routes of packets that leave by a port of a bridge lead to the bridge.
        let routed = if device.bridge == 0 { index } else { device.bridge };
        let into = &mut forward.to.source;
        if !next_hop::own_source(packet, settings, &key.tuple, key.protocol, routed, into) {
            tables.count(Event::SourceKept);
        }
    }
    key.write_opposite(forward, &mut reply.key);
    Ok(())
}

/// Removes the flow of a masquerade that found no source, unless a reply has come, or another packet has found one.
#[inline(never)]
fn forget<T: Flows>(tables: &T, headers: &Headers, found: &mut Found) {
    if !found.find_answers(tables, headers, Side::EGRESS) || found.answers.flow.is_protected() {
        return;
    }
    let Found { key, answers, visited, .. } = found;
    // The search has taken long: on another CPU, another packet of the flow may have found a source.
    if tables.flow(key, &mut visited.flow) && visited.flow.to.source != Ip::UNSPECIFIED {
        return;
    }
    tables.remove_flow(key);
    answers.key.write_opposite(&answers.flow, &mut visited.key);
    tables.remove_flow(&visited.key);
    // The reply is last, as in `end_tail`: a CPU that restores the flow begins with the reply.
    tables.remove_flow(&answers.key);
}
