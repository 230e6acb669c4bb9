//! The headers of a packet, read once, and access to their fields afterwards.

use super::{ETHERNET, IPV4, IPV6, VLAN, sctp, tcp};
use crate::addr::Protocol;
use crate::checksum::Difference;
use crate::packet::{Covered, Packet};

/// The part of a datagram that a packet carries.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Piece {
    #[default]
    Whole,
    /// The first fragment, which carries the ports.
    First,
    /// A first fragment that ends inside of its transport header, as port scanners send it.
    Short,
    /// A later fragment.
    Later,
}

/// The headers of a packet, read once; its tuple lies in [`super::Headers::key`].
///
/// VERIFIER: the view lies in a map, where the verifier forgets values. So all packets of a family look the same to the
/// verifier from here on, and the offsets are made constant again where they are used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Offset of the transport header; code that needs a constant uses [`View::transport`].
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
    /// Type of the first SCTP chunk (RFC 9260 3.2), else 0.
    pub chunk: u8,
    /// Whole packet, or the kind of fragment.
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
        // VERIFIER: one of two constants and not the stored number, because offsets must be constant (`Packet::read`).
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

    /// Offset of the end of the packet, by its IP header: a link may pad a short packet.
    #[inline(always)]
    pub fn end<P: Packet>(&self, packet: &P) -> Option<usize> {
        /// Offset of the payload length in an IPv6 header.
        const LENGTH_V6: usize = 4;
        let at = self.network(packet);
        // VERIFIER: whole words; of two u16 the compiler makes one read through either of two packet pointers.
        let (end, length) = if self.v4 {
            let [word] = packet.words(at)?;
            let [_, _, high, low] = u32::to_ne_bytes(word);
            (at, [high, low])
        } else {
            let [word] = packet.words(at + LENGTH_V6)?;
            let [high, low, _, _] = u32::to_ne_bytes(word);
            (at + IPV6, [high, low])
        };
        // A length of 0 ("BIG TCP", or forged) gives an end before the transport header: callers then find nothing to
        // read.
        Some(end + usize::from(u16::from_be_bytes(length)))
    }

    /// Whether the packet opens a TCP connection.
    #[inline(always)]
    pub const fn is_syn(&self) -> bool {
        const MASK: u8 = tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN;
        // A SYN may carry the flags of ECN as well (RFC 3168 6.1.1), so only these four count.
        self.tcp_flags & MASK == tcp::SYN
    }

    /// Whether the packet accepts a TCP connection.
    #[inline(always)]
    pub const fn is_syn_ack(&self) -> bool {
        const MASK: u8 = tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN;
        self.tcp_flags & MASK == tcp::SYN | tcp::ACK
    }

    /// Whether the packet accepts a TCP connection or an SCTP association (INIT ACK).
    #[inline(always)]
    pub const fn is_accepting(&self) -> bool {
        self.is_syn_ack() || self.chunk == sctp::INIT_ACK
    }

    /// Whether the packet asks for a TCP connection or an SCTP association (INIT).
    #[inline(always)]
    pub const fn is_opening(&self) -> bool {
        self.is_syn() || self.chunk == sctp::INIT
    }

    /// Whether the packet is one that opens or refuses an SCTP association (INIT or ABORT), and so shows none that
    /// stands.
    #[inline(always)]
    pub const fn shows_no_association(&self) -> bool {
        matches!(self.chunk, sctp::INIT | sctp::ABORT)
    }

    /// Whether the packet is ICMP of either family.
    #[inline(always)]
    pub const fn is_icmp(&self) -> bool {
        matches!(self.protocol, Protocol::ICMP | Protocol::ICMP6)
    }

    /// Whether the packet is no fragment and has no options or extension headers, as most packets.
    #[inline(always)]
    pub const fn is_simple(&self) -> bool {
        self.plain && matches!(self.piece, Piece::Whole)
    }

    /// Whether XDP takes the packet: the others are rare, and tc handles them.
    #[inline(always)]
    pub const fn is_for_xdp(&self) -> bool {
        self.is_simple() && matches!(self.protocol, Protocol::TCP | Protocol::UDP)
    }

    /// Whether the packet is a TCP RST.
    #[inline(always)]
    pub const fn is_rst(&self) -> bool {
        self.tcp_flags & tcp::RST != 0
    }

    /// Whether the packet refuses a TCP connection or an SCTP association: it gets no reply.
    #[inline(always)]
    pub const fn is_refusing(&self) -> bool {
        self.is_rst() || self.chunk == sctp::ABORT
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
    /// VERIFIER: from single bytes the compiler would assemble the word before the check that they exist, and would
    /// then shift a pointer.
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
        // Changed addresses leave the sum over an IPv4 packet as it is, because the header checksum balances them. The
        // kernel assumes the same for both families, so for IPv6 the sum must be corrected here.
        if covered == Covered::PseudoHeader && !self.v4 {
            packet.summed(change);
        }
        let udp = self.protocol == Protocol::UDP;
        if udp && covered == Covered::Payload && !packet.is_at_xdp() {
            let [.., high, low] = self.word(packet, at - 2)?.to_ne_bytes();
            // An absent UDP checksum balances no change.
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
