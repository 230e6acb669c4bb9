//! XDP sends out itself what goes to a backend of another node, and its answers (ADR 0019).
//!
//! Refuses whatever the stack has not let out before: the first packets of each direction go through the stack, its
//! filters and its policies. What is not sent is translated as without this, and handed on.

use super::road::{self, Of};
use super::{Step, flows};
use crate::addr::Ip;
use crate::config::Device;
use crate::event::{Event, Verdict};
use crate::flow::{Flow, Kind, Side, state};
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::tables::Tables;

/// Whether packets of a flow may leave by another device: those to a backend of another node, and its answers.
#[inline(always)]
pub(super) const fn may_leave(flow: &Flow) -> bool {
    matches!(flow.kind, Kind::UNMASQUERADE) || flow.flags & Flow::MASQUERADED != 0
}

/// Decides whether a packet of the flow in `scratch.flow` leaves from here. If so, `scratch.flow` becomes the half that
/// belongs to its way out, whose key is in `scratch.twin_key`, and `scratch.route` the way.
#[inline(never)]
pub(super) fn prepare<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> bool {
    scratch.twin_key.tuple = scratch.flow.to;
    scratch.twin_key.protocol = scratch.key.protocol;
    scratch.twin_key.side = Side::EGRESS;
    if !may_leave(&scratch.flow)
        || scratch.flow.state & state::ESTABLISHED == 0
        || !tables.flow(&scratch.twin_key, &mut scratch.twin)
        || !is_let_out(scratch)
    {
        return false;
    }
    if let Err(why) = find_way(packet, tables, scratch) {
        tables.count(why);
        return false;
    }
    flows::touch(tables, &scratch.twin_key, &scratch.twin, &scratch.view);
    scratch.flow = scratch.twin;
    true
}

/// Whether the stack has let out a packet of this direction before.
#[inline(always)]
fn is_let_out(scratch: &Scratch) -> bool {
    let twin = &scratch.twin;
    let belongs = match scratch.flow.kind {
        // Its source is chosen when the first one leaves.
        Kind::FORWARD => twin.kind == Kind::MASQUERADE && twin.to.source != Ip::UNSPECIFIED,
        Kind::UNMASQUERADE => twin.kind == Kind::REPLY,
        _ => false,
    };
    belongs && twin.state & state::ESTABLISHED != 0
}

/// Finds the way into `scratch.route` and counts the hop; else says what is against it.
#[inline(always)]
fn find_way<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    scratch: &mut Scratch,
) -> Result<(), Event> {
    let device = tables.device(packet.device()).ok_or(Event::KeptLink)?;
    let hops = road::find(packet, scratch, &device, Of::Flow)?;
    let device = tables.device(scratch.route.device);
    if device.is_none_or(|device| device.flags & Device::TAKES_FRAMES == 0) {
        return Err(Event::KeptDevice);
    }
    road::count_hop(&mut scratch.view, hops);
    Ok(())
}

/// What is left to do for a packet that has its addresses.
#[inline(always)]
pub(super) fn out<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    scratch.key = scratch.twin_key;
    road::take(packet, tables, scratch)
}
