//! The source of a masqueraded flow: an address of this node, and a port of ours.

use super::super::parts::end;
use super::super::{Found, Pair};
use super::{Reservation, seek};
use crate::addr::{Ip, Port};
use crate::config::{Device, Settings};
use crate::event::{DropReason, Event, PassReason, Verdict};
use crate::flow::{Kind, Side};
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::Tables;

/// Gives the `MASQUERADE` entry in `scratch.found` its source, on the first packet that leaves. Where there is none to be had,
/// nothing of the flow is left.
#[inline(always)]
pub(in crate::forward) fn masquerade<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    match translate_source(packet, tables, settings, scratch) {
        Ok(()) => false,
        Err(reason) => {
            if !scratch.search.goes_on {
                forget(tables, scratch);
            }
            end(scratch, Verdict::Drop(reason))
        }
    }
}

#[inline(always)]
fn translate_source<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), DropReason> {
    if scratch.search.tried == 0 {
        choose_source(packet, tables, settings, scratch)?;
    }
    let _reservation: Reservation = seek(tables, settings, scratch, true)?;
    let Scratch { found, pair, .. } = scratch;
    found.flow = pair.forward;
    if tables.put_flow(&found.key, &found.flow) {
        return Ok(());
    }
    // A reply entry without its masquerade would keep the port reserved.
    tables.remove_flow(&pair.reply.key);
    Err(DropReason::FlowTableFull)
}

/// Gives a masqueraded flow the address of its source, and writes the pair in the making: of this entry, and of its answers.
#[inline(always)]
fn choose_source<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), DropReason> {
    let index = packet.device();
    let device = tables.device(index).ok_or(DropReason::NoSourceAddress)?;
    let v4 = scratch.headers.key.tuple.destination.is_v4();
    let source = if v4 { device.source4 } else { device.source6 };
    if source == Ip::UNSPECIFIED {
        return Err(DropReason::NoSourceAddress);
    }
    let Scratch { found, pair: Pair { forward, reply, .. }, .. } = &mut *scratch;
    let tuple = &found.key.tuple;
    found.flow.write_answer(Kind::UNMASQUERADE, &mut reply.flow);
    reply.flow.seen = tables.now();
    tuple.write_reversed(&mut reply.flow.to);
    *forward = found.flow;
    forward.to = *tuple;
    forward.to.source = source;
    if device.flags & (if v4 { Device::SOURCES4 } else { Device::SOURCES6 }) != 0 {
        // Packets that leave by a port of a bridge are routed to the bridge.
        let routed = if device.bridge == 0 { index } else { device.bridge };
        ask_route(packet, tables, settings, scratch, routed);
    }
    let Scratch { found, pair, search, .. } = scratch;
    found.key.write_opposite(&pair.forward, &mut pair.reply.key);
    search.node_port = Frontend::node_port(pair.forward.to.source, Port::NONE, found.key.protocol);
    Ok(())
}

/// Removes the flow of a masquerade that found no source, if nobody has answered it yet.
#[inline(never)]
fn forget<T: Tables>(tables: &T, scratch: &mut Scratch) {
    if !scratch.found.find_answers(tables, &scratch.headers, Side::EGRESS)
        || scratch.found.answers.flow.is_protected()
    {
        return;
    }
    let Found { key, answers, visited, .. } = &mut scratch.found;
    tables.remove_flow(key);
    answers.key.write_opposite(&answers.flow, &mut visited.key);
    tables.remove_flow(&visited.key);
    tables.remove_flow(&answers.key);
}

/// Gives the flow the source that its route names, if answers to it would be known ([`Settings::own`]).
///
/// VERIFIER: a function of its own, for the question fills a part of the stack that what comes after needs.
#[inline(never)]
fn ask_route<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    device: u32,
) {
    let source = packet.source(&scratch.headers.key.tuple, scratch.headers.key.protocol, device);
    match source.filter(|source| settings.may_be_own(source)) {
        Some(source) => scratch.pair.forward.to.source = source,
        None => tables.count(Event::SourceKept),
    }
}
