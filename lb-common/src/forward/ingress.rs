//! Packets that come in: requests of clients to frontends, and replies of backends to an address of this node.

use crate::event::{PassReason, Translation, Verdict};
use crate::flow::{Kind, Side};
use crate::forward::begin::ports;
use crate::forward::exit::{self, ExitTo};
use crate::forward::life::tiers;
use crate::forward::parts::{Part, Parts, refuse, touch};
use crate::forward::{Found, Next, Role, Scratch, Step};
use crate::packet::Packet;
use crate::tables::Tables;
use crate::wire::Piece;

/// Handles any packet that comes in by an interface.
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
    if packet.is_at_xdp() && !view.is_for_xdp() {
        return Err(Verdict::Pass(PassReason::LeftToTc));
    }
    if view.is_icmp() {
        packet.part(tables, scratch, Part::Icmp)?;
        return refuse(packet, tables, scratch);
    }
    if view.piece != Piece::Whole {
        packet.part(tables, scratch, Part::AssignPorts)?;
    }
    packet.part(tables, scratch, Part::Seek)?;
    if tiers::must_mend(scratch.next, &scratch.found.flow) {
        packet.part(tables, scratch, Part::Mend)?;
        // The flow is gone (`tiers::mend`), so the packet is searched again and begins a new one.
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
        packet.part(tables, scratch, Part::Commit)?;
    }
    if scratch.next == Next::First {
        // The first packet of a flow takes the stack, also where later ones bypass it (ADR 0019, ADR 0021).
        scratch.exit.to = ExitTo::Stack;
        packet.part(tables, scratch, Part::Rewrite)?;
        return Ok(leave(packet, scratch, Translation::NewFlow));
    }
    follow(packet, tables, scratch)
}

/// Handles a packet of a known flow: marks its entry, finds the exit and rewrites the packet.
#[inline(always)]
fn follow<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    let Found { key, flow, .. } = &scratch.found;
    if flow.kind == Kind::REPLY && key.side == Side::INGRESS {
        packet.part(tables, scratch, Part::Delivery)?;
    }
    touch(packet, tables, scratch)?;
    // All lookups precede the first write to the packet (ARCHITECTURE.md, invariant 2).
    if scratch.exit.has_choice {
        packet.part(tables, scratch, Part::Exit)?;
    }
    packet.part(tables, scratch, Part::Rewrite)?;
    if packet.is_at_xdp() && scratch.exit.to == ExitTo::NextHop {
        // A redirected frame skips egress, which would have marked this entry: the flow would expire under traffic.
        touch(packet, tables, scratch)?;
    }
    let what = exit::translation(scratch.found.flow.kind);
    Ok(leave(packet, scratch, what))
}

/// Ends the path of a packet that carries its new addresses. `what`: its translation.
#[inline(always)]
fn leave<P: Packet>(packet: &mut P, scratch: &Scratch, what: Translation) -> Verdict {
    let Scratch { headers, found, exit, .. } = scratch;
    exit::leave(packet, &headers.view, found.flow.kind, exit, what)
}
