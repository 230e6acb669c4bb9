//! The exit of a packet of this host: its route, and the source that the route asks for.

use super::delivery::renew_delivery;
use crate::addr::Ip;
use crate::config::{Device, address};
use crate::event::{DropReason, Event, Redirect, Return, Verdict};
use crate::flow::Tuple;
use crate::forward::exit::next_hop;
use crate::forward::{Exit, Next, Refusal, Role, Scratch, Step};
use crate::packet::Packet;
use crate::route::RouteResult;
use crate::service::Backend;
use crate::tables::Tables;
use crate::wire::Headers;

/// Finds the exit to the backend of the packet's flow, found or in the making: to this host itself, or by
/// [`Exit::route`]. For a packet that begins a flow it also chooses the source address.
#[inline(always)]
pub(in crate::forward) fn exit<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let Scratch { headers, found, choice, begin, pair, exit, next, refusal, role, .. } = scratch;
    let is_first = *next == Next::First;
    // The comparison costs a lookup, so it is made once a tick.
    if !is_first && found.flow.tick() != tables.tick() {
        renew_delivery(tables, found, packet.device());
    }
    let to = &mut pair.forward.to;
    if !is_first {
        // The route must be that of the first packet, from which the source was chosen. A rule or the hash of several
        // next hops may depend on the source and its port, which the first packet had not changed yet.
        *to = found.flow.to;
        to.source_port = headers.key.tuple.source_port;
        to.source = headers.key.tuple.source;
        if to.source.is_loopback()
            && let Some(settings) = tables.settings()
        {
            to.source = settings.node.address(headers.view.v4);
        }
    }
    let to = &*to;
    if tables.address(&to.destination) & address::NODE == 0 {
        exit.to = Some(Redirect::FromHost);
        // The gateway of an earlier packet may be left there, and a lookup that finds no neighbour writes none.
        exit.route.gateway = Ip::UNSPECIFIED;
        let length = next_hop::length_of_any(packet, &headers.view);
        match packet.route_of_host(to, headers.key.protocol, length, &mut exit.route) {
            // The kernel resolves the next hop itself (`bpf_redirect_neigh`).
            RouteResult::Known | RouteResult::NoNeighbour => {}
            // The process knows the MTU of its own route only, and that of `lo`, for one, is larger (docs/limits.md).
            RouteResult::TooBig => {
                (*next, *refusal) = (Next::Refuse, Refusal::Reject(Return::TooBig));
                return Ok(());
            }
            RouteResult::None => return Err(Verdict::Drop(DropReason::NoRoute)),
        }
        let device = tables.device(exit.route.device);
        let keeps_route = device.is_some_and(|device| {
            device.hardware != [0; 6] && (headers.view.v4 || device.flags & Device::TUNNEL == 0)
        });
        if !keeps_route {
            // The packet needs the route to its backend: an interface without a link-layer header may find its remote
            // end by it (`ip_tunnel_xmit` in `net/ipv4/ip_tunnel.c`), and for IPv6 a tunnel stores there what it learns
            // about the MTU. Elsewhere the next hop is named: the kernel's own lookup would ask by the translated
            // source, and may find another next hop than one behind the interface.
            exit.route.gateway = Ip::UNSPECIFIED;
        }
    } else if *role == Role::Host {
        // A packet that goes to this host by `lo` has its route already.
        exit.to = None;
    } else {
        // A backend at an address of this node is reached by the stack.
        exit.by_loopback();
    }
    if is_first {
        begin.source = to.source;
        let is_far = choice.backend.flags & Backend::LOCAL == 0;
        choose_source(packet, tables, headers, to, is_far, exit, &mut begin.source);
    }
    Ok(())
}

/// Chooses the address of this node from which a packet goes to its backend. The packet keeps its own, unless replies
/// to that would not come back.
#[inline(always)]
fn choose_source<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    headers: &Headers,
    to: &Tuple,
    is_far: bool,
    exit: &Exit,
    source: &mut Ip,
) {
    if exit.to != Some(Redirect::FromHost) {
        // A datagram socket that is bound to no address replies to an address of this host from that address, or from
        // the primary one if it is a secondary IPv4 address (`ip_route_output_key_hash_rcu` in `net/ipv4/route.c`). So
        // it must be the address of the backend.
        *source = to.destination;
        return;
    }
    let index = exit.route.device;
    // The stack chose the source for the interface by which it sent the packet.
    if index == packet.device() {
        return;
    }
    let mut asks_route = !is_far;
    if is_far && let Some(device) = tables.device(index) {
        // The reply of another node must come back by this interface.
        let v4 = headers.view.v4;
        if !device.source(v4).is_unspecified() {
            *source = device.source(v4);
        }
        asks_route = device.has_sources(v4);
    }
    let Some(settings) = tables.settings().filter(|_| asks_route) else { return };
    // As a connection of the node itself to the backend would have it.
    let protocol = headers.key.protocol;
    if !next_hop::own_source(packet, settings, to, protocol, index, source) && is_far {
        tables.count(Event::SourceKept);
    }
}
