//! Packets of a pod straight to the address of a backend: none of our business, but for their tuple.
//!
//! A flow through a service becomes the same tuple when its client uses one port for both. Whichever
//! of the two comes later gets another source port: what is seen here is noted for
//! flows that begin later (`flows::reserve`), and shifted where such a flow was first (ADR 0013).

use super::{Step, flows, pass, rewrite};
use crate::addr::Protocol;
use crate::event::{Event, PassReason};
use crate::flow::{Kind, Side};
use crate::hash;
use crate::packet::Packet;
use crate::scratch::{Begin, Scratch, Turned};
use crate::service::{Backend, Service};
use crate::tables::Tables;

/// Finds the flow of a packet from a pod to what may be a backend, where it needs one, into `scratch.flow`; most need
/// none. What is shifted is a flow of service 0. False: it is to be begun, as `scratch` says.
#[inline(never)]
pub(super) fn find<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<bool> {
    let is_syn = scratch.view.is_syn();
    if tables.flow(&scratch.key, &mut scratch.flow)
        && scratch.flow.kind == Kind::FORWARD
        && scratch.flow.service == 0
    {
        if !is_syn || scratch.flow.state == 0 {
            return Ok(true);
        }
        tables.count(Event::FlowReused);
    } else {
        let hash = hash::whole(&scratch.key.tuple, scratch.key.protocol);
        if !is_syn && tables.is_direct(hash) {
            return pass(PassReason::NotOurs);
        }
        let may_begin = is_syn || scratch.view.protocol != Protocol::TCP;
        if !may_begin || !is_taken(tables, scratch) {
            tables.put_direct(hash);
            return pass(PassReason::NotOurs);
        }
    }
    scratch.service = Service::default();
    scratch.backend_id = 0;
    scratch.backend = Backend::default();
    scratch.backend.ip = scratch.key.tuple.destination;
    scratch.backend.port = scratch.key.tuple.destination_port;
    let state = flows::shown(&scratch.view);
    scratch.begin = Begin {
        state,
        now: tables.now(),
        masquerade: false,
        turn: Turned::Nobody,
        port_stays: rewrite::port_stays(packet, &scratch.view),
        device: packet.device(),
    };
    Ok(false)
}

/// Whether the answers to this packet belong to a flow through a service.
#[inline(always)]
fn is_taken<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    scratch.key.tuple.write_reversed(&mut scratch.twin_key.tuple);
    scratch.twin_key.protocol = scratch.key.protocol;
    scratch.twin_key.side = Side::EGRESS;
    tables.flow(&scratch.twin_key, &mut scratch.twin) && scratch.twin.service != 0
}
