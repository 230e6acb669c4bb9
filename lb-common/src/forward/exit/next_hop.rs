//! The next hop of a packet that bypasses the stack: looked up in the kernel's routes before anything is written, with
//! the changes that a router makes. The module also finds the source address that a route names.

use crate::addr::{Ip, Protocol};
use crate::checksum::Difference;
use crate::config::{Device, Settings};
use crate::event::Event;
use crate::flow::{Side, Tuple};
use crate::forward::Exit;
use crate::packet::Packet;
use crate::route::{Route, RouteResult, Traffic};
use crate::tables::Node;
use crate::wire::{ETHERNET, Headers, IPV4, IPV6, View};

/// Offset of the hop limit in an IPv4 header.
pub(in crate::forward) const HOPS_V4: usize = 8;
/// Offset of the hop limit in an IPv6 header.
pub(in crate::forward) const HOPS_V6: usize = 7;
/// Bytes of a hop-by-hop header that holds the option of a jumbogram (RFC 2675 2).
const HOP_BY_HOP: usize = 8;
/// Bytes of a UDP header (RFC 768).
const UDP: usize = 8;
/// Bytes of the common header of SCTP (RFC 9260 3.1).
const SCTP: usize = 12;
/// Bytes of a TCP header without options.
const TCP: usize = 20;
/// Offset of the length of a TCP header in that header, in words, in the upper half of a byte (RFC 9293 3.1).
const TCP_LENGTH: usize = 12;

/// Finds the next hop of a packet that [`is_for_us`] by the route of `tuple`, into [`Exit::route`], and its hop limit;
/// otherwise returns the event that says why not.
///
/// VERIFIER: a function beside others that call the kernel, not below them: the route lookup takes much of the stack.
#[inline(never)]
pub(in crate::forward) fn find<P: Packet>(
    packet: &P,
    headers: &Headers,
    tuple: &Tuple,
    exit: &mut Exit,
) -> Result<(), Event> {
    let Headers { view, key, .. } = headers;
    let (class, hops) = header(packet, view).ok_or(Event::KeptLink)?;
    // The stack drops such a packet and sends the ICMP error (ADR 0019).
    if hops <= 1 {
        return Err(Event::KeptHopLimit);
    }
    exit.hops = hops;
    let length = length(packet, view).ok_or(Event::KeptLink)?;
    let traffic = Traffic { v4: view.v4, class, length };
    // Where there is no next hop, the stack fragments, resolves the neighbour or sends an ICMP error (ADR 0019).
    match packet.route(tuple, key.protocol, traffic, &mut exit.route) {
        RouteResult::Known => Ok(()),
        RouteResult::TooBig => Err(Event::KeptTooBig),
        RouteResult::NoNeighbour => Err(Event::KeptNeighbour),
        RouteResult::None => Err(Event::KeptRoute),
    }
}

/// Finds the source address that the kernel would give a packet to `to` by an interface (Linux 6.7); false if it is not
/// known.
///
/// VERIFIER: a function of its own, as [`find`], with five parameters: Linux 7.3 counts those that the compiler left
/// out, too.
#[inline(never)]
fn source<P: Packet>(
    packet: &P,
    to: &Tuple,
    protocol: Protocol,
    device: u32,
    into: &mut Ip,
) -> bool {
    let source = packet.source(to, protocol, device);
    if let Some(source) = source {
        *into = source;
    }
    source.is_some()
}

/// Writes the source address that the route of a packet to `to` by an interface names. False if it names none, or one
/// to which replies would not be recognised (`NodeSettings::own`): then `into` stays.
#[inline(always)]
pub(in crate::forward) fn own_source<P: Packet>(
    packet: &P,
    settings: &Settings,
    to: &Tuple,
    protocol: Protocol,
    device: u32,
    into: &mut Ip,
) -> bool {
    let mut routed = Ip::UNSPECIFIED;
    let is_known = source(packet, to, protocol, device, &mut routed);
    let is_own = is_known && settings.node.may_be_own(&routed);
    if is_own {
        *into = routed;
    }
    is_own
}

/// Subtracts one hop in the IPv4 header checksum of `view`, from which [`crate::forward::exit::rewrite`] continues.
#[inline(always)]
pub(in crate::forward) const fn count_hop(view: &mut View, hops: u8) {
    if view.v4 {
        let protocol = view.protocol.0;
        // A checksum covers 16 bits at a time, and the hop limit shares them with the protocol (RFC 791 3.1).
        let fewer = Difference::NONE.replace_u16([hops, protocol], [hops - 1, protocol]);
        view.header_checksum = fewer.apply(view.header_checksum);
    }
}

/// Finishes a packet that carries its new addresses: writes the hop limit, and the link-layer addresses of the route.
#[inline(always)]
pub(in crate::forward) fn write<P: Packet>(
    packet: &mut P,
    view: &View,
    route: &Route,
) -> Option<()> {
    let at = ETHERNET + if view.v4 { HOPS_V4 } else { HOPS_V6 };
    let [hops]: [u8; 1] = packet.read(at)?;
    // `find` has refused limits below 2 for this very packet, so nothing wraps.
    let fewer = hops.wrapping_sub(1);
    packet.write(at, [fewer])?;
    // The checksum of an IPv4 header balances the hop limit (`count_hop`). An IPv6 header has none.
    if !view.v4 {
        packet.summed(Difference::NONE.replace_u16([0, hops], [0, fewer]));
    }
    packet.set_words(0, route.hardware)
}

/// Whether a frame that came in is addressed to another machine, or to all: bridges and promiscuous interfaces see
/// those as well. A reply from here would speak in the name of that machine.
#[inline(always)]
pub(in crate::forward) fn is_for_another<P: Packet, T: Node>(
    packet: &P,
    tables: &T,
    side: Side,
) -> bool {
    if side == Side::EGRESS {
        return false;
    }
    let Some(device) = tables.device(packet.device()) else { return false };
    // The first bytes of a packet without a link-layer header are zeros.
    let Some(to) = packet.read(0) else { return false };
    // Zeros stand for an address of another length than six bytes, which cannot be compared (`Device::hardware`).
    device.hardware != [0; 6] && to != [0; 6] && to != device.hardware
}

/// Whether a router would take a packet that came in by an interface: untagged, and sent to the router's own address.
#[inline(always)]
pub(in crate::forward) fn is_for_us<P: Packet>(packet: &P, view: &View, device: &Device) -> bool {
    let Some(to) = packet.read(0) else { return false };
    view.link == ETHERNET as u8 && !packet.is_tagged() && device.hardware == to
}

/// Reads the traffic class, as the route lookup takes it, and the hop limit.
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
        // The kernel takes class and flow label without the version (`IPV6_FLOWINFO_MASK`, as in
        // samples/bpf/xdp_fwd_kern.c).
        (u32::from_ne_bytes([version & 0x0f, service, high, low]), hops)
    })
}

/// Bytes of the largest IP packet as [`length`] returns them, also for a packet with options or extension headers.
#[inline(always)]
pub(in crate::forward) fn length_of_any<P: Packet>(packet: &P, view: &View) -> u16 {
    let (link, segment) = (view.network(packet), packet.segment());
    if segment == 0 {
        return at_most(packet.length() - link);
    }
    let behind = view.behind as usize;
    let transport = match view.protocol {
        Protocol::TCP => packet.read_at(behind + TCP_LENGTH).map_or(TCP, words),
        Protocol::SCTP => SCTP,
        _ => UDP,
    };
    let removed = if is_jumbogram(packet, view, link) { HOP_BY_HOP } else { 0 };
    at_most(behind - link - removed + transport + segment)
}

/// Whether a packet has the hop-by-hop header by which Linux since 5.19 knows IPv6 packets of more than 64 KiB, and
/// which segmentation removes (`ipv6_has_hopopt_jumbo` in `include/net/ipv6.h`). Newer versions add none.
#[inline(always)]
fn is_jumbogram<P: Packet>(packet: &P, view: &View, link: usize) -> bool {
    // The payload length, the next header and the hop limit.
    !view.v4 && !view.plain && matches!(packet.read_at(link + 4), Some([0, 0, 0, _]))
}

/// Bytes of the largest IP packet that segmentation offload makes of this plain one.
///
/// VERIFIER: beside [`length_of_any`], since it refuses a pointer into the packet at the offset of a variable.
#[inline(always)]
fn length<P: Packet>(packet: &P, view: &View) -> Option<u16> {
    let segment = packet.segment();
    if segment == 0 {
        // `is_for_us` has shown that there is no tag, so the constant length of the header is right.
        return Some(at_most(packet.length() - ETHERNET));
    }
    let network = if view.v4 { IPV4 } else { IPV6 };
    let transport = match view.protocol {
        Protocol::TCP => words(packet.read(ETHERNET + network + TCP_LENGTH)?),
        Protocol::SCTP => SCTP,
        _ => UDP,
    };
    Some(at_most(network + transport + segment))
}

/// The length of a TCP header, from the byte that holds it.
#[inline(always)]
const fn words([byte]: [u8; 1]) -> usize {
    (byte >> 4) as usize * 4
}

/// The length of a packet for the lookup of its route. A sender may ask for segments that no packet can hold; they are
/// larger than any MTU, as a length that wraps around would not be.
#[inline(always)]
const fn at_most(length: usize) -> u16 {
    if length > u16::MAX as usize { u16::MAX } else { length as u16 }
}
