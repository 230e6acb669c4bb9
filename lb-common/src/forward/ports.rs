//! Source ports of flows: the client's own where it can be told apart, else one that we make up.

#[cfg(test)]
mod tests;

use super::choose::SECOND;
use crate::addr::{Ip, Port, Protocol};
use crate::config::{Device, Settings};
use crate::event::{DropReason, Event};
use crate::flow::{Flow, Kind, Tuple, state};
use crate::hash;
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::{Added, Tables};

/// Ports tried before a flow is refused, ...
const TRIES: u32 = 16;
/// ... and how many make it known that they run out.
const SCARCE: u32 = TRIES / 2;
/// From one try to the next: odd, and far from any part of the range (2^32 by the golden ratio).
const NEXT: u32 = 0x9e37_79b9;

/// By whom a half stands that a packet needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// By this packet: it goes again if the flow fails.
    Made,
    /// By another packet of the same flow, at once on another CPU or before: it stays.
    Found,
    /// It does not: the key is another flow's.
    Taken,
}

/// Takes the reply tuple of a new flow. Where it belongs to another live flow, or its client may use it to talk
/// to the backend directly, the source port is shifted. Never [`Place::Taken`].
#[inline(always)]
pub(super) fn reserve<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    port_stays: bool,
) -> Result<Place, DropReason> {
    if !tables.is_direct(hash::whole(&scratch.flow.to, scratch.key.protocol)) {
        let place = take(tables, scratch)?;
        if place != Place::Taken {
            return Ok(place);
        }
        if is_over(&scratch.other, scratch.twin.seen) {
            // That of a connection that ended: its forward half, if any is left, is swept as an orphan.
            let put = tables.put_flow(&scratch.twin_key, &scratch.twin);
            return if put { Ok(Place::Made) } else { Err(DropReason::FlowTableFull) };
        }
    }
    if port_stays {
        return Err(DropReason::SctpChecksum);
    }
    shift(tables, settings, scratch)
}

#[inline(never)]
fn shift<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<Place, DropReason> {
    let place = seek(tables, settings, scratch, false)?;
    tables.count(Event::PortShifted);
    Ok(place)
}

/// Puts the twin where its key says, unless another flow is there: see [`stand`].
///
/// One of the same flow is as good: of two first packets at once, on two CPUs, the later one takes the port
/// that the earlier one found.
#[inline(always)]
fn take<T: Tables>(tables: &T, scratch: &mut Scratch) -> Result<Place, DropReason> {
    let place = stand(tables, scratch)?;
    if place == Place::Found && !tables.put_flow(&scratch.twin_key, &scratch.twin) {
        return Err(DropReason::FlowTableFull);
    }
    Ok(place)
}

/// Sees to it that the twin stands where its key says, unless another flow is there, which then lies in `scratch.other`.
#[inline(always)]
pub(super) fn stand<T: Tables>(tables: &T, scratch: &mut Scratch) -> Result<Place, DropReason> {
    match tables.add_flow(&scratch.twin_key, &scratch.twin) {
        Added::Yes => Ok(Place::Made),
        Added::Full => Err(DropReason::FlowTableFull),
        Added::Taken => {
            let found = tables.flow(&scratch.twin_key, &mut scratch.other)
                && scratch.other.to == scratch.twin.to;
            Ok(if found { Place::Found } else { Place::Taken })
        }
    }
}

/// Whether a half can only belong to a connection that ended.
#[inline(always)]
const fn is_over(flow: &Flow, now: u64) -> bool {
    flow.state & state::RST != 0
        || flow.state & state::FIN != 0 && now.saturating_sub(flow.seen) >= 2 * SECOND
}

/// Finds a source port towards the backend, for the flow and for the key of its twin. `is_own`: on an address of this
/// node, that of `scratch.frontend`, where `NodePorts` are.
///
/// VERIFIER: not a function of its own, for its callers are at the end of the deepest chain of calls already.
#[inline(always)]
fn seek<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    is_own: bool,
) -> Result<Place, DropReason> {
    let mut wish = wish(&scratch.key.tuple, scratch.key.protocol);
    for tried in 0..TRIES {
        let port = source_port(settings, wish);
        wish = wish.wrapping_add(NEXT);
        if is_own {
            scratch.frontend.port = port;
            if tables.knows(&scratch.frontend) {
                continue;
            }
        }
        scratch.twin_key.tuple.destination_port = port;
        let place = take(tables, scratch)?;
        if place == Place::Taken {
            tables.count(Event::PortTaken);
            continue;
        }
        if tried >= SCARCE {
            tables.count(Event::PortsScarce);
        }
        scratch.flow.to.source_port = port;
        return Ok(place);
    }
    Err(DropReason::PortsExhausted)
}

/// Which port of the range to try first. The ports of one client become as many others: the backend remembers each
/// connection for a minute (`TIME_WAIT`) and takes a new one from the same port only when its client is the same.
#[inline(always)]
const fn wish(tuple: &Tuple, protocol: Protocol) -> u32 {
    // Half of the bits, so that adding the port does not wrap.
    (hash::client(tuple, protocol) >> 16) + tuple.source_port.get() as u32
}

/// A port of the range for translated sources.
#[inline(always)]
const fn source_port(settings: &Settings, wish: u32) -> Port {
    let low = settings.source_port_low.get();
    let width = settings.source_port_high.get().saturating_sub(low) as u32 + 1;
    Port::new(low + (wish % width) as u16)
}

/// Gives the masqueraded flow of `scratch.key` (its EGRESS half) its source, on the first packet that leaves.
#[inline(never)]
pub(super) fn masquerade<P: Packet, T: Tables>(
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
    scratch.flow.write_half(Kind::UNMASQUERADE, &mut scratch.twin);
    scratch.key.tuple.write_reversed(&mut scratch.twin.to);
    scratch.flow.to = scratch.key.tuple;
    scratch.flow.to.source = source;
    if device.flags & (if v4 { Device::SOURCES4 } else { Device::SOURCES6 }) != 0 {
        // What leaves by a port of a bridge is routed to the bridge.
        let routed = if device.bridge == 0 { index } else { device.bridge };
        ask_route(packet, tables, scratch, routed);
    }
    scratch.key.write_other(&scratch.flow, &mut scratch.twin_key);
    scratch.frontend =
        Frontend::node_port(scratch.flow.to.source, Port::NONE, scratch.key.protocol);
    let place = seek(tables, settings, scratch, true)?;
    let put = tables.put_flow(&scratch.key, &scratch.flow);
    if put && place == Place::Made || found_again(tables, scratch, place, put) {
        return Ok(());
    }
    Err(DropReason::FlowTableFull)
}

/// Gives the flow the source that its route names, if answers to it would be known (`ENDPOINTS`).
///
/// VERIFIER: a function of its own, for the question fills a part of the stack that what comes after needs.
#[inline(never)]
fn ask_route<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch, device: u32) {
    let source = packet.source(&scratch.key.tuple, scratch.key.protocol, device);
    match source.filter(|source| tables.may_be_source(source)) {
        Some(source) => scratch.flow.to.source = source,
        None => tables.count(Event::SourceKept),
    }
}

/// The rare rest of [`masquerade`], where one of two CPUs finds no room: as `flows::take_back` and `flows::complete`.
#[inline(never)]
fn found_again<T: Tables>(tables: &T, scratch: &mut Scratch, place: Place, put: bool) -> bool {
    if !put && place == Place::Made {
        tables.remove_flow(&scratch.twin_key);
    }
    if !tables.flow(&scratch.key, &mut scratch.other) || scratch.other.to != scratch.flow.to {
        return false;
    }
    let stands = matches!(stand(tables, scratch), Ok(Place::Made | Place::Found));
    if !stands {
        // The next packet tries another port.
        scratch.flow.to = Tuple::NONE;
        let _put: bool = tables.put_flow(&scratch.key, &scratch.flow);
    }
    stands && put
}
