//! Packets of this host's own processes.
//!
//! TCP sockets that the hooks serve are connected to a backend in the first place ([`super::socket`]). Every other packet to a
//! frontend is translated where it leaves the stack: at an external interface, or at `lo` for frontends at addresses of this
//! node. It goes on by the route of its backend, from an address of this node and a port of ours. The answer is shown to the
//! stack at the interface by which the question left, so that the route back to the frontend is the one that it expects
//! (`rp_filter`, ADR 0027). Netfilter sees the frontend on both ways.

use super::parts::{Part, Parts, end};
use super::{
    Asker, Begin, Refusal, Role, choose, flows, follow, inherited, life, next_hop, ports, rewrite,
    tiers,
};
use crate::addr::Ip;
use crate::config::{Settings, address};
use crate::event::{DropReason, PassReason, Sent, Translation, Turn, Verdict};
use crate::flow::{Side, Tuple};
use crate::hash;
use crate::packet::Packet;
use crate::route::RouteResult;
use crate::scratch::{Next, Scratch};
use crate::service::{Backend, Frontend};
use crate::tables::Tables;

/// Whether a packet that goes out may be one of a process of this host to a frontend.
#[inline(always)]
pub(super) fn may_ask<P: Packet>(
    packet: &P,
    settings: &Settings,
    tuple: &Tuple,
    v4: bool,
    role: Role,
) -> bool {
    role != Role::Pod && packet.is_from_host() && choose::may_be_asked(settings, tuple, v4)
}

/// The path of a packet that [`may_ask`].
#[inline(always)]
pub(super) fn path<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    if packet.part(tables, scratch, Part::HostSeek) {
        return true;
    }
    let is_lost = tiers::must_mend(scratch) && packet.part(tables, scratch, Part::Mend);
    if is_lost && packet.part(tables, scratch, Part::HostSeek) {
        return true;
    }
    let is_first = scratch.next == Next::First;
    if is_first && packet.part(tables, scratch, Part::HostFirst) {
        return true;
    }
    if scratch.next != Next::Refuse && packet.part(tables, scratch, Part::HostExit) {
        return true;
    }
    if scratch.next == Next::Refuse {
        return packet.part(tables, scratch, Part::Refuse);
    }
    if is_first {
        let ended = packet.part(tables, scratch, Part::Prepare)
            || ports::tries(packet, tables, scratch, Part::ReserveOwn)
            || packet.part(tables, scratch, Part::Stand);
        if ended {
            return true;
        }
    } else if flows::must_touch(tables, scratch) && packet.part(tables, scratch, Part::Touch) {
        return true;
    }
    if packet.part(tables, scratch, Part::Rewrite) {
        return true;
    }
    if !scratch.exit.stays {
        return end(scratch, Verdict::Sent(Sent::FromHost));
    }
    // A packet that goes to this host by `lo` has its route already; any other is shown to the stack there.
    if scratch.role == Role::Host {
        let what = if is_first { Translation::NewFlow } else { Translation::Forward };
        return end(scratch, Verdict::Translated(what));
    }
    scratch.exit.route.device = Role::LOOPBACK;
    scratch.exit.route.hardware = [0; 3];
    deliver(packet, scratch, Sent::ToHost)
}

/// Finds the flow of a packet of this host, or its service.
#[inline(always)]
pub(super) fn seek<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    if is_translated(tables, scratch) {
        return end(scratch, Verdict::Pass(PassReason::Unchanged));
    }
    scratch.next = Next::Follow;
    let is_there =
        scratch.found.look_up(tables, &scratch.headers.key) && scratch.found.flow.is_forward();
    let known = is_there && !life::is_expired(tables, settings, scratch);
    if known
        && follow::is_current(tables, settings, &scratch.found.flow, &scratch.headers.view, false)
    {
        return false;
    }
    let located = locate(tables, settings, scratch);
    if located.is_ok() && known && follow::still_good(tables, settings, scratch) {
        return false;
    }
    let is_asked = located != Err(Refusal::Pass(PassReason::NotOurs));
    if is_asked && inherited::ends(tables, settings, scratch) {
        return true;
    }
    if let Err(refusal) = located {
        (scratch.next, scratch.refusal) = (Next::Refuse, refusal);
    } else {
        scratch.begin.renews = is_there;
        scratch.next = Next::First;
    }
    false
}

/// Whether the packet is what another interface has made of one already: its backend may be a frontend itself.
#[inline(always)]
fn is_translated<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let to = &scratch.headers.key.tuple;
    if !tables.is_in_use(&to.destination, to.destination_port) {
        return false;
    }
    scratch.found.find_answers(tables, &scratch.headers, Side::INGRESS)
        && scratch.found.answers.flow.is_answer()
}

/// Finds the service that a process asks for.
#[inline(always)]
fn locate<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), Refusal> {
    let tuple = &scratch.headers.key.tuple;
    let (ip, port) = (tuple.destination, tuple.destination_port);
    scratch.choice.frontend = Frontend::new(ip, port, scratch.headers.view.protocol);
    if ip.is_loopback() {
        return choose::locate_loopback(tables, settings, &mut scratch.choice);
    }
    let is_near = choose::is_near(settings, &ip, port, scratch.headers.view.v4);
    choose::locate(tables, settings, &mut scratch.choice, is_near)
}

/// Chooses the backend of a packet that begins a flow. External policies do not bind processes of this host.
#[inline(always)]
pub(super) fn first<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let source = scratch.headers.key.tuple.source;
    if source.is_martian() && !(scratch.role == Role::Host && source.is_loopback()) {
        return end(scratch, Verdict::Pass(PassReason::Martian));
    }
    if !follow::may_begin(&scratch.headers.view) {
        return end(scratch, Verdict::Pass(PassReason::NoFlow));
    }
    let now = tables.now();
    let hash = hash::tuple(&scratch.headers.key.tuple, scratch.headers.view.protocol);
    scratch.choice.asker = Asker { client: source, source, hash, local: 1 };
    if let Err(refusal) = choose::choose(tables, &mut scratch.choice, now) {
        (scratch.next, scratch.refusal) = (Next::Refuse, refusal);
        return false;
    }
    scratch.pair.forward.to = scratch.headers.key.tuple;
    if source.is_loopback() {
        // Nobody answers that address but this host; nor has the kernel a route from it.
        let own = tables.settings().map(|settings| settings.node(scratch.headers.view.v4));
        let Some(own) = own.filter(|own| !own.is_unspecified()) else {
            return end(scratch, Verdict::Drop(DropReason::NoSourceAddress));
        };
        scratch.pair.forward.to.source = own;
    }
    scratch.pair.forward.to.destination = scratch.choice.backend.ip;
    scratch.pair.forward.to.destination_port = scratch.choice.backend.port;
    scratch.begin = Begin {
        shown: flows::shown(&scratch.headers.view),
        expected: flows::acknowledged(packet, &scratch.headers.view),
        renews: scratch.begin.renews,
        now,
        masquerade: false,
        port_stays: rewrite::port_stays(packet, &scratch.headers.view),
        may_turn: false,
        source: Ip::UNSPECIFIED,
        device: packet.device(),
    };
    false
}

/// Finds the way to the backend of the packet's flow, found or in the making: to this host itself (`scratch.exit.stays`), or by
/// `scratch.exit.route`. For a packet that begins a flow also the address under which it goes there.
#[inline(always)]
pub(super) fn exit<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let is_first = scratch.next == Next::First;
    let to = if is_first { &scratch.pair.forward.to } else { &scratch.found.flow.to };
    scratch.exit.stays = tables.address(&to.destination) & address::NODE != 0;
    if !scratch.exit.stays {
        let length = next_hop::length_of_any(packet, &scratch.headers.view);
        match packet.route_of_host(
            to,
            scratch.headers.key.protocol,
            length,
            &mut scratch.exit.route,
        ) {
            RouteResult::Known | RouteResult::NoNeighbour => {}
            RouteResult::TooBig => {
                (scratch.next, scratch.refusal) = (Next::Refuse, Refusal::Reject(Turn::TooBig));
                return false;
            }
            RouteResult::None => return end(scratch, Verdict::Drop(DropReason::NoRoute)),
        }
    }
    if is_first {
        scratch.begin.source = source(packet, tables, scratch);
    }
    false
}

/// The address of this node under which a packet reaches its backend: its own, unless no answer would come back to that.
#[inline(always)]
fn source<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &Scratch) -> Ip {
    let leaves_elsewhere = !scratch.exit.stays && scratch.exit.route.device != packet.device();
    let is_far = scratch.choice.backend.flags & Backend::LOCAL == 0;
    if leaves_elsewhere && !is_far {
        return source_on_route(packet, tables, scratch);
    }
    if leaves_elsewhere && let Some(device) = tables.device(scratch.exit.route.device) {
        // The answer of another node must come back by this device.
        let of_device = if scratch.headers.view.v4 { device.source4 } else { device.source6 };
        if !of_device.is_unspecified() {
            return of_device;
        }
    }
    scratch.pair.forward.to.source
}

/// The source that the route to a backend of this node has, as a connection of the node itself to it would (Linux 6.7).
///
/// VERIFIER: a function of its own, as the question about the way is.
#[inline(never)]
fn source_on_route<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &Scratch) -> Ip {
    let to = &scratch.pair.forward.to;
    let source = packet.source(to, scratch.headers.key.protocol, scratch.exit.route.device);
    let is_own = |source: &Ip| tables.settings().is_some_and(|all| all.may_be_own(source));
    source.filter(is_own).unwrap_or(to.source)
}

/// Finds the interface at which the stack is shown an answer to this host, into `scratch.exit.route`, with its link-layer address.
/// The packet stays (`scratch.exit.stays`) where it comes in by it anyway, or where it is gone: then the stack judges the packet as
/// it is.
#[inline(always)]
pub(super) fn delivery<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let index = scratch.found.flow.client_device;
    scratch.exit.stays = true;
    if scratch.role == Role::Host || index == packet.device() {
        return false;
    }
    let Some(device) = tables.device(index) else { return false };
    if packet.is_frame() {
        return end(scratch, Verdict::Pass(PassReason::LeftToTc));
    }
    let [a, b, c, d, e, f] = device.hardware;
    scratch.exit.route.device = index;
    scratch.exit.route.hardware =
        [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, 0, 0]), 0];
    scratch.exit.stays = false;
    false
}

/// Ends the path of a packet that the stack is shown at the interface of `scratch.exit.route`.
#[inline(always)]
pub(super) fn deliver<P: Packet>(packet: &mut P, scratch: &mut Scratch, what: Sent) -> bool {
    let [first, second, _] = scratch.exit.route.hardware;
    let [[a, b, c, d], [e, f, _, _]] = [first, second].map(u32::to_ne_bytes);
    match packet.write(0, [a, b, c, d, e, f]) {
        Some(()) => end(scratch, Verdict::Sent(what)),
        None => end(scratch, Verdict::Drop(DropReason::RewriteFailed)),
    }
}
