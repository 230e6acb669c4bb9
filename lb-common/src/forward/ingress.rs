//! Packets that come in: requests of clients to frontends, and replies of backends to an address of this node.

use crate::event::{PassReason, Redirect, Translation, Verdict};
use crate::flow::{Kind, Side};
use crate::forward::begin::mend;
use crate::forward::exit;
use crate::forward::life::flows;
use crate::forward::parts::{Part, Parts, touch, tries};
use crate::forward::{Next, Scratch, Stage, Step};
use crate::packet::Packet;
use crate::tables::Tables;
use crate::wire::Piece;

/// Finds the flow of a packet, or its service. A packet that changes no entry follows its flow at once; at XDP that
/// includes the mark for a packet that leaves by a next hop.
#[inline(always)]
pub(super) fn seek<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    packet.part(tables, scratch, Part::Parse)?;
    let view = &scratch.headers.view;
    // At XDP this test precedes all others: the programs there have no parts for ICMP and fragments, and tc receives
    // the packet next, unchanged (ADR 0012).
    if packet.is_at_xdp() && !view.is_for_xdp() {
        return Err(Verdict::Pass(PassReason::LeftToTc));
    }
    if view.is_icmp() {
        return Ok(Stage::Error);
    }
    // The ports are a part of the key, so a later fragment needs those of its datagram before the search (ADR 0014).
    if view.piece != Piece::Whole {
        packet.part(tables, scratch, Part::AssignPorts)?;
    }
    packet.part(tables, scratch, Part::Seek)?;
    if let Some(stage) = after_search(scratch.next) {
        return Ok(stage);
    }
    let Scratch { headers, found, next, .. } = &*scratch;
    if mend::must_mend(*next, &found.flow)
        || flows::must_touch(packet, tables, &headers.view, &found.flow)
    {
        return Ok(Stage::Follow);
    }
    find_delivery(packet, tables, scratch)?;
    leave(packet, tables, scratch)
}

/// The stage of a packet that follows no flow.
#[inline(always)]
const fn after_search(next: Next) -> Option<Stage> {
    match next {
        Next::Refuse => Some(Stage::Error),
        Next::First | Next::Direct => Some(Stage::Begin),
        Next::Follow | Next::Host | Next::Masquerade | Next::Again | Next::Whole => None,
    }
}

/// Follows a flow: restores its displaced entries and marks the one that was found as seen.
#[inline(always)]
pub(super) fn follow<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    // Displaced entries are restored before the mark, which may protect the flow: that needs all of its entries
    // (`tiers::raise`).
    if mend::must_mend(scratch.next, &scratch.found.flow) {
        packet.part(tables, scratch, Part::Mend)?;
        // The flow is gone (`mend::mend`), so the packet is searched again and begins a new one. The ports of a
        // fragment are known by now, and must not be taken from the record again.
        if scratch.next == Next::Again {
            packet.part(tables, scratch, Part::Seek)?;
            if let Some(stage) = after_search(scratch.next) {
                return Ok(stage);
            }
        }
    }
    find_delivery(packet, tables, scratch)?;
    touch(packet, tables, scratch)?;
    leave(packet, tables, scratch)
}

/// Begins a flow to a backend of a service, or one to the backend that the packet names itself, which it then follows.
#[inline(always)]
pub(super) fn begin<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    if scratch.next == Next::First {
        packet.part(tables, scratch, Part::First)?;
    }
    if scratch.next == Next::Refuse {
        return Ok(Stage::Error);
    }
    // These three keep their order: the reply is in the tables before the forward entry, so no packet of the client
    // leaves by a tuple whose reply would be unknown (ADR 0009).
    packet.part(tables, scratch, Part::Prepare)?;
    tries(packet, tables, scratch, Part::Reserve)?;
    packet.part(tables, scratch, Part::Commit)?;
    if scratch.next == Next::Direct {
        return Ok(Stage::Follow);
    }
    // The first packet of a flow takes the stack, also where later ones bypass it (ADR 0019, ADR 0021).
    scratch.exit.to = None;
    packet.part(tables, scratch, Part::Rewrite)?;
    Err(verdict(packet, scratch, Translation::NewFlow))
}

/// Finds the interface at which the stack receives a reply to this host.
#[inline(always)]
fn find_delivery<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    if scratch.found.flow.kind == Kind::REPLY && scratch.found.key.side == Side::INGRESS {
        packet.part(tables, scratch, Part::Delivery)?;
    }
    Ok(())
}

/// Finds the exit of a packet of a known flow and rewrites the packet.
#[inline(always)]
fn leave<P: Parts<T>, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> Step<Stage> {
    // All lookups precede the first write to the packet (ARCHITECTURE.md, invariant 2).
    if scratch.exit.has_choice {
        packet.part(tables, scratch, Part::Exit)?;
    }
    packet.part(tables, scratch, Part::Rewrite)?;
    let bypasses = matches!(scratch.exit.to, Some(Redirect::Forward | Redirect::Reply));
    if packet.is_at_xdp() && bypasses {
        // A redirected frame skips egress, which would have marked this entry: the flow would expire under traffic.
        touch(packet, tables, scratch)?;
    }
    let what = exit::translation(scratch.found.flow.kind);
    Err(verdict(packet, scratch, what))
}

/// Ends the path of a packet that carries its new addresses. `what`: its translation.
#[inline(always)]
fn verdict<P: Packet>(packet: &mut P, scratch: &Scratch, what: Translation) -> Verdict {
    let Scratch { headers, found, exit, .. } = scratch;
    exit::leave(packet, &headers.view, found.flow.kind, exit, what)
}
