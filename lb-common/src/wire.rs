//! Reads a packet's headers once, into one view for both families.
//!
//! The parser does not guess: a packet that is cut short, contradicts itself or is not TCP, UDP, SCTP or ICMP passes to
//! the stack, with a reason of its own.

mod headers;
mod plain;
mod view;

use crate::addr::{Ip, Port, Protocol};
use crate::event::PassReason;
use crate::packet::Packet;

pub use headers::{Headers, Identification};
pub use plain::{is_v4, plain};
pub use view::{Piece, View};

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options (RFC 791).
pub const IPV4: usize = 20;
/// Bytes of the fixed IPv6 header (RFC 8200).
pub const IPV6: usize = 40;

pub const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
pub const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const TYPE_VLAN: [u8; 2] = [0x81, 0x00];
const TYPE_QINQ: [u8; 2] = [0x88, 0xa8];
const VLAN: usize = 4;
/// The largest number of IPv6 extension headers that the parser walks.
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

/// Types of SCTP chunks (RFC 9260 3.2).
pub mod sctp {
    /// Opens an association.
    pub const INIT: u8 = 1;
    /// Accepts an association that a client opens.
    pub const INIT_ACK: u8 = 2;
    /// Refuses or ends one at once.
    pub const ABORT: u8 = 6;
}

/// Reads the headers of a packet that begins with Ethernet.
///
/// Its tuple goes into `headers.key`, whose side is the caller's, and the
/// rest into `headers.view`. Ports are 0 for ICMP, later and short fragments.
#[inline(always)]
pub fn parse<P: Packet>(packet: &P, headers: &mut Headers) -> Result<(), PassReason> {
    let mut link = ETHERNET;
    let mut ether_type: [u8; 2] = packet.read(12).ok_or(PassReason::Malformed)?;
    // At tc the kernel has moved a tag from the bytes to the packet's metadata.
    if packet.has_tags() && (ether_type == TYPE_VLAN || ether_type == TYPE_QINQ) {
        // Behind a second tag the packet passes as `not_ip`: it belongs to an interface over this one.
        ether_type = packet.read(ETHERNET + 2).ok_or(PassReason::Malformed)?;
        link = ETHERNET + VLAN;
    }
    headers.view = View { link: link as u8, ..View::default() };
    match ether_type {
        TYPE_IPV4 => ipv4(packet, headers, link)?,
        TYPE_IPV6 => ipv6(packet, headers, link)?,
        _ => return Err(PassReason::NotIp),
    }
    if !is_transport(headers.view.protocol) {
        return Err(PassReason::OtherProtocol);
    }
    headers.key.protocol = headers.view.protocol;
    transport(packet, headers)
}

#[inline(always)]
fn ipv4<P: Packet>(packet: &P, headers: &mut Headers, network: usize) -> Result<(), PassReason> {
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
    headers.key.tuple.source = Ip::v4_word(source);
    headers.key.tuple.destination = Ip::v4_word(destination);
    headers.id.value = [id0, id1, 0, 0];
    headers.id.at = network as u16 + 4;
    let view = &mut headers.view;
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
fn ipv6<P: Packet>(packet: &P, headers: &mut Headers, network: usize) -> Result<(), PassReason> {
    let header: [u64; IPV6 / 8] = packet.u64s(network).ok_or(PassReason::Malformed)?;
    let [first, s0, s1, d0, d1] = header;
    let [version, _, _, _, len0, len1, next, _] = first.to_ne_bytes();
    let length = usize::from(u16::from_be_bytes([len0, len1]));
    // A length of 0 passes this test: a packet of more than 64 KiB has it before segmentation (RFC 2675, "BIG TCP").
    if version >> 4 != 6 || length + IPV6 > packet.length() - network {
        return Err(PassReason::Malformed);
    }
    let tuple = &mut headers.key.tuple;
    tuple.source = Ip::from_u64s([s0, s1]);
    tuple.destination = Ip::from_u64s([d0, d1]);
    // A mapped IPv4 address in an IPv6 packet would match entries of IPv4. No valid packet has one (RFC 4291 2.5.5.2),
    // and Linux drops those that do.
    if tuple.source.is_v4() || tuple.destination.is_v4() {
        return Err(PassReason::NotOurs);
    }
    headers.view.protocol = Protocol(next);
    headers.view.plain = true;
    headers.view.behind = (network + IPV6) as u16;
    if is_transport(headers.view.protocol) {
        Ok(())
    } else {
        extensions(packet, &mut headers.view, &mut headers.id)
    }
}

#[inline(always)]
const fn is_transport(protocol: Protocol) -> bool {
    matches!(
        protocol,
        Protocol::TCP | Protocol::UDP | Protocol::SCTP | Protocol::ICMP | Protocol::ICMP6
    )
}

/// Walks IPv6 extension headers (RFC 8200 4) from [`View::behind`] up to the transport header. `id` receives the
/// identification in a fragment header.
///
/// A later fragment names the header that follows the fragment header in the first fragment, and only the first
/// fragment contains that header. Behind destination options UDP is assumed, the only protocol that is sent in
/// fragments behind them. Fragments of other protocols, such as ESP, are for no Service.
#[inline(never)]
pub(crate) fn extensions<P: Packet>(
    packet: &P,
    view: &mut View,
    id: &mut Identification,
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
                id.value = [i0, i1, i2, i3];
                id.at = view.behind + 4;
                view.behind += 8;
                if view.piece == Piece::Later {
                    view.protocol = match Protocol(next) {
                        Protocol(DESTINATION) => Protocol::UDP,
                        next if is_transport(next) => next,
                        // Without a first fragment that is parsed, nothing would ever release it.
                        _ => return Err(PassReason::OtherProtocol),
                    };
                    return Ok(());
                }
            }
            // Segments are left, so the destination is a waypoint and not the frontend.
            ROUTING if o1 != 0 => return Err(PassReason::OtherProtocol),
            HOP_BY_HOP | ROUTING | DESTINATION => {
                // A header has at most 2,048 bytes and the parser walks six of them, so the sum stays below 64 KiB.
                view.behind += (u16::from(length) + 1) * 8;
            }
            _ => return Err(PassReason::OtherProtocol),
        }
        view.protocol = Protocol(next);
    }
    if is_transport(view.protocol) { Ok(()) } else { Err(PassReason::OtherProtocol) }
}

/// Whether a first fragment ends inside of its transport header.
#[inline(always)]
fn ends_early<P: Packet>(packet: &P, view: &View) -> bool {
    let needed = match view.protocol {
        Protocol::TCP => 20,
        Protocol::SCTP => 12,
        _ => 8,
    };
    // Behind the end, a link may have padded the packet.
    view.end(packet).is_none_or(|end| view.behind as usize + needed > end)
}

/// Reads the fields of the transport header that later decisions need.
#[inline(always)]
fn transport<P: Packet>(packet: &P, headers: &mut Headers) -> Result<(), PassReason> {
    let tuple = &mut headers.key.tuple;
    let view = &mut headers.view;
    (tuple.source_port, tuple.destination_port) = (Port::NONE, Port::NONE);
    // Only a first fragment may end there (RFC 1858 3 has the attack). A whole packet that ends there fails at the
    // reads below, or yields bytes of the padding as ports, and its receiver drops it.
    if view.piece == Piece::First && ends_early(packet, view) {
        view.piece = Piece::Short;
    }
    if matches!(view.piece, Piece::Later | Piece::Short) {
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
        // All 20 bytes of the TCP header must be there: the checksum is at offset 16.
        let rest: [u8; 8] = view.read(packet, 12).ok_or(PassReason::Malformed)?;
        let [_, flags, ..] = rest;
        view.tcp_flags = flags;
    } else if view.protocol == Protocol::SCTP {
        // All 12 bytes of the common header must be there (RFC 9260 3.1).
        let _checksum: [u8; 4] = view.read(packet, 8).ok_or(PassReason::Malformed)?;
        let chunk: Option<[u8; 1]> = view.read(packet, 12);
        view.chunk = chunk.map_or(0, |[chunk]| chunk);
    }
    Ok(())
}
