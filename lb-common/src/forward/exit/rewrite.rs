//! Changes addresses and ports of a packet, with every checksum that covers them.

use crate::addr::{Port, Protocol};
use crate::checksum::Difference;
use crate::event::{DropReason, PassReason, Verdict};
use crate::flow::Tuple;
use crate::forward::{Scratch, Step};
use crate::hash;
use crate::packet::{Covered, Packet};
use crate::sctp;
use crate::tables::Node;
use crate::wire::{Headers, IPV4, IPV6, Piece, View};

/// Offset of the checksum in an IPv4 header.
const HEADER_CHECKSUM: usize = 10;
/// Offset of the source address in an IPv4 header.
const ADDRESSES_V4: usize = 12;
/// Offset of the source address in an IPv6 header.
const ADDRESSES_V6: usize = 8;
/// Offset of the payload length in an IPv6 header.
const LENGTH_V6: usize = 4;
/// Offset of the checksum in a TCP header.
pub(in crate::forward) const TCP_CHECKSUM: usize = 16;
/// Offset of the checksum in a UDP header.
pub(in crate::forward) const UDP_CHECKSUM: usize = 6;

/// Rewrites a packet to the tuple that the entry it follows gives it.
#[inline(always)]
pub(in crate::forward) fn part<P: Packet, T: Node>(
    packet: &mut P,
    tables: &T,
    Scratch { headers, found, .. }: &mut Scratch,
) -> Step<()> {
    let to = &found.flow.to;
    if headers.view.piece != Piece::Whole {
        renumber(packet, tables, headers, to).ok_or(Verdict::Drop(DropReason::RewriteFailed))?;
    }
    self::packet(packet, &headers.view, &headers.key.tuple, to)
}

/// Gives a fragment whose source is translated an identification that no other sender uses.
///
/// The receiver puts fragments together by source and identification. Fragments of one datagram get the same, and
/// datagrams of one sender different ones.
#[inline(never)]
fn renumber<P: Packet, T: Node>(
    packet: &mut P,
    tables: &T,
    headers: &mut Headers,
    new: &Tuple,
) -> Option<()> {
    let old = &headers.key.tuple;
    if old.source == new.source && old.source_port == new.source_port {
        return Some(());
    }
    // Without a secret a stranger could predict identifications, and have its own fragments joined to a datagram
    // (RFC 7739).
    let secret = tables.settings()?.node.secret;
    let other = hash::of_addresses(&old.source, &old.destination, secret);
    let Headers { id, view, .. } = headers;
    let (before, at) = (u32::from_ne_bytes(id.value), usize::from(id.at));
    // XOR keeps the identifications of one sender distinct.
    let after = before ^ other;
    if !view.v4 {
        packet.write_at(at, after.to_ne_bytes())?;
        // No checksum in the packet covers the identification of an IPv6 fragment.
        packet.summed(Difference::NONE.word(before, after));
        return Some(());
    }
    let ([a, b, ..], [c, d, ..]) = (id.value, after.to_ne_bytes());
    packet.write_at(at, [c, d])?;
    // `write_addresses` writes this checksum into the packet, together with the addresses.
    view.header_checksum = Difference::NONE.replace_u16([a, b], [c, d]).apply(view.header_checksum);
    Some(())
}

/// Rewrites the packet to another tuple.
#[inline(always)]
pub(in crate::forward) fn packet<P: Packet>(
    packet: &mut P,
    view: &View,
    old: &Tuple,
    to: &Tuple,
) -> Step<()> {
    // This test precedes the first write, because tc has to receive the packet unchanged (ADR 0012).
    if packet.is_at_xdp() && looks_partial(packet, view, old) {
        return Err(Verdict::Pass(PassReason::PartialChecksum));
    }
    // XDP leaves all SCTP packets to tc.
    if !packet.is_at_xdp() && view.protocol == Protocol::SCTP {
        return sctp_packet(packet, view, old, to);
    }
    fields(packet, view, old, to).ok_or(Verdict::Drop(DropReason::RewriteFailed))
}

/// Whether the transport checksum covers no more than the pseudo-header (RFC 9293 3.1, RFC 8200 8.1).
///
/// A sender on the same machine leaves the rest of the sum to an interface. One in 65536 complete checksums looks the
/// same.
#[inline(always)]
fn looks_partial<P: Packet>(packet: &P, view: &View, tuple: &Tuple) -> bool {
    unfinished(packet, view, tuple).unwrap_or(false)
}

#[inline(always)]
fn unfinished<P: Packet>(packet: &P, view: &View, tuple: &Tuple) -> Option<bool> {
    let at = view.network(packet);
    // VERIFIER: whole words; of two u16 the compiler makes one read through either of two packet pointers.
    let (length, sum) = if view.v4 {
        let [word] = packet.words(at)?;
        let [_, _, high, low] = u32::to_ne_bytes(word);
        let sum = Difference::NONE.add(tuple.source.last_word()).add(tuple.destination.last_word());
        (u16::from_be_bytes([high, low]).wrapping_sub(IPV4 as u16), sum)
    } else {
        let [word] = packet.words(at + LENGTH_V6)?;
        let [high, low, _, _] = u32::to_ne_bytes(word);
        let [s0, s1, s2, s3] = tuple.source.words();
        let [d0, d1, d2, d3] = tuple.destination.words();
        let sum = Difference::NONE.add(s0).add(s1).add(s2).add(s3).add(d0).add(d1).add(d2).add(d3);
        (u16::from_be_bytes([high, low]), sum)
    };
    // Only plain packets come here: the header lengths are constant.
    let transport = at + if view.v4 { IPV4 } else { IPV6 };
    let stored = if view.protocol == Protocol::UDP {
        let [word] = packet.words(transport + UDP_CHECKSUM - 2)?;
        let [_, _, a, b] = u32::to_ne_bytes(word);
        [a, b]
    } else {
        let [word] = packet.words(transport + TCP_CHECKSUM)?;
        let [a, b, _, _] = u32::to_ne_bytes(word);
        [a, b]
    };
    let [high, low] = length.to_be_bytes();
    let sum = sum.add(u32::from_ne_bytes([0, view.protocol.0, high, low]));
    let [a, b] = stored;
    // The field of a partial checksum holds the sum itself and not its complement (`CHECKSUM_PARTIAL` in
    // include/linux/skbuff.h).
    Some(sum.fold() == u32::from_ne_bytes([a, b, 0, 0]))
}

#[inline(always)]
fn fields<P: Packet>(packet: &mut P, view: &View, old: &Tuple, to: &Tuple) -> Option<()> {
    let ip = header(packet, view);
    let addresses = write_addresses(packet, ip, old, to)?;
    if view.piece == Piece::Later {
        // The transport checksum that makes up for the new addresses is in the first fragment.
        if !view.v4 {
            packet.summed(addresses);
        }
        return Some(());
    }
    let checksum = if view.protocol == Protocol::TCP { TCP_CHECKSUM } else { UDP_CHECKSUM };
    let before = Port::word(old.source_port, old.destination_port);
    let after = Port::word(to.source_port, to.destination_port);
    let mut change = addresses;
    if before != after {
        view.write(packet, 0, after.to_ne_bytes())?;
        let ports = Difference::NONE.word(before, after);
        if packet.is_at_xdp() {
            // At XDP the checksum is complete: none of it is left to an interface.
            change = change.and(ports);
        } else {
            // At tc a partial checksum contains the addresses already, and not the ports (`Covered`).
            view.checksum(packet, checksum, ports, Covered::Payload)?;
        }
    }
    view.checksum(packet, checksum, change, Covered::PseudoHeader)
}

/// Whether the port of a packet cannot change, as of SCTP in fragments. Checked before a flow is begun for the packet.
#[inline(always)]
pub(in crate::forward) fn port_stays<P: Packet>(packet: &P, view: &View) -> bool {
    !packet.is_at_xdp() && view.protocol == Protocol::SCTP && !sctp::can_change(packet, view)
}

/// Rewrites an SCTP packet. All checks come before the first write.
///
/// The checksum covers no address, and every byte after the ports, so the port of a fragment cannot change.
#[inline(never)]
fn sctp_packet<P: Packet>(packet: &mut P, view: &View, old: &Tuple, to: &Tuple) -> Step<()> {
    const FAILED: Verdict = Verdict::Drop(DropReason::RewriteFailed);
    let before = Port::word(old.source_port, old.destination_port);
    let has_ports = before != Port::word(to.source_port, to.destination_port);
    // VERIFIER: the sum always has a value, since the verifier has lost by the end that it is set where the ports
    // change.
    let mut changed = sctp::Changed { sum: [0; 4], change: Difference::NONE };
    if has_ports {
        let unknown = Verdict::Drop(DropReason::SctpChecksum);
        changed = sctp::changed(packet, view, old, to).ok_or(unknown)?;
    }
    let addresses = write_addresses(packet, header(packet, view), old, to).ok_or(FAILED)?;
    // In an IPv4 header the header checksum makes up for the addresses.
    let change = changed.change;
    packet.summed(if view.v4 { change } else { change.and(addresses) });
    if has_ports { sctp::write(packet, view, to, changed.sum).ok_or(FAILED) } else { Ok(()) }
}

/// The place of an IP header that gets other addresses.
#[derive(Clone, Copy)]
pub(in crate::forward) struct Header {
    pub(in crate::forward) v4: bool,
    pub(in crate::forward) at: usize,
    pub(in crate::forward) checksum: [u8; 2],
}

/// Writes the addresses that change, and the IPv4 header checksum; returns the change that other checksums need.
#[inline(always)]
pub(in crate::forward) fn write_addresses<P: Packet>(
    packet: &mut P,
    header: Header,
    old: &Tuple,
    to: &Tuple,
) -> Option<Difference> {
    let mut change = Difference::NONE;
    if header.v4 {
        let (source, destination) = (to.source.last_word(), to.destination.last_word());
        change = change
            .word(old.source.last_word(), source)
            .word(old.destination.last_word(), destination);
        packet.write(header.at + HEADER_CHECKSUM, change.apply(header.checksum))?;
        packet.set_words(header.at + ADDRESSES_V4, [source, destination])?;
        return Some(change);
    }
    // Usually only one of the two addresses changes.
    if old.source != to.source {
        change = change.words(old.source.words(), to.source.words());
        packet.set_u64s(header.at + ADDRESSES_V6, to.source.u64s())?;
    }
    if old.destination != to.destination {
        change = change.words(old.destination.words(), to.destination.words());
        packet.set_u64s(header.at + ADDRESSES_V6 + 16, to.destination.u64s())?;
    }
    Some(change)
}

/// Returns the place of the packet's own IP header.
#[inline(always)]
pub(in crate::forward) fn header<P: Packet>(packet: &P, view: &View) -> Header {
    Header { v4: view.v4, at: view.network(packet), checksum: view.header_checksum }
}
