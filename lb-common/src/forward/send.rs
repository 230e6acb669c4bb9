//! XDP sends out itself what goes to a backend of another node, and its answers (ADR 0019).
//!
//! Refuses whatever the stack has not let out before: the first packets of each direction go through the stack, its
//! filters and its policies. What is not sent is translated as without this, and handed on.

use super::{Step, close, flows};
use crate::addr::Ip;
use crate::checksum::Difference;
use crate::config::Device;
use crate::event::{DropReason, Event, Sent, Verdict};
use crate::flow::{Kind, Side, state};
use crate::packet::Packet;
use crate::route::{Traffic, Way};
use crate::scratch::Scratch;
use crate::tables::Tables;
use crate::wire::ETHERNET;

/// Offset of the hop limit in an IPv4 header.
const HOPS_V4: usize = 8;
/// Offset of the hop limit in an IPv6 header.
const HOPS_V6: usize = 7;

/// Decides whether a packet of the flow in `scratch.flow` leaves from here. If so, `scratch.flow` becomes the half that
/// belongs to its way out, whose key is in `scratch.twin_key`, and `scratch.route` the way.
#[inline(never)]
pub(super) fn prepare<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &mut Scratch) -> bool {
    scratch.twin_key.tuple = scratch.flow.to;
    scratch.twin_key.protocol = scratch.key.protocol;
    scratch.twin_key.side = Side::EGRESS;
    if scratch.flow.state & state::ESTABLISHED == 0
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
    if !is_for_us(packet, tables, scratch).unwrap_or(false) {
        return Err(Event::KeptLink);
    }
    let (class, hops) = header(packet, scratch).ok_or(Event::KeptLink)?;
    if hops <= 1 {
        return Err(Event::KeptHopLimit);
    }
    let length = (packet.length() - ETHERNET) as u16;
    let traffic = Traffic { v4: scratch.view.v4, class, length };
    let protocol = scratch.key.protocol;
    match packet.route(&scratch.flow.to, protocol, traffic, &mut scratch.route) {
        Way::Known => {}
        Way::TooBig => return Err(Event::KeptTooBig),
        Way::NoNeighbour => return Err(Event::KeptNeighbour),
        Way::None => return Err(Event::KeptRoute),
    }
    let device = tables.device(scratch.route.device);
    if device.is_none_or(|device| device.flags & Device::TAKES_FRAMES == 0) {
        return Err(Event::KeptDevice);
    }
    if scratch.view.v4 {
        let fewer = Difference::NONE.half([hops, protocol.0], [hops - 1, protocol.0]);
        scratch.view.header_checksum = fewer.apply(scratch.view.header_checksum);
    }
    Ok(())
}

/// Whether a router would take it: untagged, and sent to the address of the device itself.
#[inline(always)]
fn is_for_us<P: Packet, T: Tables>(packet: &P, tables: &T, scratch: &Scratch) -> Option<bool> {
    let to: [u8; 6] = packet.read(0)?;
    let device = tables.device(packet.device())?;
    Some(scratch.view.link == ETHERNET as u8 && device.hardware == to)
}

/// Class of traffic and hop limit.
#[inline(always)]
fn header<P: Packet>(packet: &P, scratch: &Scratch) -> Option<(u32, u8)> {
    let words: [u32; 3] = packet.words(ETHERNET)?;
    let [first, second, third] = words.map(u32::to_ne_bytes);
    let [version, service, high, low] = first;
    Some(if scratch.view.v4 {
        let [hops, ..] = third;
        (u32::from_ne_bytes([service, 0, 0, 0]), hops)
    } else {
        let [.., hops] = second;
        (u32::from_ne_bytes([version & 0x0f, service, high, low]), hops)
    })
}

/// What is left to do for a packet that has its addresses.
#[inline(always)]
pub(super) fn out<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    finish(packet, scratch).ok_or(Verdict::Drop(DropReason::RewriteFailed))?;
    let what = if scratch.flow.kind == Kind::REPLY { Sent::Reply } else { Sent::Forward };
    scratch.key = scratch.twin_key;
    close::after(tables, scratch);
    Ok(Verdict::Sent(what))
}

#[inline(always)]
fn finish<P: Packet>(packet: &mut P, scratch: &Scratch) -> Option<()> {
    let at = ETHERNET + if scratch.view.v4 { HOPS_V4 } else { HOPS_V6 };
    let [hops]: [u8; 1] = packet.read(at)?;
    packet.write(at, [hops.wrapping_sub(1)])?;
    packet.set_words(0, scratch.route.hardware)
}
