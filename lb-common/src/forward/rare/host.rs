//! Packets of this host's own processes.
//!
//! TCP sockets that the socket hooks serve are connected to a backend in the first place ([`crate::forward::socket`]).
//! Every other packet to a frontend is translated where it leaves the stack: at an external interface, or at `lo` for
//! frontends at addresses of this node. It continues by the route of its backend, from an address of this node and a
//! port of the reserved range. The stack receives the reply at the interface by which the request left, so that the
//! route back to the frontend is the one that it expects (`rp_filter`, ADR 0027). Netfilter sees the frontend in both
//! directions.

mod delivery;
mod exits;

use crate::addr::Ip;
use crate::config::{Settings, address};
use crate::event::{DropReason, PassReason, Verdict};
use crate::flow::{FlowKey, Side};
use crate::forward::life::{self, follow};
use crate::forward::{
    Asker, Begin, Choice, Found, Next, Refusal, Role, Scratch, Step, begin, choose, classify,
    inherited, own, ready,
};
use crate::hash;
use crate::packet::Packet;
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::Headers;

pub(in crate::forward) use delivery::{delivery, find_delivery};
pub(in crate::forward) use exits::exit;

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
    if known && follow::is_current(tables, settings, &found.flow, view, *role, false) {
        return Ok(());
    }
    // A known flow needs no test of the source: only a packet of this host can have begun it.
    if !known && !is_of_host(tables, &headers.key.tuple.source, *role) {
        return Err(Verdict::Pass(PassReason::NotOurs));
    }
    let located = locate(tables, settings, headers, choice);
    if located.is_ok()
        && known
        && follow::still_good(tables, settings, view, *role, found, &choice.service)
    {
        return Ok(());
    }
    if own::may_be_own(settings, &headers.key.tuple) {
        // The reply to this packet, too, may look like a request to a NodePort.
        own::record_own(tables, settings, headers, found);
    }
    // A packet to no frontend passes in any case, without these lookups.
    if located != Err(Refusal::Pass(PassReason::NotOurs)) {
        if !known && own::is_untranslated(packet, tables, settings, headers) {
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
    // A process of the node is not bound by an external policy Local (contract 2.4).
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
