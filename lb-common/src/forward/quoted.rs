//! The packet that an ICMP error quotes: whose it is, and how it becomes again what its sender sent.
//!
//! Where it lies and where its ports are is known only at run time: there may be options and extension headers in front
//! of it and in it.

use super::icmp::CHECKSUM;
use super::rewrite::{TCP_CHECKSUM, UDP_CHECKSUM};
use crate::addr::{Ip, Port, Protocol};
use crate::checksum::Difference;
use crate::flow::Tuple;
use crate::packet::{Covered, Packet};
use crate::scratch::Scratch;
use crate::wire::{self, IPV4, IPV6, Piece, View};

/// Bytes of the ICMP header in front of it.
pub(super) const ICMP: usize = 8;
/// Bytes of its ports.
const PORTS: usize = 4;
/// Offset of the checksum in an IPv4 header; the addresses follow.
const CHECKSUM_V4: usize = 10;
/// Offset of the source address in an IPv6 header; the destination follows.
const ADDRESSES_V6: usize = 8;

/// Reads the packet quoted at an offset: its headers into `scratch.quoted`, and its tuple turned round, the key of the flow
/// it belongs to, into `scratch.opposite_key`. One without ports, such as a later fragment, is not told apart.
#[inline(always)]
pub(super) fn read<P: Packet>(packet: &P, scratch: &mut Scratch, at: usize) -> Option<()> {
    if scratch.view.piece != Piece::Whole {
        return None;
    }
    let end = scratch.view.end(packet)?;
    scratch.quoted = View { v4: scratch.view.v4, ..View::default() };
    if scratch.view.v4 {
        ipv4(packet, scratch, at)?;
    } else {
        ipv6(packet, scratch, at)?;
    }
    let ports = scratch.quoted.behind as usize;
    if scratch.quoted.piece == Piece::Later || ports + PORTS > end {
        return None;
    }
    let [a, b, c, d] = packet.read_at(ports)?;
    scratch.opposite_key.tuple.destination_port = Port::from_wire([a, b]);
    scratch.opposite_key.tuple.source_port = Port::from_wire([c, d]);
    scratch.opposite_key.protocol = scratch.quoted.protocol;
    scratch.opposite_key.side = scratch.key.side;
    Some(())
}

#[inline(always)]
fn ipv4<P: Packet>(packet: &P, scratch: &mut Scratch, at: usize) -> Option<()> {
    let [version, ..]: [u8; 1] = packet.read_at(at)?;
    let [f0, f1, _, protocol, c0, c1]: [u8; 6] = packet.read_at(at + 6)?;
    let header = usize::from(version & 0x0f) * 4;
    if version >> 4 != 4 || header < IPV4 {
        return None;
    }
    let offset = u16::from_be_bytes([f0, f1]);
    scratch.quoted.piece = wire::piece(offset & 0x1fff, offset & 0x2000);
    scratch.quoted.protocol = Protocol(protocol);
    scratch.quoted.header_checksum = [c0, c1];
    scratch.quoted.behind = (at + header) as u16;
    scratch.opposite_key.tuple.destination = Ip::v4(packet.read_at(at + CHECKSUM_V4 + 2)?);
    scratch.opposite_key.tuple.source = Ip::v4(packet.read_at(at + CHECKSUM_V4 + 6)?);
    Some(())
}

#[inline(always)]
fn ipv6<P: Packet>(packet: &P, scratch: &mut Scratch, at: usize) -> Option<()> {
    let [version, ..]: [u8; 1] = packet.read_at(at)?;
    let [next]: [u8; 1] = packet.read_at(at + 6)?;
    if version >> 4 != 6 {
        return None;
    }
    scratch.quoted.protocol = Protocol(next);
    scratch.quoted.behind = (at + IPV6) as u16;
    scratch.opposite_key.tuple.destination = Ip::v6(packet.read_at(at + ADDRESSES_V6)?);
    scratch.opposite_key.tuple.source = Ip::v6(packet.read_at(at + ADDRESSES_V6 + 16)?);
    wire::extensions(packet, &mut scratch.quoted, &mut scratch.id).ok()
}

/// Translates the quoted packet back to what its sender sent.
#[inline(always)]
pub(super) fn write<P: Packet>(packet: &mut P, scratch: &mut Scratch) -> Option<()> {
    scratch.opposite_key.tuple.write_reversed(&mut scratch.other.to);
    scratch.flow.to.write_reversed(&mut scratch.opposite.to);
    let at = scratch.view.transport(packet) + ICMP;
    let end = scratch.view.end(packet)?;
    let (old, new, inside) = (&scratch.other.to, &scratch.opposite.to, &scratch.quoted);
    let addresses = write_addresses(packet, (at, inside), old, new)?;
    let before = Port::word(old.source_port, old.destination_port);
    let after = Port::word(new.source_port, new.destination_port);
    let transport = inside.behind as usize;
    packet.write_at(transport, after.to_ne_bytes())?;

    let ports = Difference::NONE.word(before, after);
    let both = ports.and(addresses);
    let field = match inside.protocol {
        Protocol::TCP => checksum(packet, (transport + TCP_CHECKSUM, end), both, false),
        Protocol::UDP => checksum(packet, (transport + UDP_CHECKSUM, end), both, true),
        _ => Difference::NONE,
    };
    // In IPv4 the quoted header's own checksum changed against its addresses: the sum over it stays.
    let change = if inside.v4 { ports } else { both };
    scratch.view.checksum(packet, CHECKSUM, change.and(field), Covered::Payload)
}

/// Writes the quoted addresses, and the IPv4 header checksum; says what that does to other checksums.
#[inline(always)]
fn write_addresses<P: Packet>(
    packet: &mut P,
    (at, inside): (usize, &View),
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

/// Brings the transport checksum of a quoted packet up to date, where the quote is long enough to have one.
/// Returns how that changes the sum over the quote. Bytes behind its `end` are no part of the packet.
#[inline(never)]
fn checksum<P: Packet>(
    packet: &mut P,
    (at, end): (usize, usize),
    change: Difference,
    zero_is_none: bool,
) -> Difference {
    if at + size_of::<u16>() > end {
        return Difference::NONE;
    }
    let old: [u8; 2] = match packet.read_at(at) {
        Some(old) if !zero_is_none || old != [0; 2] => old,
        _ => return Difference::NONE,
    };
    let mut new = change.apply(old);
    if zero_is_none && new == [0; 2] {
        new = [0xff; 2];
    }
    match packet.write_at(at, new) {
        Some(()) => Difference::NONE.replace_u16(old, new),
        None => Difference::NONE,
    }
}
