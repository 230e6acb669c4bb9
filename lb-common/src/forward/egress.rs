//! Packets that go out: replies to a client, flows that leave the node for a remote backend, and packets of this host's
//! processes.

use crate::event::Verdict;
use crate::flow::Side;
use crate::forward::begin::ports;
use crate::forward::exit;
use crate::forward::parts::{Part, Parts, refuse, touch};
use crate::forward::rare::host;
use crate::forward::{Next, Role, Scratch, Step};
use crate::tables::Tables;
use crate::wire::Piece;

/// Handles any packet that goes out by an interface.
#[inline(always)]
pub fn whole<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    (scratch.role, scratch.headers.key.side) = (role, Side::EGRESS);
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
    if view.is_icmp() {
        packet.part(tables, scratch, Part::Icmp)?;
        return refuse(packet, tables, scratch);
    }
    // Later fragments are not held here: an outgoing interface cannot take a packet in again (ADR 0014).
    if view.piece != Piece::Whole {
        packet.part(tables, scratch, Part::Recall)?;
    }
    packet.part(tables, scratch, Part::SeekOut)?;
    if scratch.next == Next::Host {
        return host::path(packet, tables, scratch);
    }
    if scratch.next == Next::Masquerade {
        ports::tries(packet, tables, scratch, Part::Masquerade)?;
    }
    touch(packet, tables, scratch)?;
    packet.part(tables, scratch, Part::Rewrite)?;
    Ok(exit::translated(packet, Side::EGRESS, scratch.found.flow.kind))
}
