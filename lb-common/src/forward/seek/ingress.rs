//! The search for packets that come in: the flow that a packet follows, or what it begins.

use super::shape::Shape;
use super::{GIVE_UP, NOT_OURS, NOT_READY, accelerated};
use crate::addr::Protocol;
use crate::config::Settings;
use crate::event::{PassReason, Redirect, Verdict};
use crate::flow::{Entry, Flow, Kind, Side};
use crate::forward::begin::first;
use crate::forward::classify::{self, Class};
use crate::forward::exit::{self, bypass, redirect};
use crate::forward::life::{self, close, flows, follow};
use crate::forward::rare::direct;
use crate::forward::{Found, Next, Refusal, Role, Scratch, Step, choose, inherited, own};
use crate::packet::Packet;
use crate::service::{Flags, Frontend};
use crate::tables::{Clock, Tables};
use crate::wire::{Headers, View};

/// The packet goes to no frontend.
const NONE: Result<(), Refusal> = Err(Refusal::Pass(PassReason::NotOurs));

/// Decides about a packet that comes in: which flow it follows, or what it begins.
#[inline(always)]
pub(in crate::forward) fn ingress<S: Shape, P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    shape: &mut S,
    scratch: &mut Scratch,
) -> Step<Next> {
    let Some(settings) = tables.settings() else {
        return if S::PLAIN { GIVE_UP } else { NOT_READY };
    };
    let Scratch { headers, found, begin, exit, role, .. } = &mut *scratch;
    let (tuple, view) = (&headers.key.tuple, shape.view(headers));
    let class = classify::ingress(packet, tables, settings, tuple, view, shape.role(*role));
    if class == Class::NoService {
        return NOT_OURS;
    }
    let is_answer = class == Class::Answer;
    // VERIFIER: a pattern: with `!=` this function has 32 bytes of stack more.
    let is_asked = !matches!(class, Class::Backend);
    let at_xdp = packet.is_at_xdp();
    let has_choice = exit::has_choice(packet, settings, Side::INGRESS);
    if S::PLAIN {
        // Both need the whole path: the question for a route, and the delivery to a process of this host.
        let needs_route = has_choice && (is_answer || !at_xdp);
        let needs_delivery = is_answer && shape.role(*role) == Role::Host;
        if !is_asked || needs_route || needs_delivery || close::begins_or_ends(view) {
            return GIVE_UP;
        }
    } else {
        // The working memory still holds the exit of an earlier packet.
        (exit.has_choice, exit.to) = (has_choice, None);
        // A reply that bypasses the stack is translated here, where it comes in, and not at egress (ADR 0021).
        if !is_answer && bypass::is_answer(packet, tables, settings, headers, found, exit) {
            (exit.has_choice, exit.to) = (false, Some(Redirect::Reply));
            return Ok(Next::Follow);
        }
    }
    let tuple = &headers.key.tuple;
    // This test precedes the lookup: with a backend that is a frontend itself, the packet could follow a second flow
    // and be translated twice (ADR 0012).
    if is_asked && accelerated::may_be(packet, tables, settings, tuple, class, shape.role(*role)) {
        if S::PLAIN {
            return GIVE_UP;
        }
        if accelerated::is(tables, headers, found) {
            return Err(Verdict::Pass(PassReason::Accelerated));
        }
    }
    // The lookup of a flow comes first: most packets belong to one, and need no more.
    let is_there = is_asked && shape.look_up(packet, tables, &headers.key, found);
    if !S::PLAIN {
        // An expired entry counts as well: the rest of its flow is removed before the new one begins
        // (`begin::prepare`).
        begin.renews = is_there && found.flow.is_forward();
    }
    // The fast path follows entries of the current tick only (`suffices`), and these have not expired.
    let known = is_there && (S::PLAIN || !life::is_expired(tables, settings, found));
    let (flow, view) = (shape.flow(packet, found), shape.view(headers));
    if known && follow::is_current(tables, settings, flow, view, shape.role(*role), is_answer) {
        if S::PLAIN && !suffices(packet, tables, view, flow, has_choice) {
            return GIVE_UP;
        }
        return Ok(Next::Follow);
    }
    without_entry(packet, tables, shape, scratch, settings, class, known)
}

/// Whether the translation by the entry that was found is all that a packet needs: no mark, no delivery to a process,
/// no return by its interface, no redirect.
#[inline(always)]
fn suffices<P: Packet, T: Clock>(
    packet: &P,
    tables: &T,
    view: &View,
    flow: &Flow,
    has_choice: bool,
) -> bool {
    matches!(flow.kind, Kind::FORWARD | Kind::UNMASQUERADE)
        && !(has_choice && redirect::may_leave(flow))
        && flows::is_up_to_date(packet, tables, view, flow)
}

/// Decides about an incoming packet that the lookup of its flow did not settle. `known`: its entry was found and is
/// alive.
#[inline(always)]
fn without_entry<S: Shape, P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    shape: &S,
    scratch: &mut Scratch,
    settings: &Settings,
    class: Class,
    known: bool,
) -> Step<Next> {
    let Scratch { headers, found, choice, role, .. } = &mut *scratch;
    let (view, tuple) = (shape.view(headers), &headers.key.tuple);
    let (ip, port) = (&tuple.destination, tuple.destination_port);
    // A translated source may be a frontend as well.
    let is_answer = class == Class::Answer;
    let class = if is_answer { classify::frontend(settings, ip, port, view.v4) } else { class };
    let located = match class {
        // A VIP may be an address of the nodes, and then most packets to it are for no Service: they end here. Packets
        // of pods, NodePorts and service ranges need the whole search in any case.
        Class::Frontend { is_in_ranges: false }
            if S::PLAIN
                && shape.role(*role) == Role::External
                && !tables.knows(&Frontend::new(*ip, port, view.protocol)) =>
        {
            NONE
        }
        Class::Frontend { .. } if S::PLAIN => return GIVE_UP,
        Class::Frontend { is_in_ranges } => {
            choice.frontend = Frontend::new(*ip, port, view.protocol);
            choose::locate(tables, settings, choice, is_in_ranges)
        }
        Class::Answer | Class::Backend | Class::NoService => NONE,
    };
    if located == NONE {
        return to_no_frontend(packet, tables, shape, scratch, settings);
    }
    // The packet may be a reply: a connection may have come to the pod directly, from an address of another node that
    // is an external IP here. A datagram may be a request of its own. A ClusterIP is no source, and the bit of a
    // backend may be that of another port of the pod, whose connection has lost its entries.
    let may_continue = view.protocol != Protocol::UDP && !view.is_opening();
    if !known
        && may_continue
        && located.is_ok()
        && is_external_ip(choice.service.flags)
        && shape.role(*role) == Role::Pod
        && tables.may_be_backend(&tuple.source, tuple.source_port)
    {
        return NOT_OURS;
    }
    // A client whose source was forged may have the address of a frontend: then the replies to it begin no flow.
    if !known && is_reply(tables, settings, headers, found) {
        return NOT_OURS;
    }
    // A connection that this node began may have a `NodePort`'s number as its port, and one that a client began may go
    // to an address that is an external IP by now (ADR 0035). A packet of a known flow is a request.
    if !known && own::is_untranslated(packet, tables, settings, headers) {
        return NOT_OURS;
    }
    let (role, service) = (shape.role(*role), &choice.service);
    if located.is_ok() && known && follow::still_good(tables, settings, view, role, found, service)
    {
        return Ok(Next::Follow);
    }
    // This test precedes the refusal: netfilter may still translate connections of a removed Service (ADR 0031).
    inherited::leaves(tables, settings, headers)?;
    if let Err(refusal) = located {
        scratch.refusal = refusal;
        return Ok(Next::Refuse);
    }
    Ok(Next::First)
}

/// Decides about an incoming packet that goes to no frontend: it may go to a backend directly.
#[inline(always)]
fn to_no_frontend<S: Shape, P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    shape: &S,
    scratch: &mut Scratch,
    settings: &Settings,
) -> Step<Next> {
    let Scratch { headers, found, choice, begin, role, .. } = scratch;
    let (view, tuple) = (shape.view(headers), &headers.key.tuple);
    // The pod may address a backend directly: the whole path looks into the filter of backends.
    if S::PLAIN && shape.role(*role) == Role::Pod {
        return GIVE_UP;
    }
    if !classify::is_to_backend(tables, tuple, view, shape.role(*role)) {
        return NOT_OURS;
    }
    if S::PLAIN {
        return GIVE_UP;
    }
    if shape.role(*role) == Role::External {
        direct::record_outside(tables, headers, found);
        return NOT_OURS;
    }
    // A flow to a backend that the packet names itself has no frontend that could be removed.
    choice.frontends_epoch = settings.services.frontends_epoch;
    let next = direct::find(packet, tables, headers, found, choice, begin)?;
    // No other role comes here: at `lo` every packet passes before (`classify::ingress`).
    begin.is_of_pod = first::may_be_pod(settings, &tuple.source);
    Ok(next)
}

/// Whether a frontend is an external IP or a VIP.
#[inline(always)]
const fn is_external_ip(flags: Flags) -> bool {
    flags.has(Flags::EXTERNAL) && !flags.has(Flags::NODE_PORT)
}

/// Whether a packet to a frontend is a reply of a backend in a flow of this node, whose client has a frontend's address
/// and port. As in netfilter, it belongs to that flow: it would make two Services of datagrams talk for ever.
#[inline(never)]
fn is_reply<T: Tables>(
    tables: &T,
    settings: &Settings,
    headers: &Headers,
    found: &mut Found,
) -> bool {
    let Headers { view, key, .. } = headers;
    if view.is_syn() || !classify::is_from_backend(tables, &key.tuple) {
        return false;
    }
    // The entry that was found may be that of an expired flow, which is removed when the new one begins.
    let Entry { key: reply, flow } = &mut found.visited;
    (reply.tuple, reply.protocol, reply.side) = (key.tuple, key.protocol, Side::EGRESS);
    // The replies of a masqueraded flow come in to its translated source.
    tables.flow(reply, flow)
        && flow.kind == Kind::REPLY
        && flow.flags & Flow::MASQUERADED == 0
        // An entry without protection counts for as long as an unanswered flow lives: that needs no lookup of the other
        // direction.
        && (flow.is_protected()
            || !settings.node.lifetimes.is_over(reply, flow, None, tables.now()))
}
