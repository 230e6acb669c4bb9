//! Packets that go out: replies to a client, flows that leave the node for a remote backend, and packets of this host's
//! processes.

use crate::flow::Side;
use crate::forward::begin::ports;
use crate::forward::exit;
use crate::forward::parts::{Part, Parts, touch};
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
        ports::tries(packet, tables, scratch, Part::Masquerade)?;
    }
    touch(packet, tables, scratch)?;
    packet.part(tables, scratch, Part::Rewrite)?;
    Err(exit::translated(packet, Side::EGRESS, scratch.found.flow.kind))
}
