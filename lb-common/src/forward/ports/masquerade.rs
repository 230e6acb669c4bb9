//! The source of a masqueraded flow: an address of this node, and a port of ours.

use super::super::parts::end;
use super::{Reservation, seek};
use crate::addr::{Ip, Port};
use crate::config::{Device, Settings};
use crate::event::{DropReason, Event, PassReason, Verdict};
use crate::flow::{Kind, Side};
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::Tables;

/// Gives the masqueraded flow of `scratch.key` (its `MASQUERADE` entry) its source, on the first packet that leaves. Where
/// there is none to be had, nothing of the flow is left.
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
    if tables.put_flow(&scratch.key, &scratch.flow) {
        return Ok(());
    }
    // A reply entry without its masquerade would keep the port reserved.
    tables.remove_flow(&scratch.opposite_key);
    Err(DropReason::FlowTableFull)
}

/// Gives a masqueraded flow the address of its source, and writes the entry of its answers into `scratch.opposite`.
#[inline(always)]
fn choose_source<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), DropReason> {
    let index = packet.device();
    let device = tables.device(index).ok_or(DropReason::NoSourceAddress)?;
    let v4 = scratch.key.tuple.destination.is_v4();
    let source = if v4 { device.source4 } else { device.source6 };
    if source == Ip::UNSPECIFIED {
        return Err(DropReason::NoSourceAddress);
    }
    scratch.flow.write_answer(Kind::UNMASQUERADE, &mut scratch.opposite);
    scratch.opposite.seen = tables.now();
    scratch.key.tuple.write_reversed(&mut scratch.opposite.to);
    scratch.flow.to = scratch.key.tuple;
    scratch.flow.to.source = source;
    if device.flags & (if v4 { Device::SOURCES4 } else { Device::SOURCES6 }) != 0 {
        // Packets that leave by a port of a bridge are routed to the bridge.
        let routed = if device.bridge == 0 { index } else { device.bridge };
        ask_route(packet, tables, settings, scratch, routed);
    }
    scratch.key.write_opposite(&scratch.flow, &mut scratch.opposite_key);
    scratch.frontend =
        Frontend::node_port(scratch.flow.to.source, Port::NONE, scratch.key.protocol);
    Ok(())
}

/// Removes the flow that the masquerade of `scratch.key` belongs to, which found no source, if nobody has answered it yet.
#[inline(never)]
fn forget<T: Tables>(tables: &T, scratch: &mut Scratch) {
    scratch.key.tuple.write_reversed(&mut scratch.opposite_key.tuple);
    scratch.opposite_key.protocol = scratch.key.protocol;
    scratch.opposite_key.side = Side::EGRESS;
    if !tables.flow(&scratch.opposite_key, &mut scratch.other) || scratch.other.is_protected() {
        return;
    }
    tables.remove_flow(&scratch.key);
    scratch.opposite_key.write_opposite(&scratch.other, &mut scratch.other_key);
    tables.remove_flow(&scratch.other_key);
    tables.remove_flow(&scratch.opposite_key);
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
    let source = packet.source(&scratch.key.tuple, scratch.key.protocol, device);
    match source.filter(|source| settings.may_be_own(source)) {
        Some(source) => scratch.flow.to.source = source,
        None => tables.count(Event::SourceKept),
    }
}
