//! The next hop of a packet that bypasses the stack: asked of the kernel's routes before anything is written, with the
//! changes that a router makes.

use super::parts::end;
use crate::addr::Protocol;
use crate::checksum::Difference;
use crate::config::Device;
use crate::event::{DropReason, Event, Sent, Verdict};
use crate::flow::{Kind, Side};
use crate::packet::Packet;
use crate::route::{RouteResult, Traffic};
use crate::scratch::Scratch;
use crate::tables::Tables;
use crate::wire::{ETHERNET, IPV4, IPV6, Piece, View};

/// Offset of the hop limit in an IPv4 header.
const HOPS_V4: usize = 8;
/// Offset of the hop limit in an IPv6 header.
const HOPS_V6: usize = 7;
/// Bytes of a UDP header (RFC 768).
const UDP: usize = 8;
/// Offset of the length of a TCP header in it, in words, in the upper half of a byte (RFC 9293 3.1).
const TCP_LENGTH: usize = 12;

/// The addresses by which a route is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Those of the packet as it came.
    Packet,
    /// Those after its translation.
    Flow,
}

/// Finds the way of a packet that came in by `device`, if a router would take it, into `scratch.exit.route`, and returns its hop
/// limit; else says what is against it.
#[inline(always)]
pub(super) fn find<P: Packet>(
    packet: &P,
    scratch: &mut Scratch,
    device: &Device,
    of: Of,
) -> Result<u8, Event> {
    if !is_for_us(packet, &scratch.headers.view, device).unwrap_or(false) {
        return Err(Event::KeptLink);
    }
    let (class, hops) = header(packet, &scratch.headers.view).ok_or(Event::KeptLink)?;
    if hops <= 1 {
        return Err(Event::KeptHopLimit);
    }
    let length = length(packet, &scratch.headers.view).ok_or(Event::KeptLink)?;
    let traffic = Traffic { v4: scratch.headers.view.v4, class, length };
    let tuple = if of == Of::Packet { &scratch.headers.key.tuple } else { &scratch.found.flow.to };
    match packet.route(tuple, scratch.headers.key.protocol, traffic, &mut scratch.exit.route) {
        RouteResult::Known => Ok(hops),
        RouteResult::TooBig => Err(Event::KeptTooBig),
        RouteResult::NoNeighbour => Err(Event::KeptNeighbour),
        RouteResult::None => Err(Event::KeptRoute),
    }
}

/// Takes a hop off the limit in the header checksum that [`crate::forward::rewrite`] goes on from.
#[inline(always)]
pub(super) const fn count_hop(view: &mut View, hops: u8) {
    if view.v4 {
        let protocol = view.protocol.0;
        let fewer = Difference::NONE.replace_u16([hops, protocol], [hops - 1, protocol]);
        view.header_checksum = fewer.apply(view.header_checksum);
    }
}

/// Finishes a packet of `scratch.found.flow` that has its addresses: the hop, and the link-layer addresses of the way.
#[inline(always)]
pub(super) fn take<P: Packet>(packet: &mut P, scratch: &mut Scratch) -> bool {
    if write(packet, scratch).is_none() {
        return end(scratch, Verdict::Drop(DropReason::RewriteFailed));
    }
    let is_answer = matches!(scratch.found.flow.kind, Kind::REPLY | Kind::UNMASQUERADE);
    end(scratch, Verdict::Sent(if is_answer { Sent::Reply } else { Sent::Forward }))
}

#[inline(always)]
fn write<P: Packet>(packet: &mut P, scratch: &Scratch) -> Option<()> {
    let at = ETHERNET + if scratch.headers.view.v4 { HOPS_V4 } else { HOPS_V6 };
    let [hops]: [u8; 1] = packet.read(at)?;
    let fewer = hops.wrapping_sub(1);
    packet.write(at, [fewer])?;
    if !scratch.headers.view.v4 {
        packet.summed(Difference::NONE.replace_u16([0, hops], [0, fewer]));
    }
    packet.set_words(0, scratch.exit.route.hardware)
}

/// Whether a frame that came in is for another machine, or for all: bridges and promiscuous devices see those as well. What
/// answers it from here would answer for somebody else.
#[inline(always)]
pub(super) fn is_for_another<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    scratch: &Scratch,
) -> bool {
    if scratch.headers.key.side == Side::EGRESS {
        return false;
    }
    let Some(device) = tables.device(packet.device()) else { return false };
    // A packet without a link-layer header has zeros there.
    let Some(to) = packet.read(0) else { return false };
    device.hardware != [0; 6] && to != [0; 6] && to != device.hardware
}

/// Whether a router would take it: untagged, and sent to the router's own address.
#[inline(always)]
fn is_for_us<P: Packet>(packet: &P, view: &View, device: &Device) -> Option<bool> {
    let to: [u8; 6] = packet.read(0)?;
    Some(view.link == ETHERNET as u8 && !packet.is_tagged() && device.hardware == to)
}

/// Class of traffic and hop limit.
#[inline(always)]
fn header<P: Packet>(packet: &P, view: &View) -> Option<(u32, u8)> {
    let words: [u32; 3] = packet.words(ETHERNET)?;
    let [first, second, third] = words.map(u32::to_ne_bytes);
    let [version, service, high, low] = first;
    Some(if view.v4 {
        let [hops, ..] = third;
        (u32::from_ne_bytes([service, 0, 0, 0]), hops)
    } else {
        let [.., hops] = second;
        (u32::from_ne_bytes([version & 0x0f, service, high, low]), hops)
    })
}

/// The same of a packet with options or extension headers, too; 1 where it is cut into segments whose size is not told.
#[inline(always)]
pub(super) fn length_of_any<P: Packet>(packet: &P, view: &View) -> u16 {
    let is_known = view.plain && view.link == ETHERNET as u8 && view.piece == Piece::Whole;
    if packet.segment() == 0 {
        return (packet.length() - view.network(packet)) as u16;
    }
    if is_known { length(packet, view).unwrap_or(1) } else { 1 }
}

/// Bytes of the largest IP packet that a device makes of this plain one.
#[inline(always)]
fn length<P: Packet>(packet: &P, view: &View) -> Option<u16> {
    let segment = packet.segment();
    if segment == 0 {
        return Some((packet.length() - ETHERNET) as u16);
    }
    let network = if view.v4 { IPV4 } else { IPV6 };
    let transport = if view.protocol == Protocol::TCP {
        let [words]: [u8; 1] = packet.read(ETHERNET + network + TCP_LENGTH)?;
        usize::from(words >> 4) * 4
    } else {
        UDP
    };
    Some((network + transport + segment) as u16)
}
