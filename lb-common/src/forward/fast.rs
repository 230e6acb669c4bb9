//! The fast path: plain packets for no Service, and packets of established flows that need no state change.
//!
//! It decides like the whole path, with constant offsets and at most one lookup of a flow, and leaves every other
//! packet to the whole path (`the_fast_path_decides_what_the_whole_one_does`). In the kernel the whole path is a
//! program of its own at tc (ADR 0040) and a function of its own at XDP: its use of the stack and of registers costs
//! nothing here.

use crate::addr::{Ip, Protocol};
use crate::config::Settings;
use crate::event::{PassReason, Translation, Verdict};
use crate::flow::{Flow, FlowKey, Kind, Side, Tuple};
use crate::forward::classify::{self, Class};
use crate::forward::exit::{redirect, rewrite};
use crate::forward::life::{close, flows};
use crate::forward::rare::direct;
use crate::forward::seek::{accelerated, follow};
use crate::forward::{Found, Role, Scratch};
use crate::packet::Packet;
use crate::tables::Tables;
use crate::wire::{self, Headers, View};

const NOT_OURS: Verdict = Verdict::Pass(PassReason::NotOurs);

/// Handles a packet that comes in, if it is a common one. `None` leaves it to the whole path.
#[inline(always)]
pub fn ingress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Option<Verdict> {
    let Scratch { headers: Headers { key, .. }, found: Found { flow, .. }, .. } = scratch;
    if wire::is_v4(packet)? {
        ingress_of::<P, T, true>(packet, tables, (key, flow), role)
    } else {
        ingress_of::<P, T, false>(packet, tables, (key, flow), role)
    }
}

#[inline(always)]
fn ingress_of<P: Packet, T: Tables, const V4: bool>(
    packet: &mut P,
    tables: &T,
    (key, flow): (&mut FlowKey, &mut Flow),
    role: Role,
) -> Option<Verdict> {
    let (view, settings) = read::<P, T, V4>(packet, tables, key, Side::INGRESS)?;
    let tuple = &key.tuple;
    let class = classify::ingress(packet, tables, settings, (tuple, &view), role);
    let is_answer = class == Class::Answer;
    match class {
        Class::NoService => return Some(NOT_OURS),
        Class::Answer if role == Role::Host => return None,
        Class::Backend => return None,
        Class::Answer | Class::Frontend { .. } => {}
    }
    // The fast path has no stack bypass and no XDP redirect. A bypass asks the kernel for a route for each packet; at
    // tc the flow table must tell whether XDP has translated the packet already.
    let redirects = packet.is_at_xdp() && settings.has(Settings::REDIRECTS);
    let is_asked = if packet.is_at_xdp() {
        redirects && is_answer
    } else {
        settings.has(Settings::BYPASSES)
            || accelerated::may_be(packet, tables, settings, (tuple, class), role)
    };
    if is_asked || begins_or_ends(&view) {
        return None;
    }
    // VERIFIER: at tc there is no stack left for a copy of the flow, so it is read into the working memory.
    let copy;
    let found = if packet.is_at_xdp() {
        copy = tables.copy_flow::<V4>(key);
        copy.as_ref()
    } else {
        tables.flow_of::<V4>(key, flow).then_some(&*flow)
    };
    let Some(flow) = found else {
        // The packet may be for a process of this node, at a port that translated sources may have as well.
        let may_ask =
            role == Role::Pod || classify::frontend(settings, &key.tuple, V4) != Class::NoService;
        return if may_ask { None } else { Some(NOT_OURS) };
    };
    let what = match flow.kind {
        Kind::FORWARD => Translation::Forward,
        Kind::UNMASQUERADE => Translation::Unmasquerade,
        _ => return None,
    };
    if redirects && redirect::may_leave(flow)
        || !follow::is_current(tables, settings, flow, &view, is_answer)
    {
        return None;
    }
    follow(packet, tables, (&key.tuple, flow), &view, what)
}

/// Handles a packet that goes out, if it is a common one. `None` leaves it to the whole path.
#[inline(always)]
pub fn egress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Option<Verdict> {
    let Scratch { headers: Headers { key, .. }, found: Found { flow, .. }, .. } = scratch;
    if wire::is_v4(packet)? {
        egress_of::<P, T, true>(packet, tables, (key, flow), role)
    } else {
        egress_of::<P, T, false>(packet, tables, (key, flow), role)
    }
}

#[inline(always)]
fn egress_of<P: Packet, T: Tables, const V4: bool>(
    packet: &mut P,
    tables: &T,
    (key, flow): (&mut FlowKey, &mut Flow),
    role: Role,
) -> Option<Verdict> {
    let (view, settings) = read::<P, T, V4>(packet, tables, key, Side::EGRESS)?;
    match classify::egress(packet, tables, settings, (&key.tuple, V4), role) {
        Class::NoService => {
            let may_be_own = direct::may_be_own(settings, &key.tuple, role);
            return if may_be_own { None } else { Some(NOT_OURS) };
        }
        Class::Answer | Class::Frontend { .. } => return None,
        Class::Backend => {}
    }
    if begins_or_ends(&view) {
        return None;
    }
    if !tables.flow_of::<V4>(key, flow) {
        let may_have_our_source = view.protocol != Protocol::TCP
            && settings.node.is_source_port(key.tuple.source_port)
            && packet.is_from_host();
        let may_be_recorded = may_have_our_source || direct::may_be_own(settings, &key.tuple, role);
        return if may_be_recorded { None } else { Some(NOT_OURS) };
    }
    let what = match flow.kind {
        Kind::REPLY => Translation::Reply,
        // A masquerade without a service is checked again for each packet (`direct::is_stale`). One without a source is
        // still to get it from the whole path.
        Kind::MASQUERADE
            if classify::masquerades(settings, role)
                && flow.service != 0
                && flow.to.source != Ip::UNSPECIFIED =>
        {
            Translation::Masquerade
        }
        _ => return None,
    };
    follow(packet, tables, (&key.tuple, flow), &view, what)
}

/// Whether a packet begins or ends a connection, by its TCP flags.
const fn begins_or_ends(view: &View) -> bool {
    view.tcp_flags & close::NOT_LAST != 0
}

/// Reads the headers of a plain packet, and the settings.
#[inline(always)]
fn read<'t, P: Packet, T: Tables, const V4: bool>(
    packet: &P,
    tables: &'t T,
    key: &mut FlowKey,
    side: Side,
) -> Option<(View, &'t Settings)> {
    let view = wire::plain::<P, V4>(packet, key, side)?;
    Some((view, tables.settings()?))
}

/// Handles a packet of a flow, if its entry needs no mark.
#[inline(always)]
fn follow<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    (tuple, flow): (&Tuple, &Flow),
    view: &View,
    what: Translation,
) -> Option<Verdict> {
    if !flows::is_up_to_date(tables, flow) {
        return None;
    }
    match rewrite::packet(packet, view, tuple, &flow.to) {
        Ok(()) => Some(Verdict::Translated(what)),
        Err(verdict) => Some(verdict),
    }
}
