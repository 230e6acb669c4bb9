//! Packets straight to the address of a backend: they are not translated, but their tuple matters.
//!
//! If a client uses one port for such a packet and for a flow through a service, both have the same tuple towards the
//! backend. The later of the two gets another source port. A packet seen here is recorded for flows that begin later
//! (`ports::reserve`), and its port is changed where such a flow was first (ADR 0013). For clients outside only a SYN
//! is recorded, and a SYN to the tuple of an open flow is left alone.

use crate::addr::Protocol;
use crate::event::{Event, PassReason, Verdict};
use crate::flow::{Entry, Kind, Shown, Side};
use crate::forward::begin::ports;
use crate::forward::{Begin, Choice, Found, Next, Step, begin};
use crate::hash;
use crate::packet::Packet;
use crate::service::{Backend, Service};
use crate::tables::{Clock, Filters, Flows, Node};
use crate::wire::Headers;

/// Finds the flow of a packet from a pod to a possible backend, where the packet needs one; most need none.
///
/// A packet whose port is changed has a flow of service 0. Where that flow is to be begun, `choice` and `begin` hold
/// its properties.
#[inline(always)]
pub(in crate::forward) fn find<P: Packet, T: Clock + Filters + Flows>(
    packet: &P,
    tables: &T,
    headers: &Headers,
    found: &mut Found,
    choice: &mut Choice,
    begin: &mut Begin,
) -> Step<Next> {
    let Headers { view, key, .. } = headers;
    let is_syn = view.is_syn();
    let is_there =
        found.look_up(tables, key) && found.flow.kind == Kind::FORWARD && found.flow.service == 0;
    if is_there {
        // A SYN that is sent again belongs to the flow that the first one began.
        if !is_syn || found.flow.shown == Shown::NOTHING {
            return Ok(Next::Follow);
        }
        tables.count(Event::FlowReused);
    } else {
        let hash = hash::whole(&key.tuple, key.protocol);
        // Since the record no flow has kept this port (`ports::reserve`). A SYN is examined all the same: the record
        // may be that of an old connection, beside a flow that has its tuple.
        if !is_syn && tables.is_direct(hash) {
            return Err(Verdict::Pass(PassReason::NotOurs));
        }
        // A TCP connection that is open keeps its port, by which the server knows it.
        let may_begin = is_syn || view.protocol != Protocol::TCP;
        if !may_begin || !is_taken(tables, headers, found) {
            tables.put_direct(hash);
            return Err(Verdict::Pass(PassReason::NotOurs));
        }
    }
    // Service 0, which no Service has, marks a direct flow (`is_taken`).
    choice.service = Service::default();
    choice.backend_id = 0;
    choice.backend = Backend::default();
    choice.backend.ip = key.tuple.destination;
    choice.backend.port = key.tuple.destination_port;
    *begin = Begin::of(packet, tables, view, is_there);
    Ok(Next::Direct)
}

/// Records a SYN from outside straight to a possible backend.
///
/// A flow through a service that is over gives its tuple up: otherwise the reply to the SYN would be translated as one
/// of that flow, and never reach its socket.
#[inline(never)]
pub(in crate::forward) fn record_outside<T: Clock + Filters + Flows + Node>(
    tables: &T,
    headers: &Headers,
    found: &mut Found,
) {
    if is_taken(tables, headers, found) {
        let Found { answers: Entry { key, flow }, visited, .. } = found;
        if !ports::is_over(tables, key, flow, tables.now(), visited) {
            // The SYN may be the first packet of that flow, which XDP has translated.
            return;
        }
        remove(tables, headers, found);
    }
    tables.put_direct(hash::whole(&headers.key.tuple, headers.key.protocol));
}

/// Removes the flow of the reply in `found.answers`, with all entries of that flow. Overwrites `found.key` and
/// `found.flow` with the fields from which the keys of the other entries derive.
#[inline(always)]
fn remove<T: Clock + Filters + Flows>(tables: &T, headers: &Headers, found: &mut Found) {
    let Found { key, flow, answers, visited, .. } = found;
    answers.key.write_opposite(&answers.flow, &mut visited.key);
    let has_forward = tables.flow(&visited.key, &mut visited.flow);
    // The client may have begun a flow to another backend from the same port: that flow stays.
    if has_forward && visited.flow.to.is_reverse_of(&answers.key.tuple) {
        tables.remove_flow(&visited.key);
    }
    *key = headers.key;
    flow.to = key.tuple;
    flow.kind = Kind::FORWARD;
    flow.flags = answers.flow.flags;
    begin::end_tail(tables, found);
}

/// Whether the replies to this packet belong to a flow through a service.
#[inline(always)]
fn is_taken<T: Clock + Filters + Flows>(tables: &T, headers: &Headers, found: &mut Found) -> bool {
    found.find_answers(tables, headers, Side::EGRESS) && found.answers.flow.service != 0
}
