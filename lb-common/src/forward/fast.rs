//! The fast path: plain packets for no Service, and packets of established flows that need no state change.
//!
//! It runs the search of the whole path, compiled for plain packets ([`PlainPacket`]): with constant offsets and at
//! most one lookup of a flow. Where that search gives up, the packet is left, unchanged, to the whole path. In the
//! kernel the whole path is in programs of its own (ADR 0040): its use of the stack and of registers costs nothing
//! here.

use crate::event::Verdict;
use crate::flow::{Flow, Side};
use crate::forward::exit::{self, rewrite};
use crate::forward::seek::shape::{PlainPacket, Shape as _};
use crate::forward::{Next, Role, Scratch, seek};
use crate::packet::Packet;
use crate::tables::Tables;
use crate::wire;

/// Handles a plain packet that comes in, if it is for no Service or its flow needs no state change. `None` leaves the
/// packet to the whole path.
#[inline(always)]
pub fn ingress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Option<Verdict> {
    of_either(packet, tables, scratch, role, Side::INGRESS)
}

/// Handles a plain packet that goes out, if it is for no Service or its flow needs no state change. `None` leaves the
/// packet to the whole path.
#[inline(always)]
pub fn egress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Option<Verdict> {
    of_either(packet, tables, scratch, role, Side::EGRESS)
}

/// Handles a packet of either family.
#[inline(always)]
fn of_either<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
    side: Side,
) -> Option<Verdict> {
    // Each family has an instance of its own, so that every offset in it is a constant: an offset that depends on the
    // family would cost a branch at each read (ADR 0023).
    if wire::is_v4(packet)? {
        of_family::<P, T, true>(packet, tables, scratch, role, side)
    } else {
        of_family::<P, T, false>(packet, tables, scratch, role, side)
    }
}

/// Handles a packet of one family.
#[inline(always)]
fn of_family<P: Packet, T: Tables, const V4: bool>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
    side: Side,
) -> Option<Verdict> {
    let view = wire::plain::<P, V4>(packet, &mut scratch.headers.key, side)?;
    let mut plain = PlainPacket::<V4> { view, role, flow: Flow::default() };
    let next = if side == Side::INGRESS {
        seek::ingress(packet, tables, &mut plain, scratch)
    } else {
        seek::egress(packet, tables, &mut plain, scratch)
    };
    match next {
        Ok(Next::Follow) => Some(follow(packet, &plain, scratch, side)),
        // Neither the packet nor a table has changed yet, so the whole path can begin from the start (ADR 0023).
        Ok(_) => None,
        Err(verdict) => Some(verdict),
    }
}

/// Rewrites a packet whose entry needs no mark.
#[inline(always)]
fn follow<P: Packet, const V4: bool>(
    packet: &mut P,
    plain: &PlainPacket<V4>,
    scratch: &Scratch,
    side: Side,
) -> Verdict {
    let flow = plain.flow(packet, &scratch.found);
    // The packet simply continues: every other exit needs the whole path (ADR 0023).
    match rewrite::packet(packet, &plain.view, &scratch.headers.key.tuple, &flow.to) {
        Ok(()) => exit::translated(packet, side, flow.kind),
        Err(verdict) => verdict,
    }
}
