//! Reads a packet's headers once, into one view for both families.
//!
//! Refuses to guess: whatever is cut short, contradicts itself or is not TCP, UDP, SCTP or ICMP is
//! named and left to the stack.

use crate::addr::{Ip, Port, Protocol};
use crate::checksum::Difference;
use crate::event::PassReason;
use crate::flow::Side;
use crate::packet::{Covered, Packet};
use crate::scratch::Scratch;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options (RFC 791).
pub const IPV4: usize = 20;
/// Bytes of the fixed IPv6 header (RFC 8200).
pub const IPV6: usize = 40;

const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const TYPE_VLAN: [u8; 2] = [0x81, 0x00];
const TYPE_QINQ: [u8; 2] = [0x88, 0xa8];
const VLAN: usize = 4;
/// IPv6 extension headers walked at most.
const EXTENSIONS: usize = 6;

/// TCP flags (RFC 9293 3.1).
pub mod tcp {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Begins a connection.
    pub const SYN: u8 = 0x02;
    /// Ends it at once.
    pub const RST: u8 = 0x04;
    /// Acknowledges.
    pub const ACK: u8 = 0x10;
}

/// Which part of a datagram a packet is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Piece {
    /// All of it.
    #[default]
    Whole,
    /// The first fragment, which carries the ports.
    First,
    /// A later fragment.
    Later,
}

/// The headers of a packet, read once; its tuple lies in [`Scratch::key`].
///
/// VERIFIER: it lies in a map, where the verifier forgets values; so all packets of a family look
/// the same to it from here on, and the offsets are made constant again where they are used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct View {
    /// Offset of the transport header; for what wants a constant only through [`View::transport`].
    pub behind: u16,
    /// Bytes of the link-layer header; only to be used through [`View::network`].
    pub link: u8,
    /// IPv4, else IPv6.
    pub v4: bool,
    /// No options, no extension headers.
    pub plain: bool,
    /// Transport protocol.
    pub protocol: Protocol,
    /// TCP flags, else 0.
    pub tcp_flags: u8,
    /// Fragment or whole.
    pub piece: Piece,
    /// IPv4 header checksum as stored.
    pub header_checksum: [u8; 2],
    /// ICMP type and code, else 0.
    pub icmp: [u8; 2],
}

impl View {
    /// Offset of the IP header.
    #[inline(always)]
    pub fn network<P: Packet>(&self, packet: &P) -> usize {
        if packet.has_tags() && self.link != ETHERNET as u8 { ETHERNET + VLAN } else { ETHERNET }
    }

    /// Offset of the transport header: a constant on each path where the packet is plain.
    #[inline(always)]
    pub fn transport<P: Packet>(&self, packet: &P) -> usize {
        if !self.plain {
            return self.behind as usize;
        }
        self.network(packet) + if self.v4 { IPV4 } else { IPV6 }
    }

    /// Where the packet ends, as its IP header says: a wire fills a short one up.
    #[inline(always)]
    pub fn end<P: Packet>(&self, packet: &P) -> Option<usize> {
        /// Offset of the length of what follows in an IPv6 header.
        const LENGTH_V6: usize = 4;
        let at = self.network(packet);
        // VERIFIER: whole words; of halves the compiler makes one read of two packet pointers.
        let (end, length) = if self.v4 {
            let [word] = packet.words(at)?;
            let [_, _, high, low] = u32::to_ne_bytes(word);
            (at, [high, low])
        } else {
            let [word] = packet.words(at + LENGTH_V6)?;
            let [high, low, _, _] = u32::to_ne_bytes(word);
            (at + IPV6, [high, low])
        };
        Some(end + usize::from(u16::from_be_bytes(length)))
    }

    /// A TCP packet that begins a connection.
    #[inline(always)]
    pub const fn is_syn(&self) -> bool {
        const MASK: u8 = tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN;
        self.tcp_flags & MASK == tcp::SYN
    }

    /// TCP RST.
    #[inline(always)]
    pub const fn is_rst(&self) -> bool {
        self.tcp_flags & tcp::RST != 0
    }

    /// Reads `N` bytes of the transport header, `at` bytes into it.
    #[inline(always)]
    pub fn read<P: Packet, const N: usize>(&self, packet: &P, at: usize) -> Option<[u8; N]> {
        if self.plain {
            packet.read(self.transport(packet) + at)
        } else {
            packet.read_at(self.behind as usize + at)
        }
    }

    /// Reads a word of the transport header in memory order, `at` bytes into it.
    ///
    /// VERIFIER: bytes are put together before it is known that there are any, and then it is a pointer that is shifted.
    #[inline(always)]
    pub fn word<P: Packet>(&self, packet: &P, at: usize) -> Option<u32> {
        if self.plain {
            let [word] = packet.words(self.transport(packet) + at)?;
            Some(word)
        } else {
            packet.read_at(self.behind as usize + at).map(u32::from_ne_bytes)
        }
    }

    /// Writes `N` bytes of the transport header, `at` bytes into it.
    #[inline(always)]
    pub fn write<P: Packet, const N: usize>(
        &self,
        packet: &mut P,
        at: usize,
        bytes: [u8; N],
    ) -> Option<()> {
        if self.plain {
            packet.write(self.transport(packet) + at, bytes)
        } else {
            packet.write_at(self.behind as usize + at, bytes)
        }
    }

    /// Brings the transport checksum, `at` bytes into the header, up to date with a change already made.
    #[inline(always)]
    pub fn checksum<P: Packet>(
        &self,
        packet: &mut P,
        at: usize,
        change: Difference,
        covered: Covered,
    ) -> Option<()> {
        // Other addresses leave the sum over an IPv4 packet as it is, for its header has a checksum of its own. The kernel counts
        // as if that were so in both families.
        if covered == Covered::PseudoHeader && !self.v4 {
            packet.summed(change);
        }
        let udp = self.protocol == Protocol::UDP;
        if udp && covered == Covered::Payload && !packet.is_frame() {
            let [.., high, low] = self.word(packet, at - 2)?.to_ne_bytes();
            // One that is left out makes up for nothing.
            if [high, low] == [0; 2] {
                packet.summed(change);
            }
        }
        if self.plain {
            packet.checksum(self.transport(packet) + at, change, covered, udp)
        } else {
            packet.checksum_at(self.behind as usize + at, change, covered, udp)
        }
    }
}

/// Reads the headers of a packet that begins with Ethernet: its tuple into `scratch.key`, what else
/// matters into `scratch.view`. Ports are 0 for ICMP and later fragments.
#[inline(always)]
pub fn parse<P: Packet>(packet: &P, scratch: &mut Scratch, side: Side) -> Result<(), PassReason> {
    let mut link = ETHERNET;
    let mut ether_type: [u8; 2] = packet.read(12).ok_or(PassReason::Malformed)?;
    if packet.has_tags() && (ether_type == TYPE_VLAN || ether_type == TYPE_QINQ) {
        ether_type = packet.read(ETHERNET + 2).ok_or(PassReason::Malformed)?;
        link = ETHERNET + VLAN;
    }
    scratch.view = View { link: link as u8, ..View::default() };
    match ether_type {
        TYPE_IPV4 => ipv4(packet, scratch, link)?,
        TYPE_IPV6 => ipv6(packet, scratch, link)?,
        _ => return Err(PassReason::NotIp),
    }
    if !is_transport(scratch.view.protocol) {
        return Err(PassReason::OtherProtocol);
    }
    scratch.key.protocol = scratch.view.protocol;
    scratch.key.side = side;
    transport(packet, scratch)
}

#[inline(always)]
fn ipv4<P: Packet>(packet: &P, scratch: &mut Scratch, network: usize) -> Result<(), PassReason> {
    let header: [u32; IPV4 / 4] = packet.words(network).ok_or(PassReason::Malformed)?;
    let [w0, w1, w2, source, destination] = header;
    let [version, _, len0, len1] = w0.to_ne_bytes();
    let [id0, id1, frag0, frag1] = w1.to_ne_bytes();
    let [_, protocol, sum0, sum1] = w2.to_ne_bytes();
    let length = usize::from(u16::from_be_bytes([len0, len1]));
    let header_length = usize::from(version & 0x0f) * 4;
    let total = packet.length() - network;
    // A length of zero is a packet of more than 64 KiB before segmentation ("BIG TCP").
    let fits = length == 0 || length >= header_length && length <= total;
    if version >> 4 != 4 || header_length < IPV4 || !fits {
        return Err(PassReason::Malformed);
    }
    let offset = u16::from_be_bytes([frag0, frag1]);
    scratch.key.tuple.source = Ip::v4_word(source);
    scratch.key.tuple.destination = Ip::v4_word(destination);
    scratch.id = [id0, id1, 0, 0];
    let view = &mut scratch.view;
    view.v4 = true;
    view.protocol = Protocol(protocol);
    view.plain = header_length == IPV4;
    view.behind = (network + header_length) as u16;
    view.header_checksum = [sum0, sum1];
    view.piece = piece(offset & 0x1fff, offset & 0x2000);
    Ok(())
}

#[inline(always)]
pub(crate) const fn piece(offset: u16, more: u16) -> Piece {
    match (offset, more) {
        (0, 0) => Piece::Whole,
        (0, _) => Piece::First,
        (_, _) => Piece::Later,
    }
}

#[inline(always)]
fn ipv6<P: Packet>(packet: &P, scratch: &mut Scratch, network: usize) -> Result<(), PassReason> {
    let header: [u64; IPV6 / 8] = packet.halves(network).ok_or(PassReason::Malformed)?;
    let [first, s0, s1, d0, d1] = header;
    let [version, _, _, _, len0, len1, next, _] = first.to_ne_bytes();
    let length = usize::from(u16::from_be_bytes([len0, len1]));
    if version >> 4 != 6 || length + IPV6 > packet.length() - network {
        return Err(PassReason::Malformed);
    }
    scratch.key.tuple.source = Ip::from_halves([s0, s1]);
    scratch.key.tuple.destination = Ip::from_halves([d0, d1]);
    scratch.view.protocol = Protocol(next);
    scratch.view.plain = true;
    scratch.view.behind = (network + IPV6) as u16;
    if is_transport(scratch.view.protocol) {
        Ok(())
    } else {
        extensions(packet, &mut scratch.view, &mut scratch.id)
    }
}

#[inline(always)]
const fn is_transport(protocol: Protocol) -> bool {
    matches!(
        protocol,
        Protocol::TCP | Protocol::UDP | Protocol::SCTP | Protocol::ICMP | Protocol::ICMP6
    )
}

/// Walks IPv6 extension headers (RFC 8200 4) from [`View::behind`] up to the transport header. `id`: what a fragment's
/// says of its datagram.
#[inline(never)]
pub(crate) fn extensions<P: Packet>(
    packet: &P,
    view: &mut View,
    id: &mut [u8; 4],
) -> Result<(), PassReason> {
    const HOP_BY_HOP: u8 = 0;
    const FRAGMENT: u8 = 44;
    const ROUTING: u8 = 43;
    const DESTINATION: u8 = 60;
    view.plain = false;
    for _ in 0..EXTENSIONS {
        if is_transport(view.protocol) {
            return Ok(());
        }
        let header: [u8; 8] = packet.read_at(view.behind as usize).ok_or(PassReason::Malformed)?;
        let [next, length, o0, o1, i0, i1, i2, i3] = header;
        match view.protocol.0 {
            FRAGMENT => {
                let offset = u16::from_be_bytes([o0, o1]);
                view.piece = piece(offset >> 3, offset & 1);
                *id = [i0, i1, i2, i3];
                view.behind += 8;
            }
            // Segments left: the destination is a waypoint, not the frontend.
            ROUTING if o1 != 0 => return Err(PassReason::OtherProtocol),
            HOP_BY_HOP | ROUTING | DESTINATION => {
                view.behind += (u16::from(length) + 1) * 8;
            }
            _ => return Err(PassReason::OtherProtocol),
        }
        view.protocol = Protocol(next);
    }
    if is_transport(view.protocol) { Ok(()) } else { Err(PassReason::OtherProtocol) }
}

/// Reads what later decisions need of the transport header.
#[inline(always)]
fn transport<P: Packet>(packet: &P, scratch: &mut Scratch) -> Result<(), PassReason> {
    let tuple = &mut scratch.key.tuple;
    let view = &mut scratch.view;
    (tuple.source_port, tuple.destination_port) = (Port::NONE, Port::NONE);
    if view.piece == Piece::Later {
        return Ok(());
    }
    let header: [u8; 8] = view.read(packet, 0).ok_or(PassReason::Malformed)?;
    let [a, b, c, d, ..] = header;
    if view.protocol == Protocol::ICMP || view.protocol == Protocol::ICMP6 {
        view.icmp = [a, b];
        return Ok(());
    }
    tuple.source_port = Port::from_wire([a, b]);
    tuple.destination_port = Port::from_wire([c, d]);
    if view.protocol == Protocol::TCP {
        // All 20 bytes must be there: the checksum is at 16.
        let rest: [u8; 8] = view.read(packet, 12).ok_or(PassReason::Malformed)?;
        let [_, flags, ..] = rest;
        view.tcp_flags = flags;
    } else if view.protocol == Protocol::SCTP {
        // So must the 12 bytes of the common header (RFC 9260 3.1).
        let _checksum: [u8; 4] = view.read(packet, 8).ok_or(PassReason::Malformed)?;
    }
    Ok(())
}
