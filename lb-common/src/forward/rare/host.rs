//! Packets of this host's own processes.
//!
//! TCP sockets that the socket hooks serve are connected to a backend in the first place ([`crate::forward::socket`]).
//! Every other packet to a frontend is translated where it leaves the stack: at an external interface, or at `lo` for
//! frontends at addresses of this node. It continues by the route of its backend, from an address of this node and a
//! port of the reserved range. The stack receives the reply at the interface by which the request left, so that the
//! route back to the frontend is the one that it expects (`rp_filter`, ADR 0027). Netfilter sees the frontend in both
//! directions.

use crate::addr::Ip;
use crate::config::{Device, Settings, address};
use crate::event::{DropReason, Event, PassReason, Return, Translation, Verdict};
use crate::flow::{Flow, FlowKey, Side, Tuple};
use crate::forward::begin::{self, ports};
use crate::forward::exit::{self, ExitTo, next_hop};
use crate::forward::life::tiers;
use crate::forward::parts::{Part, Parts, touch};
use crate::forward::rare::direct;
use crate::forward::seek::{follow, inherited};
use crate::forward::{
    Asker, Begin, Choice, Exit, Found, Next, Refusal, Role, Scratch, Stage, Step, choose, classify,
    life, ready,
};
use crate::hash;
use crate::packet::Packet;
use crate::route::RouteResult;
use crate::service::{Backend, Frontend};
use crate::tables::{Flows, Tables};
use crate::wire::Headers;

/// Handles a packet of a process of this host to a possible frontend, unless it begins a flow.
#[inline(always)]
pub(in crate::forward) fn path<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    packet.part(tables, scratch, Part::HostSeek)?;
    if tiers::must_mend(scratch.next, &scratch.found.flow) {
        packet.part(tables, scratch, Part::Mend)?;
        if scratch.next == Next::Again {
            packet.part(tables, scratch, Part::HostSeek)?;
        }
    }
    if scratch.next == Next::First {
        return Ok(Stage::HostBegin);
    }
    if scratch.next != Next::Refuse {
        packet.part(tables, scratch, Part::HostExit)?;
    }
    if scratch.next == Next::Refuse {
        return Ok(Stage::Error);
    }
    touch(packet, tables, scratch)?;
    leave(packet, tables, scratch, Translation::Forward)
}

/// Begins a flow of a process of this host.
#[inline(always)]
pub(in crate::forward) fn begin<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    packet.part(tables, scratch, Part::HostFirst)?;
    // The exit precedes the entries: the route decides about the source, and the packet may be too big for it.
    if scratch.next != Next::Refuse {
        packet.part(tables, scratch, Part::HostExit)?;
    }
    if scratch.next == Next::Refuse {
        return Ok(Stage::Error);
    }
    packet.part(tables, scratch, Part::Prepare)?;
    ports::tries(packet, tables, scratch, Part::ReserveOwn)?;
    packet.part(tables, scratch, Part::Commit)?;
    leave(packet, tables, scratch, Translation::NewFlow)
}

/// Rewrites the packet, which ends its path.
#[inline(always)]
fn leave<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    what: Translation,
) -> Step<Stage> {
    packet.part(tables, scratch, Part::Rewrite)?;
    let Scratch { headers, found, exit, .. } = scratch;
    Err(exit::leave(packet, &headers.view, found.flow.kind, exit, what))
}

/// Finds the flow of a packet of this host, or its service.
#[inline(always)]
pub(in crate::forward) fn seek<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers, found, choice, begin, next, refusal, role, .. } = scratch;
    if is_translated(tables, headers, found) {
        return Err(Verdict::Pass(PassReason::Unchanged));
    }
    *next = Next::Follow;
    let view = &headers.view;
    let is_there = found.look_up(tables, &headers.key) && found.flow.is_forward();
    let known = is_there && !life::is_expired(tables, settings, found);
    if known && follow::is_current(tables, settings, &found.flow, view, false) {
        return Ok(());
    }
    if !known && !is_of_host(tables, &headers.key.tuple.source, *role) {
        return Err(Verdict::Pass(PassReason::NotOurs));
    }
    let located = locate(tables, settings, headers, choice);
    if located.is_ok()
        && known
        && follow::still_good(tables, settings, view, found, &choice.service)
    {
        return Ok(());
    }
    if direct::may_be_own(settings, &headers.key.tuple) {
        // The reply to this packet, too, may look like a request to a NodePort.
        direct::record_own(tables, settings, headers, found);
    }
    if located != Err(Refusal::Pass(PassReason::NotOurs)) {
        if !known && direct::is_untranslated(packet, tables, settings, headers) {
            return Err(Verdict::Pass(PassReason::NotOurs));
        }
        inherited::leaves(tables, settings, headers)?;
    }
    if let Err(why) = located {
        if follow::is_left_alone(view, why) {
            return Err(Verdict::Pass(PassReason::NotOurs));
        }
        (*next, *refusal) = (Next::Refuse, why);
    } else {
        begin.renews = is_there;
        *next = Next::First;
    }
    Ok(())
}

/// Whether a packet with this source, at an interface with this role, is one of this host. A container or virtual
/// machine whose macvlan, ipvlan or macvtap is over the interface sends by it as well: to the programs its packets look
/// like those of a process (`macvlan_queue_xmit` in `drivers/net/macvlan.c` leaves `skb->skb_iif` 0).
#[inline(always)]
pub(in crate::forward) fn is_of_host<T: Tables>(tables: &T, source: &Ip, role: Role) -> bool {
    role == Role::Host || source.is_loopback() || tables.address(source) & address::NODE != 0
}

/// Whether another interface has translated the packet already: its backend may be a frontend itself.
#[inline(always)]
fn is_translated<T: Tables>(tables: &T, headers: &Headers, found: &mut Found) -> bool {
    let to = &headers.key.tuple;
    tables.is_in_use(&to.destination, to.destination_port)
        && found.find_answers(tables, headers, Side::INGRESS)
        && found.answers.flow.is_answer()
}

/// Finds the service at the packet's destination.
#[inline(always)]
fn locate<T: Tables>(
    tables: &T,
    settings: &Settings,
    Headers { view, key, .. }: &Headers,
    choice: &mut Choice,
) -> Result<(), Refusal> {
    let (ip, port) = (key.tuple.destination, key.tuple.destination_port);
    choice.frontend = Frontend::new(ip, port, view.protocol);
    if ip.is_loopback() {
        return choose::locate_loopback(tables, settings, choice);
    }
    let is_in_ranges = classify::is_in_ranges(settings, &ip, port, view.v4);
    choose::locate(tables, settings, choice, is_in_ranges)
}

/// Chooses the backend of a packet that begins a flow. External policies do not bind processes of this host.
#[inline(always)]
pub(in crate::forward) fn first<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let Scratch { headers, found, choice, begin, pair, next, refusal, role, .. } = scratch;
    let Headers { view, key: FlowKey { tuple, .. }, .. } = &*headers;
    let source = tuple.source;
    // At `lo` a loopback source is valid (`localhostNodePorts`, ADR 0027).
    if source.is_martian() && !(*role == Role::Host && source.is_loopback()) {
        return Err(Verdict::Pass(PassReason::Martian));
    }
    if !follow::may_begin(view) {
        return Err(Verdict::Pass(PassReason::NoFlow));
    }
    let hash = hash::tuple(tuple, view.protocol);
    choice.asker = Asker { client: source, source, hash, local: 1 };
    if let Err(why) = choose::choose(tables, choice, tables.now()) {
        begin::end_where_passed(tables, begin, found, why);
        (*next, *refusal) = (Next::Refuse, why);
        return Ok(());
    }
    let to = &mut pair.forward.to;
    *to = *tuple;
    if source.is_loopback() {
        // Only this host replies to a loopback address, and the kernel has no route from it to another host.
        let own = tables.settings().map(|settings| settings.node.address(view.v4));
        let Some(own) = own.filter(|own| !own.is_unspecified()) else {
            return Err(Verdict::Drop(DropReason::NoSourceAddress));
        };
        to.source = own;
    }
    to.destination = choice.backend.ip;
    to.destination_port = choice.backend.port;
    *begin = Begin::of(packet, tables, view, begin.renews);
    Ok(())
}

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
        exit.to = ExitTo::Device;
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
        exit.to = ExitTo::Stack;
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

/// Stores the interface by which the packets of the flow in `found` leave now, where the route to the frontend has
/// moved since the first one: the stack receives no reply at an interface that is down.
///
/// VERIFIER: a function of its own, so that its stack is not added to that of the route lookup.
#[inline(never)]
fn renew_delivery<T: Flows>(tables: &T, found: &mut Found, device: u32) {
    if found.find_opposite(tables) && found.opposite.flow.client_device != device {
        found.opposite.flow.client_device = device;
        // A reply that moves between the tables meanwhile is renewed at the next tick.
        let _put: bool = tables.put_flow(&found.opposite.key, &found.opposite.flow);
    }
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
    if exit.to != ExitTo::Device {
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

/// Finds the interface at which the stack receives a reply to this host: see [`find_delivery`]. Where the request's
/// interface is gone or down, that is the interface by which the next request leaves.
#[inline(always)]
pub(in crate::forward) fn delivery<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    Scratch { headers, found, pair, exit, role, .. }: &mut Scratch,
) -> Step<()> {
    let flow = &found.flow;
    find_delivery(packet, tables, flow, *role, exit)?;
    let is_there = exit.to != ExitTo::Stack || flow.client_device == packet.device();
    if is_there || *role == Role::Host || packet.is_at_xdp() {
        return Ok(());
    }
    let request = &mut pair.forward.to;
    flow.to.write_reversed(request);
    let route = packet.route_of_host(request, headers.key.protocol, 0, &mut exit.route);
    let index = exit.route.device;
    if route == RouteResult::None {
        // A request without another route goes by `lo` (`node/host/routes.rs` of the agent).
        exit.by_loopback();
    } else if index != packet.device()
        && let Some(device) = tables.device(index)
    {
        // The route proves that the interface is up; without carrier it accepts packets, too.
        deliver_at(index, &device, exit);
    }
    Ok(())
}

/// Lets the stack receive the packet at an interface.
#[inline(always)]
const fn deliver_at(index: u32, device: &Device, exit: &mut Exit) {
    let [a, b, c, d, e, f] = device.hardware;
    exit.route.device = index;
    exit.route.hardware = [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, 0, 0]), 0];
    exit.to = ExitTo::StackAt;
}

/// Finds the interface at which the stack receives a reply of `flow` to this host, into [`Exit::route`], with its
/// link-layer address.
///
/// The packet simply continues where it comes in by that interface anyway, or where the interface is gone or down: then
/// the stack judges the packet as it is. The frame of a VLAN is left to the programs at the interface of that VLAN, if
/// there are any: the stack would take the tag off a translated packet and receive it there (`vlan_do_receive` in
/// `net/8021q/vlan_core.c`), and no interface would receive it with its tag elsewhere.
#[inline(always)]
pub(in crate::forward) fn find_delivery<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    flow: &Flow,
    role: Role,
    exit: &mut Exit,
) -> Step<()> {
    let index = flow.client_device;
    exit.to = ExitTo::Stack;
    if role == Role::Host {
        return Ok(());
    }
    // XDP does not see a tag that the card has taken off.
    if (packet.is_of_vlan() || packet.is_at_xdp()) && has_upper(packet, tables) {
        let why = if packet.is_at_xdp() { PassReason::LeftToTc } else { PassReason::Unchanged };
        return Err(Verdict::Pass(why));
    }
    if index == packet.device() {
        return Ok(());
    }
    // XDP can only send a frame out by another interface, and the stack must receive this one there.
    if packet.is_at_xdp() {
        return Err(Verdict::Pass(PassReason::LeftToTc));
    }
    if let Some(device) = tables.device(index).filter(|it| it.flags & Device::DOWN == 0) {
        deliver_at(index, &device, exit);
    }
    Ok(())
}

/// Whether an interface with programs is over that of the packet.
#[inline(always)]
fn has_upper<P: Packet, T: Tables>(packet: &P, tables: &T) -> bool {
    tables.device(packet.device()).is_some_and(|device| device.flags & Device::HAS_UPPER != 0)
}
