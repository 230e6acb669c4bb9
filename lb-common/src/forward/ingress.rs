//! Packets that come in: a client asks a frontend, or a backend answers one of our own addresses.

use super::host::deliver;
use super::parts::{Part, Parts, refuse, touch};
use super::{Found, Role, Step, next_hop, ports, rewrite, send, short_cut, tiers};
use crate::event::{PassReason, Sent, Translation, Turn, Verdict};
use crate::flow::{Flow, Kind, Side};
use crate::packet::Packet;
use crate::scratch::{Next, Scratch};
use crate::tables::Tables;
use crate::wire::Piece;

/// Handles any packet that comes in by a device.
#[inline(always)]
pub fn whole<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    (scratch.role, scratch.headers.key.side) = (role, Side::INGRESS);
    path(packet, tables, scratch).unwrap_or_else(|verdict| verdict)
}

#[inline(always)]
fn path<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    packet.part(tables, scratch, Part::Parse)?;
    let view = &scratch.headers.view;
    if packet.is_frame() && !view.is_for_xdp() {
        return Err(Verdict::Pass(PassReason::LeftToTc));
    }
    if view.is_icmp() {
        packet.part(tables, scratch, Part::Icmp)?;
        return refuse(packet, tables, scratch);
    }
    if view.piece != Piece::Whole {
        packet.part(tables, scratch, Part::Place)?;
    }
    packet.part(tables, scratch, Part::Seek)?;
    if tiers::must_mend(scratch.next, &scratch.found.flow) {
        packet.part(tables, scratch, Part::Mend)?;
        if scratch.next == Next::Again {
            packet.part(tables, scratch, Part::Seek)?;
        }
    }
    if scratch.next == Next::First {
        packet.part(tables, scratch, Part::First)?;
    }
    if scratch.next == Next::Refuse {
        return refuse(packet, tables, scratch);
    }
    if matches!(scratch.next, Next::First | Next::Direct) {
        packet.part(tables, scratch, Part::Prepare)?;
        ports::tries(packet, tables, scratch, Part::Reserve)?;
        packet.part(tables, scratch, Part::Stand)?;
    }
    if scratch.next == Next::First {
        packet.part(tables, scratch, Part::Rewrite)?;
        return Ok(leave(packet, &scratch.found.flow, Translation::NewFlow));
    }
    follow(packet, tables, scratch)
}

/// A packet of a known flow.
#[inline(always)]
fn follow<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    if is_to_host(&scratch.found) {
        packet.part(tables, scratch, Part::Delivery)?;
    }
    touch(packet, tables, scratch)?;
    if scratch.exit.may_bypass && !scratch.exit.bypasses {
        packet.part(tables, scratch, Part::Bypass)?;
    }
    packet.part(tables, scratch, Part::Rewrite)?;
    if scratch.exit.bypasses {
        if packet.is_frame() {
            // It counts for the entry that leaves, as for the one that came in.
            touch(packet, tables, scratch)?;
        }
        let Scratch { headers, found, exit, .. } = scratch;
        return next_hop::take(packet, &headers.view, &found.flow, &exit.route);
    }
    if is_to_host(&scratch.found) && !scratch.exit.stays {
        return Ok(deliver(packet, &scratch.exit.route, Sent::ToHost));
    }
    let flow = &scratch.found.flow;
    let what = match flow.kind {
        Kind::REPLY => Translation::Reply,
        Kind::UNMASQUERADE => Translation::Unmasquerade,
        _ => Translation::Forward,
    };
    Ok(leave(packet, flow, what))
}

/// Whether a packet answers one of this host.
#[inline(always)]
fn is_to_host(Found { key, flow, .. }: &Found) -> bool {
    flow.kind == Kind::REPLY && key.side == Side::INGRESS
}

/// Ends the path of a packet that has its addresses.
#[inline(always)]
fn leave<P: Packet>(packet: &mut P, flow: &Flow, what: Translation) -> Verdict {
    if flow.kind == Kind::HAIRPIN {
        return rewrite::turn_round(packet, Turn::Hairpin);
    }
    Verdict::Translated(what)
}

/// Decides whether a packet of a known flow goes past the stack, and by which way.
#[inline(always)]
pub(super) fn bypass<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    Scratch { headers, found, exit, .. }: &mut Scratch,
) {
    exit.bypasses = if packet.is_frame() {
        send::prepare(packet, tables, headers, found, exit)
    } else {
        short_cut::prepare(packet, tables, headers, found, exit)
    };
}
