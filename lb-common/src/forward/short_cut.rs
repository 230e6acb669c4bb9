//! Past the stack at tc, in both directions of a flow: from the device of one end straight to that of the other (ADR 0021).
//!
//! Only where the agent found nobody in between who would miss the packets, and for whole and plain ones that a router would
//! take. The first of a flow goes through the stack; so does what finds no way, translated as ever: what leaves there is
//! translated where it leaves.

use super::road::{self, Of};
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Flow, Kind, Side, Tuple};
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::tables::Tables;
use crate::wire::{Piece, View};

/// Finds the way on of a packet of the flow in `scratch.flow`, whose client is behind this device.
#[inline(never)]
pub(super) fn prepare<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> bool {
    matches!(scratch.flow.kind, Kind::FORWARD | Kind::UNMASQUERADE)
        && is_common(&scratch.view)
        && is_found(packet, tables, scratch, Of::Flow)
}

/// Whether a packet may be the answer of a backend that a short cut can take.
#[inline(always)]
pub(super) fn may_be_answer<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
) -> bool {
    settings.has(Settings::SHORT_CUTS)
        && !packet.is_frame()
        && tables.may_be_backend(&tuple.source, tuple.source_port)
}

/// Whether the packet is the answer of a backend to a client of this node, and has a way to it. If so, it is a packet of the
/// half in `scratch.flow`, and its key that of where it would leave to the client.
#[inline(always)]
pub(super) fn is_answer<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> bool {
    may_be_answer(packet, tables, settings, &scratch.key.tuple)
        && is_common(&scratch.view)
        && prepare_answer(packet, tables, scratch)
}

#[inline(never)]
fn prepare_answer<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> bool {
    scratch.key.side = Side::EGRESS;
    let is_answer = tables.flow(&scratch.key, &mut scratch.flow)
        && scratch.flow.kind == Kind::REPLY
        && scratch.flow.flags & Flow::MASQUERADED == 0
        && is_found(packet, tables, scratch, Of::Packet);
    if !is_answer {
        scratch.key.side = Side::INGRESS;
    }
    is_answer
}

/// What goes past the stack: the rest is rare.
#[inline(always)]
fn is_common(view: &View) -> bool {
    view.plain && view.piece == Piece::Whole
}

/// Whether there is a way, which is then in `scratch.route` and `scratch.enters`, and its hop counted.
#[inline(always)]
fn is_found<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch, of: Of) -> bool {
    let Some(device) = tables.device(packet.device()) else { return false };
    if device.flags & Device::SHORT_CUT == 0 {
        return false;
    }
    let found = road::find(packet, scratch, &device, of);
    let hops = found
        .and_then(|hops| if leads_on(tables, scratch) { Ok(hops) } else { Err(Event::KeptDevice) });
    match hops {
        Ok(hops) => road::count_hop(&mut scratch.view, hops),
        Err(why) => tables.count(why),
    }
    hops.is_ok()
}

/// Whether packets may leave by the device of `scratch.route`: one to the outside, a pod's, or a bridge that the client's own
/// is a port of, which is then taken instead.
#[inline(always)]
fn leads_on<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let route = scratch.route.device;
    let client = scratch.flow.note;
    let known = tables.device(route);
    let flags = match known {
        Some(device) => device.flags,
        None if scratch.flow.kind == Kind::REPLY => {
            scratch.route.device = client;
            tables.device(client).filter(|port| port.bridge == route).map_or(0, |port| port.flags)
        }
        None => 0,
    };
    // What is to be masqueraded is, where it leaves (`masquerade: kube-proxy`).
    scratch.enters =
        if scratch.flow.flags & Flow::MASQUERADED == 0 { flags & Device::PEER } else { 0 };
    flags & Device::SHORT_CUT != 0
}
