//! Replies to this host: the interface at which the stack receives them.

use crate::config::Device;
use crate::event::{PassReason, Redirect, Verdict};
use crate::flow::Flow;
use crate::forward::{Exit, Found, Role, Scratch, Step};
use crate::packet::Packet;
use crate::route::RouteResult;
use crate::tables::{Flows, Tables};

/// Stores the interface by which the packets of the flow in `found` leave now, where the route to the frontend has
/// moved since the first one: the stack receives no reply at an interface that is down.
///
/// VERIFIER: a function of its own, so that its stack is not added to that of the route lookup.
#[inline(never)]
pub(super) fn renew_delivery<T: Flows>(tables: &T, found: &mut Found, device: u32) {
    if found.find_opposite(tables) && found.opposite.flow.client_device != device {
        found.opposite.flow.client_device = device;
        // A reply that moves between the tables meanwhile is renewed at the next tick.
        let _put: bool = tables.put_flow(&found.opposite.key, &found.opposite.flow);
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
    let is_there = exit.to.is_some() || flow.client_device == packet.device();
    if is_there || *role == Role::Host || packet.is_at_xdp() {
        return Ok(());
    }
    let request = &mut pair.forward.to;
    flow.to.write_reversed(request);
    // Only the interface is wanted. Without a length the kernel compares the packet itself with the MTU
    // (`bpf_skb_fib_lookup` in net/core/filter.c), and names the interface also where the packet is too big.
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
    exit.to = Some(Redirect::ToHost);
}

/// Finds the interface at which the stack receives a reply of `flow` to this host, into [`Exit::route`], with its
/// link-layer address. No exit is chosen before.
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
