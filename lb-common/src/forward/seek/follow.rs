//! Whether a packet belongs to the flow that was found for it, or begins another one.

use crate::addr::Protocol;
use crate::config::Settings;
use crate::event::Event;
use crate::flow::Flow;
use crate::forward::Found;
use crate::forward::choose::SECOND;
use crate::forward::life::flows::is_live;
use crate::service::Service;
use crate::tables::{Clock, Flows, Services};
use crate::wire::{View, tcp};

/// Nanoseconds of silence after which a SYN may take the tuple of an open connection whose backend left.
const ABANDONED: u64 = 120 * SECOND;

/// Whether a packet may follow the flow found for it without another look at its frontend.
/// `is_answer`: its destination can only be a source that we made up.
///
/// A TCP connection goes on whatever becomes of its frontend. A flow of UDP or SCTP goes on if its backend is still
/// there, and no frontend was removed since its own was looked up: else see [`still_good`]. A SYN answers nothing.
#[inline(always)]
pub(in crate::forward) fn is_current<T: Clock + Flows + Services>(
    tables: &T,
    settings: &Settings,
    flow: &Flow,
    view: &View,
    is_answer: bool,
) -> bool {
    if flow.is_answer() {
        return is_answer && !view.is_syn();
    }
    if view.protocol == Protocol::TCP {
        return !view.is_syn();
    }
    flow.frontends_epoch == settings.services.frontends_epoch
        && tables.epoch(flow.backend) == flow.epoch
}

/// Whether a packet may follow the flow found for it, or must pick again: UDP and SCTP whose backend or service
/// left; TCP where a SYN finds a connection that is over, or one that nobody answered and whose backend left.
#[inline(always)]
pub(in crate::forward) fn still_good<T: Clock + Flows + Services>(
    tables: &T,
    settings: &Settings,
    view: &View,
    found: &mut Found,
    service: &Service,
) -> bool {
    if !found.flow.is_forward() {
        return false;
    }
    if view.protocol == Protocol::TCP {
        return !view.is_syn() || takes_syn(tables, found, service);
    }
    let flow = &found.flow;
    let live = is_live(tables, flow, service.id);
    if !live {
        tables.count(Event::FlowRenewed);
    } else if flow.frontends_epoch != settings.services.frontends_epoch {
        tables.confirm_flow(&found.key, settings.services.frontends_epoch);
    }
    live
}

/// Whether a SYN belongs to the flow that its tuple has already.
///
/// In an open connection it may be doubled or forged: it goes to the backend that the
/// connection has, which answers with a challenge (RFC 9293 3.10.7.4). A client that
/// has forgotten the connection resets it then, and its next SYN begins another one.
#[inline(never)]
fn takes_syn<T: Clock + Flows + Services>(
    tables: &T,
    found: &mut Found,
    service: &Service,
) -> bool {
    let has_opposite = found.find_opposite(tables);
    let (flow, opposite) = (&found.flow, &found.opposite.flow);
    if !has_opposite || flow.shown.is_over(opposite.shown) {
        tables.count(Event::FlowReused);
        return false;
    }
    if is_live(tables, flow, service.id) {
        return true;
    }
    let is_open = flow.shown.established & opposite.shown.established != 0;
    let idle = tables.now().saturating_sub(flow.seen.max(opposite.seen));
    if is_open && idle < ABANDONED {
        return true;
    }
    tables.count(Event::FlowRenewed);
    false
}

/// Whether a packet without a flow may begin one. With TCP a SYN does, and an acknowledgement without FIN or RST: it
/// picks up a connection whose entries were lost (as `nf_conntrack_tcp_loose` does), and Maglev finds the backend
/// that it had. All else belongs to a connection that is over, or to none.
#[inline(always)]
pub(in crate::forward) const fn may_begin(view: &View) -> bool {
    const CONTROL: u8 = tcp::SYN | tcp::FIN | tcp::RST | tcp::ACK;
    view.protocol.0 != Protocol::TCP.0 || matches!(view.tcp_flags & CONTROL, tcp::SYN | tcp::ACK)
}
