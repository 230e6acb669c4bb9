//! XDP redirect of packets to a backend of another node, and of its replies (ADR 0019).
//!
//! It refuses packets of flows that the stack has not forwarded before: the first packets of each direction pass the
//! stack, its filters and its policies. A packet that is not redirected is translated as usual, and passed on.

use crate::addr::Ip;
use crate::config::Device;
use crate::event::Event;
use crate::flow::{Flow, Kind, Tuple};
use crate::forward::exit::next_hop;
use crate::forward::{Exit, Found};
use crate::packet::Packet;
use crate::tables::{Clock, Flows, Node};
use crate::wire::Headers;

/// Whether packets of a flow may leave by another interface: those to a backend of another node, and its replies.
#[inline(always)]
pub(in crate::forward) const fn may_leave(flow: &Flow) -> bool {
    matches!(flow.kind, Kind::UNMASQUERADE) || flow.flags & Flow::MASQUERADED != 0
}

/// Decides whether a packet leaves from here. If so, it follows from now on the entry of the interface by which it
/// leaves; `exit.route` holds the next hop.
#[inline(never)]
pub(in crate::forward) fn prepare<P: Packet, T: Clock + Flows + Node>(
    packet: &P,
    tables: &T,
    headers: &mut Headers,
    found: &mut Found,
    exit: &mut Exit,
) -> bool {
    let Found { key, flow, visited, .. } = found;
    key.write_leaving_key(flow, &mut visited.key);
    // A SYN is not enough for TCP: both entries must have been marked by a later packet (ADR 0019).
    if !may_leave(flow)
        || flow.shown.established == 0
        || !tables.flow(&visited.key, &mut visited.flow)
        || !is_let_out(flow, &visited.flow)
    {
        return false;
    }
    // The route is that from client to backend or back: the stack would see the same addresses (ADR 0003).
    if let Err(why) = find_next_hop(packet, tables, headers, &flow.to, exit) {
        tables.count(why);
        return false;
    }
    // A redirected packet skips egress. The tuple of the second entry contains both translations, so the packet is
    // rewritten once, from its own tuple to that one.
    (*key, *flow) = (visited.key, visited.flow);
    true
}

/// Whether the stack has let out a packet of this direction before. `leaves`: the entry by which such packets leave.
#[inline(always)]
fn is_let_out(flow: &Flow, leaves: &Flow) -> bool {
    let belongs = match flow.kind {
        // The source of a masquerade is chosen when the first packet leaves.
        Kind::FORWARD => leaves.kind == Kind::MASQUERADE && leaves.to.source != Ip::UNSPECIFIED,
        Kind::UNMASQUERADE => leaves.kind == Kind::REPLY,
        _ => false,
    };
    belongs && leaves.shown.established != 0
}

/// Finds the next hop, and counts the hop; otherwise returns the event that says why not.
#[inline(always)]
fn find_next_hop<P: Packet, T: Clock + Flows + Node>(
    packet: &P,
    tables: &T,
    headers: &mut Headers,
    to: &Tuple,
    exit: &mut Exit,
) -> Result<(), Event> {
    let device = tables.device(packet.device()).ok_or(Event::KeptLink)?;
    // XDP does not see a tag that the card has stripped; the stack would route by the VLAN's interface.
    let may_be_tagged = packet.is_at_xdp() && device.flags & Device::HAS_UPPER != 0;
    if may_be_tagged || !next_hop::is_for_us(packet, &headers.view, &device) {
        return Err(Event::KeptLink);
    }
    next_hop::find(packet, headers, to, exit)?;
    // A frame for an interface that does not accept redirected frames is lost and not counted (ADR 0019).
    let device = tables.device(exit.route.device);
    if device.is_none_or(|device| device.flags & Device::TAKES_FRAMES == 0) {
        return Err(Event::KeptDevice);
    }
    next_hop::count_hop(&mut headers.view, exit.hops);
    Ok(())
}
