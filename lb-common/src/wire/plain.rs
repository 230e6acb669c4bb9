//! The headers that most packets have, read at constant offsets.

use super::{ETHERNET, IPV4, IPV6, Piece, TYPE_IPV4, TYPE_IPV6, View};
use crate::addr::{Ip, Port, Protocol};
use crate::flow::{FlowKey, Side};
use crate::packet::Packet;

/// Version and length of an IPv4 header without options.
const PLAIN_V4: u8 = 0x45;
/// In the second word of an IPv4 header, the bits that are set in fragments only: "more fragments", and the offset.
const PIECE_V4: u32 = u32::from_ne_bytes([0, 0, 0x3f, 0xff]);

/// Whether a packet is IPv4, else IPv6; `None` where it is neither, or tagged.
#[inline(always)]
pub fn is_v4<P: Packet>(packet: &P) -> Option<bool> {
    match packet.read(12)? {
        TYPE_IPV4 => Some(true),
        TYPE_IPV6 => Some(false),
        _ => None,
    }
}

/// Reads a whole TCP or UDP packet of IPv4 or IPv6 ([`is_v4`]) whose IP header has neither options nor extensions.
///
/// Its tuple goes into `key`; the view is the same as from [`super::parse`]. `None` where the packet has other headers,
/// or is too short.
#[inline(always)]
pub fn plain<P: Packet, const V4: bool>(packet: &P, key: &mut FlowKey, side: Side) -> Option<View> {
    let total = packet.length() - ETHERNET;
    let behind = ETHERNET + if V4 { IPV4 } else { IPV6 };
    let (protocol, header_checksum);
    if V4 {
        let [w0, w1, w2, source, destination] = packet.words(ETHERNET)?;
        let [version, _, len0, len1] = u32::to_ne_bytes(w0);
        let [_, number, sum0, sum1] = u32::to_ne_bytes(w2);
        let length = usize::from(u16::from_be_bytes([len0, len1]));
        let fits = length == 0 || length >= IPV4 && length <= total;
        if version != PLAIN_V4 || w1 & PIECE_V4 != 0 || !fits {
            return None;
        }
        key.tuple.source = Ip::v4_word(source);
        key.tuple.destination = Ip::v4_word(destination);
        (protocol, header_checksum) = (Protocol(number), [sum0, sum1]);
    } else {
        let [first, s0, s1, d0, d1] = packet.u64s(ETHERNET)?;
        let [version, _, _, _, len0, len1, next, _] = u64::to_ne_bytes(first);
        let length = usize::from(u16::from_be_bytes([len0, len1]));
        if version >> 4 != 6 || length + IPV6 > total {
            return None;
        }
        // Mapped IPv4 addresses are not refused here: `FLOWS6` has no entry for them, and the whole path passes them.
        key.tuple.source = Ip::from_u64s([s0, s1]);
        key.tuple.destination = Ip::from_u64s([d0, d1]);
        (protocol, header_checksum) = (Protocol(next), [0; 2]);
    }
    // VERIFIER: whole words, two of them, as everywhere (`View::end`).
    let [ports, _]: [u32; 2] = packet.words(behind)?;
    let [a, b, c, d] = ports.to_ne_bytes();
    let tcp_flags = if protocol == Protocol::TCP {
        // These two words end the 20 bytes of a TCP header, all of which `parse` requires as well.
        let [word, _]: [u32; 2] = packet.words(behind + 12)?;
        let [_, flags, ..] = word.to_ne_bytes();
        flags
    } else if protocol == Protocol::UDP {
        0
    } else {
        return None;
    };
    key.tuple.source_port = Port::from_wire([a, b]);
    key.tuple.destination_port = Port::from_wire([c, d]);
    (key.protocol, key.side) = (protocol, side);
    Some(View {
        behind: behind as u16,
        link: ETHERNET as u8,
        v4: V4,
        plain: true,
        protocol,
        tcp_flags,
        chunk: 0,
        piece: Piece::Whole,
        header_checksum,
        icmp: [0; 2],
    })
}
