//! XDP redirect of packets to a backend of another node, and of its replies (ADR 0019).
//!
//! It refuses packets of flows that the stack has not forwarded before: the first packets of each direction pass the
//! stack, its filters and its policies. A packet that is not redirected is translated as usual, and passed on.

use super::Found;
use super::next_hop::{self, Of};
use crate::addr::Ip;
use crate::config::Device;
use crate::event::Event;
use crate::flow::{Flow, Kind, Side};
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::tables::Tables;

/// Whether packets of a flow may leave by another device: those to a backend of another node, and its answers.
#[inline(always)]
pub(super) const fn may_leave(flow: &Flow) -> bool {
    matches!(flow.kind, Kind::UNMASQUERADE) || flow.flags & Flow::MASQUERADED != 0
}

/// Decides whether a packet of the flow in `scratch.found` leaves from here. If so, it follows from now on the entry that belongs
/// to its way out, and `scratch.exit.route` is the way.
#[inline(never)]
pub(super) fn prepare<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> bool {
    let Found { key, flow, visited, .. } = &mut scratch.found;
    visited.key.tuple = flow.to;
    visited.key.protocol = key.protocol;
    visited.key.side = Side::EGRESS;
    if !may_leave(flow)
        || flow.shown.established == 0
        || !tables.flow(&visited.key, &mut visited.flow)
        || !is_let_out(flow, &visited.flow)
    {
        return false;
    }
    if let Err(why) = find_way(packet, tables, scratch) {
        tables.count(why);
        return false;
    }
    let found = &mut scratch.found;
    (found.key, found.flow) = (found.visited.key, found.visited.flow);
    true
}

/// Whether the stack has let out a packet of this direction before. `leaves`: the entry by which it does.
#[inline(always)]
fn is_let_out(flow: &Flow, leaves: &Flow) -> bool {
    let belongs = match flow.kind {
        // Its source is chosen when the first one leaves.
        Kind::FORWARD => leaves.kind == Kind::MASQUERADE && leaves.to.source != Ip::UNSPECIFIED,
        Kind::UNMASQUERADE => leaves.kind == Kind::REPLY,
        _ => false,
    };
    belongs && leaves.shown.established != 0
}

/// Finds the way into `scratch.exit.route` and counts the hop; else says what is against it.
#[inline(always)]
fn find_way<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    scratch: &mut Scratch,
) -> Result<(), Event> {
    let device = tables.device(packet.device()).ok_or(Event::KeptLink)?;
    let hops = next_hop::find(packet, scratch, &device, Of::Flow)?;
    let device = tables.device(scratch.exit.route.device);
    if device.is_none_or(|device| device.flags & Device::TAKES_FRAMES == 0) {
        return Err(Event::KeptDevice);
    }
    next_hop::count_hop(&mut scratch.headers.view, hops);
    Ok(())
}
