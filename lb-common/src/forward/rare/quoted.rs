//! The packet that an ICMP error quotes: the lookup key of its flow, and its translation back to what its sender sent.
//!
//! The offsets of the packet and of its ports are known only at run time: there may be options and extension headers in
//! front of it and in it.

use crate::addr::{Ip, Port, Protocol};
use crate::checksum::Difference;
use crate::flow::{Flow, Tuple};
use crate::forward::Quoted;
use crate::forward::exit::rewrite::{TCP_CHECKSUM, UDP_CHECKSUM};
use crate::packet::{Covered, Packet};
use crate::wire::{self, Headers, IPV4, IPV6, Piece, View};

/// Bytes of the ICMP header in front of the quoted packet.
pub(super) const ICMP: usize = 8;
/// Offset of the checksum in an ICMP header.
pub(super) const CHECKSUM: usize = 2;
/// Bytes of the two ports of the quoted packet.
const PORTS: usize = 4;
/// Offset of the checksum in an IPv4 header; the addresses follow.
const CHECKSUM_V4: usize = 10;
/// Offset of the source address in an IPv6 header; the destination follows.
const ADDRESSES_V6: usize = 8;

/// Reads the packet quoted at an offset, into `quoted`. `None` for a quote without ports, such as a later fragment.
#[inline(always)]
pub(in crate::forward) fn read<P: Packet>(
    packet: &P,
    headers: &Headers,
    at: usize,
    quoted: &mut Quoted,
) -> Option<()> {
    let Headers { view, key, .. } = headers;
    // The checksum of a message covers all of its fragments, so one in fragments cannot be translated. No error needs
    // fragments: it has at most 576 bytes (RFC 1812 4.3.2.3) or 1,280 (RFC 4443 2.4).
    if view.piece != Piece::Whole {
        return None;
    }
    // The padding of a short frame is no part of the quote.
    let end = view.end(packet)?;
    quoted.view = View { v4: view.v4, ..View::default() };
    if view.v4 {
        ipv4(packet, at, quoted)?;
    } else {
        ipv6(packet, at, quoted)?;
    }
    let ports = quoted.view.behind as usize;
    if quoted.view.piece == Piece::Later || ports + PORTS > end {
        return None;
    }
    let [a, b, c, d] = packet.read_at(ports)?;
    // The quoted source becomes the destination of the key: the error travels in the other direction of the flow.
    quoted.key.tuple.destination_port = Port::from_wire([a, b]);
    quoted.key.tuple.source_port = Port::from_wire([c, d]);
    quoted.key.protocol = quoted.view.protocol;
    quoted.key.side = key.side;
    Some(())
}

#[inline(always)]
fn ipv4<P: Packet>(packet: &P, at: usize, Quoted { view, key, .. }: &mut Quoted) -> Option<()> {
    let [version, ..]: [u8; 1] = packet.read_at(at)?;
    let [f0, f1, _, protocol, c0, c1]: [u8; 6] = packet.read_at(at + 6)?;
    let header = usize::from(version & 0x0f) * 4;
    if version >> 4 != 4 || header < IPV4 {
        return None;
    }
    let offset = u16::from_be_bytes([f0, f1]);
    view.piece = wire::piece(offset & 0x1fff, offset & 0x2000);
    view.protocol = Protocol(protocol);
    view.header_checksum = [c0, c1];
    view.behind = (at + header) as u16;
    key.tuple.destination = Ip::v4(packet.read_at(at + CHECKSUM_V4 + 2)?);
    key.tuple.source = Ip::v4(packet.read_at(at + CHECKSUM_V4 + 6)?);
    Some(())
}

#[inline(always)]
fn ipv6<P: Packet>(packet: &P, at: usize, Quoted { view, id, key, .. }: &mut Quoted) -> Option<()> {
    let [version, ..]: [u8; 1] = packet.read_at(at)?;
    let [next]: [u8; 1] = packet.read_at(at + 6)?;
    if version >> 4 != 6 {
        return None;
    }
    view.protocol = Protocol(next);
    view.behind = (at + IPV6) as u16;
    key.tuple.destination = Ip::v6(packet.read_at(at + ADDRESSES_V6)?);
    key.tuple.source = Ip::v6(packet.read_at(at + ADDRESSES_V6 + 16)?);
    wire::extensions(packet, view, id).ok()
}

/// Translates the quoted packet back to what its sender sent. `flow`: the entry that the error follows.
#[inline(always)]
pub(in crate::forward) fn write<P: Packet>(
    packet: &mut P,
    headers: &Headers,
    flow: &Flow,
    quoted: &mut Quoted,
) -> Option<()> {
    quoted.key.tuple.write_reversed(&mut quoted.before);
    flow.to.write_reversed(&mut quoted.after);
    let at = headers.view.transport(packet) + ICMP;
    let end = headers.view.end(packet)?;
    let (old, new, inside) = (&quoted.before, &quoted.after, &quoted.view);
    let addresses = write_addresses(packet, at, inside, old, new)?;
    let before = Port::word(old.source_port, old.destination_port);
    let after = Port::word(new.source_port, new.destination_port);
    let transport = inside.behind as usize;
    packet.write_at(transport, after.to_ne_bytes())?;

    let ports = Difference::NONE.word(before, after);
    let both = ports.and(addresses);
    let field = match inside.protocol {
        Protocol::TCP => checksum(packet, transport + TCP_CHECKSUM, end, both, false),
        Protocol::UDP => checksum(packet, transport + UDP_CHECKSUM, end, both, true),
        // The CRC32c of SCTP covers bytes that the quote does not have, so it stays.
        _ => Difference::NONE,
    };
    // In IPv4 the quoted header's own checksum makes up for its addresses: the sum over that header stays the same.
    let change = if inside.v4 { ports } else { both };
    headers.view.checksum(packet, CHECKSUM, change.and(field), Covered::Payload)
}

/// Writes the quoted addresses, and the IPv4 header checksum; returns the change that other checksums need.
#[inline(always)]
fn write_addresses<P: Packet>(
    packet: &mut P,
    at: usize,
    inside: &View,
    old: &Tuple,
    new: &Tuple,
) -> Option<Difference> {
    if inside.v4 {
        let (from, to) = (new.source.last_word(), new.destination.last_word());
        let change = Difference::NONE
            .word(old.source.last_word(), from)
            .word(old.destination.last_word(), to);
        packet.write_at(at + CHECKSUM_V4, change.apply(inside.header_checksum))?;
        packet.write_at(at + CHECKSUM_V4 + 2, from.to_ne_bytes())?;
        packet.write_at(at + CHECKSUM_V4 + 6, to.to_ne_bytes())?;
        return Some(change);
    }
    packet.write_at(at + ADDRESSES_V6, new.source.octets())?;
    packet.write_at(at + ADDRESSES_V6 + 16, new.destination.octets())?;
    let change = Difference::NONE.words(old.source.words(), new.source.words());
    Some(change.words(old.destination.words(), new.destination.words()))
}

/// Updates the transport checksum of a quoted packet, where the quote is long enough to have one.
///
/// Returns the change of the sum over the quote. Bytes after `end` are no part of the packet.
#[inline(never)]
fn checksum<P: Packet>(
    packet: &mut P,
    at: usize,
    end: usize,
    change: Difference,
    zero_is_none: bool,
) -> Difference {
    // Many routers quote only 8 bytes of the transport header (RFC 792), which ends a TCP header before its checksum.
    if at + size_of::<u16>() > end {
        return Difference::NONE;
    }
    let old: [u8; 2] = match packet.read_at(at) {
        Some(old) if !zero_is_none || old != [0; 2] => old,
        _ => return Difference::NONE,
    };
    let mut new = change.apply(old);
    // Zero would say that there is no checksum (RFC 768).
    if zero_is_none && new == [0; 2] {
        new = [0xff; 2];
    }
    match packet.write_at(at, new) {
        Some(()) => Difference::NONE.replace_u16(old, new),
        None => Difference::NONE,
    }
}
