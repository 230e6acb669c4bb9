//! The bypass of the stack at tc, in both directions of a flow: from the interface of one end straight to that of the
//! other (ADR 0021).
//!
//! It needs `bypass: on`, and takes whole and plain packets that a router would forward, and that came by the
//! interface behind which the kernel knows their source. The first packet of a flow goes through the stack. A packet
//! without a next hop goes through the stack as well, and is translated where it is without a bypass.

use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Flow, Kind, Side};
use crate::forward::exit::next_hop;
use crate::forward::{Exit, Found, classify, life};
use crate::packet::Packet;
use crate::route::{RouteResult, Traffic};
use crate::tables::{Clock, Filters, Flows, Node};
use crate::wire::Headers;

/// Offset of the sender's address in an Ethernet header.
const SENDER: usize = 6;

/// Finds the next hop of a packet of the flow that was found, whose client is behind this interface.
#[inline(never)]
pub(in crate::forward) fn prepare<P: Packet, T: Clock + Filters + Flows + Node>(
    packet: &P,
    tables: &T,
    headers: &mut Headers,
    found: &Found,
    exit: &mut Exit,
) -> bool {
    // A reply has come to `is_answer`, and a hairpin stays at its interface.
    matches!(found.flow.kind, Kind::FORWARD | Kind::UNMASQUERADE)
        && headers.view.is_simple()
        && is_found(packet, tables, headers, found, Of::Flow, exit)
}

/// Whether the packet is the reply of a backend to a client of this node, and has a next hop.
///
/// If so, it follows the entry in `found`, whose key is that of the interface by which it would leave to the client.
#[inline(always)]
pub(in crate::forward) fn is_answer<P: Packet, T: Clock + Filters + Flows + Node>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    headers: &mut Headers,
    found: &mut Found,
    exit: &mut Exit,
) -> bool {
    classify::may_be_answer(packet, tables, settings, &headers.key.tuple)
        && headers.view.is_simple()
        && prepare_answer(packet, tables, settings, headers, found, exit)
}

#[inline(always)]
fn prepare_answer<P: Packet, T: Clock + Filters + Flows + Node>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    headers: &mut Headers,
    found: &mut Found,
    exit: &mut Exit,
) -> bool {
    found.key = headers.key;
    found.key.side = Side::EGRESS;
    // The answers of a masqueraded flow come in to its translated source, under another key.
    tables.flow(&found.key, &mut found.flow)
        && found.flow.kind == Kind::REPLY
        && found.flow.flags & Flow::MASQUERADED == 0
        // As at egress: a SYN is never a reply, and an entry whose life is over translates nothing.
        && !headers.view.is_syn()
        && !life::is_expired(tables, settings, found)
        && is_found(packet, tables, headers, found, Of::Packet, exit)
}

/// The addresses by which a route is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The addresses of the packet as it came.
    Packet,
    /// The addresses of the packet after its translation.
    Flow,
}

/// Whether there is a next hop. If so, it is in `exit`, and the hop limit counts it.
#[inline(always)]
fn is_found<P: Packet, T: Clock + Filters + Flows + Node>(
    packet: &P,
    tables: &T,
    headers: &mut Headers,
    found: &Found,
    of: Of,
    exit: &mut Exit,
) -> bool {
    let Some(device) = tables.device(packet.device()) else { return false };
    if device.flags & Device::BYPASS == 0 {
        return false;
    }
    // A packet with a forged source takes the stack, and meets `rp_filter` and the bridge there (ADR 0021).
    if !is_sources_own(packet, headers, &device, exit) {
        tables.count(Event::KeptSource);
        return false;
    }
    let tuple = if of == Of::Packet { &headers.key.tuple } else { &found.flow.to };
    let hop = if next_hop::is_for_us(packet, &headers.view, &device) {
        next_hop::find(packet, headers, tuple, exit)
    } else {
        Err(Event::KeptLink)
    };
    let led = hop.and_then(|()| {
        if leads_on(tables, &found.flow, exit) { Ok(()) } else { Err(Event::KeptDevice) }
    });
    // The stack decrements the hop limit of a packet that stays, so the hop is counted only where the bypass is
    // certain.
    match led {
        Ok(()) => next_hop::count_hop(&mut headers.view, exit.hops),
        Err(why) => tables.count(why),
    }
    led.is_ok()
}

/// Whether the packet came by the interface, and from the link-layer address, to which the kernel would send a reply to
/// its source.
///
/// This test replaces checks of the stack that a bypass skips (`rp_filter`, the isolation of a bridge's ports).
#[inline(never)]
fn is_sources_own<P: Packet>(
    packet: &P,
    Headers { view, key, .. }: &Headers,
    device: &Device,
    Exit { tuple_back, route_back, .. }: &mut Exit,
) -> bool {
    key.tuple.write_reversed(tuple_back);
    // Only the way to the source matters here, and a length of one byte fits the MTU of every route.
    let traffic = Traffic { v4: view.v4, class: 0, length: 1 };
    if packet.route(tuple_back, key.protocol, traffic, route_back) != RouteResult::Known {
        return false;
    }
    // The routes to senders behind a port of a bridge lead to the bridge.
    let is_there = route_back.device == packet.device() || route_back.device == device.bridge;
    is_there && packet.read(SENDER) == Some(route_back.next_hop_address())
}

/// Whether packets may leave by the interface of the route: an external one, a pod's, or a bridge that the client's own
/// interface is a port of. The bridge's own table chooses the port then.
#[inline(never)]
fn leads_on<T: Clock + Filters + Flows + Node>(
    tables: &T,
    flow: &Flow,
    Exit { route, to_peer, .. }: &mut Exit,
) -> bool {
    let flags = match tables.device(route.device) {
        Some(device) => device.flags,
        None if flow.kind == Kind::REPLY => {
            let client = tables.device(flow.client_device);
            let port = client.filter(|port| port.bridge == route.device);
            port.map_or(0, |port| port.flags & !Device::PEER)
        }
        None => 0,
    };
    // Masquerade happens at egress of the interface (`masquerade: kube-proxy`), which a packet sent to its peer would
    // skip.
    *to_peer = if flow.flags & Flow::MASQUERADED == 0 { flags & Device::PEER } else { 0 };
    flags & Device::BYPASS != 0
}
