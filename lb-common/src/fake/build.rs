//! Builds packets: both families, options, extension headers, tags, fragments, and correct checksums.

use std::vec;
use std::vec::Vec;

use super::dissect::{FRAGMENT, crc32c, internet, pseudo_sum};
use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::wire::tcp;

/// The destination link-layer address of built packets.
pub(super) const DEVICE_HARDWARE: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The transport header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP with these flags.
    Tcp(u8),
    /// UDP; without a checksum where false.
    Udp(bool),
    /// SCTP (one DATA-less common header and the payload).
    Sctp,
    /// ICMP of the family, by type and code. The payload follows the first four bytes.
    Icmp(u8, u8),
    /// Any other protocol: only the payload follows the IP header.
    Other(u8),
}

/// The part of a fragmented datagram that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of the fragment in bytes, a multiple of 8.
    pub offset: u16,
    /// Whether more fragments follow.
    pub more: bool,
    /// Identification of the datagram.
    pub id: u32,
}

/// The description of a packet to build.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Address and port of the sender.
    pub source: Endpoint,
    /// Address and port of the receiver.
    pub destination: Endpoint,
    pub transport: Transport,
    /// Bytes behind the transport header.
    pub payload: Vec<u8>,
    /// Link-layer addresses: destination and source.
    pub hardware: [[u8; 6]; 2],
    /// Hop limit.
    pub hops: u8,
    /// VLAN tags, outermost first.
    pub tags: Vec<u16>,
    /// IPv4 options (a multiple of 4 bytes).
    pub options: Vec<u8>,
    /// IPv6 extension headers: number, and the bytes behind the first two (6, 14, 22, ... of them).
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// The same headers behind the fragment header: in the bytes of the first fragment, and named by all of them
    /// (RFC 8200, section 4.5).
    pub fragmented_extensions: Vec<(u8, Vec<u8>)>,
    /// The fragment that the packet is, if it is one.
    pub piece: Option<Piece>,
    /// Sequence and acknowledgement numbers of a TCP segment.
    pub numbers: [u32; 2],
}

impl Datagram {
    /// A packet from one end to another.
    pub fn new(source: Endpoint, destination: Endpoint, transport: Transport) -> Self {
        Self {
            source,
            destination,
            transport,
            payload: b"payload.".to_vec(),
            hardware: [DEVICE_HARDWARE, [2, 0, 0, 0, 0, 2]],
            hops: 63,
            tags: Vec::new(),
            options: Vec::new(),
            extensions: Vec::new(),
            fragmented_extensions: Vec::new(),
            piece: None,
            numbers: [7, 9],
        }
    }

    pub fn syn(source: &str, destination: &str) -> Self {
        Self::tcp(source, destination, tcp::SYN)
    }

    /// A TCP segment.
    pub fn tcp(source: &str, destination: &str, flags: u8) -> Self {
        Self::new(super::at(source), super::at(destination), Transport::Tcp(flags))
    }

    /// A UDP datagram.
    pub fn udp(source: &str, destination: &str) -> Self {
        Self::new(super::at(source), super::at(destination), Transport::Udp(true))
    }

    /// An SCTP packet.
    pub fn sctp(source: &str, destination: &str) -> Self {
        Self::new(super::at(source), super::at(destination), Transport::Sctp)
    }

    /// An ICMP message, by type and code; `body` follows the four bytes of type, code and checksum.
    pub fn icmp(source: &str, destination: &str, message: (u8, u8), body: Vec<u8>) -> Self {
        let [source, destination] = [source, destination].map(|text| {
            let ip = if text.contains('[') || text.matches(':').count() == 1 {
                super::at(text).ip
            } else {
                super::ip(text)
            };
            Endpoint::new(ip, Port::NONE)
        });
        Self {
            payload: body,
            ..Self::new(source, destination, Transport::Icmp(message.0, message.1))
        }
    }

    /// Replaces the payload.
    #[must_use]
    pub fn with(self, payload: &[u8]) -> Self {
        Self { payload: payload.to_vec(), ..self }
    }

    /// Makes the packet one fragment of a datagram.
    #[must_use]
    pub fn piece(self, offset: u16, more: bool, id: u32) -> Self {
        Self { piece: Some(Piece { offset, more, id }), ..self }
    }

    /// Replaces the sequence and acknowledgement numbers.
    #[must_use]
    pub fn numbered(self, sequence: u32, acknowledgement: u32) -> Self {
        Self { numbers: [sequence, acknowledgement], ..self }
    }

    /// With a VLAN tag around it.
    #[must_use]
    pub fn tagged(mut self, tag: u16) -> Self {
        self.tags.insert(0, tag);
        self
    }

    /// The IP protocol of the packet.
    pub const fn protocol(&self) -> Protocol {
        match self.transport {
            Transport::Tcp(_) => Protocol::TCP,
            Transport::Udp(_) => Protocol::UDP,
            Transport::Sctp => Protocol::SCTP,
            Transport::Icmp(..) if self.source.ip.is_v4() => Protocol::ICMP,
            Transport::Icmp(..) => Protocol::ICMP6,
            Transport::Other(number) => Protocol(number),
        }
    }

    /// The bytes of the packet from its Ethernet header on.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = self.hardware.concat();
        for (index, tag) in self.tags.iter().enumerate() {
            let outer = index + 1 < self.tags.len();
            bytes.extend(if outer { [0x88, 0xa8] } else { [0x81, 0x00] });
            bytes.extend(tag.to_be_bytes());
        }
        let v4 = self.source.ip.is_v4();
        bytes.extend(if v4 { [0x08, 0x00] } else { [0x86, 0xdd] });
        bytes.extend(self.network());
        bytes
    }

    /// The bytes of the packet from its IP header on.
    pub fn network(&self) -> Vec<u8> {
        let body = self.body();
        if self.source.ip.is_v4() { self.ipv4(&body) } else { self.ipv6(&body) }
    }

    fn ipv4(&self, body: &[u8]) -> Vec<u8> {
        let header = 20 + self.options.len();
        let piece = self.piece.unwrap_or(Piece { offset: 0, more: false, id: 0x1234 });
        let offset = (piece.offset / 8) | if piece.more { 0x2000 } else { 0 };
        let mut bytes = vec![0x40 | (header / 4) as u8, 0];
        bytes.extend(((header + body.len()) as u16).to_be_bytes());
        bytes.extend((piece.id as u16).to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend([self.hops, self.protocol().0, 0, 0]);
        bytes.extend(self.source.ip.v4_octets());
        bytes.extend(self.destination.ip.v4_octets());
        bytes.extend(&self.options);
        let sum = internet(&bytes, 0);
        bytes.splice(10..12, sum.to_be_bytes()).for_each(drop);
        bytes.extend(body);
        bytes
    }

    fn ipv6(&self, body: &[u8]) -> Vec<u8> {
        let mut headers = self.extensions.clone();
        if let Some(piece) = self.piece {
            let mut rest = (piece.offset | u16::from(piece.more)).to_be_bytes().to_vec();
            rest.extend(piece.id.to_be_bytes());
            headers.push((FRAGMENT, rest));
        }
        let included = headers.len();
        headers.extend(self.fragmented_extensions.iter().cloned());
        let kinds = headers.iter().map(|(kind, _)| *kind).chain([self.protocol().0]);
        let kinds: Vec<u8> = kinds.collect();
        let is_later = self.piece.is_some_and(|piece| piece.offset > 0);
        let written = if is_later { included } else { headers.len() };
        let mut chain = Vec::new();
        for ((kind, rest), next) in headers.iter().zip(kinds.iter().skip(1)).take(written) {
            let units = if *kind == FRAGMENT { 0 } else { ((rest.len() + 2) / 8 - 1) as u8 };
            chain.extend([*next, units]);
            chain.extend(rest);
        }
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(((chain.len() + body.len()) as u16).to_be_bytes());
        bytes.extend([kinds.first().copied().unwrap_or(59), self.hops]);
        bytes.extend(self.source.ip.octets());
        bytes.extend(self.destination.ip.octets());
        bytes.extend(chain);
        bytes.extend(body);
        bytes
    }

    /// Transport header and payload; for a later fragment the payload alone.
    fn body(&self) -> Vec<u8> {
        if self.piece.is_some_and(|piece| piece.offset > 0) {
            return self.payload.clone();
        }
        let mut ports = self.source.port.octets().to_vec();
        ports.extend(self.destination.port.octets());
        let (mut bytes, checksum) = match self.transport {
            Transport::Tcp(flags) => {
                ports.extend(self.numbers.map(u32::to_be_bytes).concat());
                ports.extend([0x50, flags, 0x10, 0, 0, 0, 0, 0]);
                (ports, Some(16))
            }
            Transport::Udp(summed) => {
                ports.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                ports.extend([0, 0]);
                (ports, summed.then_some(6))
            }
            Transport::Sctp => {
                ports.extend([0, 0, 0, 5, 0, 0, 0, 0]);
                (ports, None)
            }
            Transport::Icmp(kind, code) => (vec![kind, code, 0, 0], Some(2)),
            Transport::Other(_) => (Vec::new(), None),
        };
        bytes.extend(&self.payload);
        if let Some(at) = checksum {
            let sum = internet(&bytes, self.pseudo(bytes.len()));
            let udp = matches!(self.transport, Transport::Udp(_));
            let sum = if udp && sum == 0 { 0xffff } else { sum };
            bytes.splice(at..at + 2, sum.to_be_bytes()).for_each(drop);
        } else if self.transport == Transport::Sctp {
            let sum = crc32c(&bytes);
            bytes.splice(8..12, sum.to_le_bytes()).for_each(drop);
        }
        bytes
    }

    fn pseudo(&self, length: usize) -> u32 {
        if self.protocol() == Protocol::ICMP {
            return 0;
        }
        let (source, destination): (Ip, Ip) = (self.source.ip, self.destination.ip);
        pseudo_sum(&source, &destination, self.protocol(), length)
    }
}
