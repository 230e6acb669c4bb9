//! Packets that go out: replies to a client, flows that leave the node for a remote backend, and packets of this host's
//! processes.

use crate::event::Translation;
use crate::flow::Side;
use crate::forward::begin::mend;
use crate::forward::exit;
use crate::forward::parts::{Part, Parts, touch, tries};
use crate::forward::{Next, Scratch, Stage, Step};
use crate::tables::Tables;
use crate::wire::Piece;

/// Finds the flow of a packet, and follows it.
#[inline(always)]
pub(super) fn path<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    packet.part(tables, scratch, Part::Parse)?;
    let view = &scratch.headers.view;
    if view.is_icmp() {
        return Ok(Stage::Error);
    }
    // Later fragments are not held here: an outgoing interface cannot take a packet in again (ADR 0014).
    if view.piece != Piece::Whole {
        packet.part(tables, scratch, Part::Recall)?;
    }
    packet.part(tables, scratch, Part::SeekOut)?;
    if scratch.next == Next::Host {
        return Ok(Stage::Host);
    }
    if scratch.next == Next::Masquerade {
        // The source is chosen here and not when the flow begins: only now the interface is known by which the packet
        // leaves, and whose address it needs (ADR 0003).
        tries(packet, tables, scratch, Part::Masquerade)?;
    }
    touch(packet, tables, scratch)?;
    packet.part(tables, scratch, Part::Rewrite)?;
    Err(exit::translated(packet, Side::EGRESS, scratch.found.flow.kind))
}

/// Handles a packet of a process of this host to a possible frontend, unless it begins a flow.
#[inline(always)]
pub(super) fn host<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    packet.part(tables, scratch, Part::HostSeek)?;
    if mend::must_mend(scratch.next, &scratch.found.flow) {
        packet.part(tables, scratch, Part::Mend)?;
        // The flow is gone (`mend::mend`), so this search finds the service, and the packet begins another flow.
        if scratch.next == Next::Again {
            packet.part(tables, scratch, Part::HostSeek)?;
        }
    }
    if scratch.next == Next::First {
        return Ok(Stage::HostBegin);
    }
    if scratch.next != Next::Refuse {
        packet.part(tables, scratch, Part::HostExit)?;
    }
    // The exit refuses a packet that is too large for the route to its backend (docs/limits.md, host processes).
    if scratch.next == Next::Refuse {
        return Ok(Stage::Error);
    }
    touch(packet, tables, scratch)?;
    leave(packet, tables, scratch, Translation::Forward)
}

/// Begins a flow of a process of this host.
#[inline(always)]
pub(super) fn begin<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    packet.part(tables, scratch, Part::HostFirst)?;
    // The exit precedes the entries: the route decides about the source, and the packet may be too big for it.
    if scratch.next != Next::Refuse {
        packet.part(tables, scratch, Part::HostExit)?;
    }
    if scratch.next == Next::Refuse {
        return Ok(Stage::Error);
    }
    packet.part(tables, scratch, Part::Prepare)?;
    tries(packet, tables, scratch, Part::ReserveOwn)?;
    packet.part(tables, scratch, Part::Commit)?;
    leave(packet, tables, scratch, Translation::NewFlow)
}

/// Rewrites the packet, which ends its path.
#[inline(always)]
fn leave<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    what: Translation,
) -> Step<Stage> {
    packet.part(tables, scratch, Part::Rewrite)?;
    let Scratch { headers, found, exit, .. } = scratch;
    Err(exit::leave(packet, &headers.view, found.flow.kind, exit, what))
}
