//! Builds the first packet of a client: all bytes that the data path reads of it.

use std::net::{IpAddr, SocketAddr};

use lb_common::addr::Protocol;
use lb_common::wire::{sctp, tcp};

/// The length of an Ethernet header without its type, in bytes.
const HARDWARE: usize = 12;
const HOPS: u8 = 64;
/// The length of the longest transport header here, that of TCP without options, in bytes.
const TCP: usize = 20;
/// The length of a UDP header and its data.
const SHORT: usize = 16;
/// The length of an SCTP header without chunks (RFC 9260 3.1).
const COMMON: usize = 12;
/// The length of an SCTP header and an INIT chunk (RFC 9260 3.3.2).
const SCTP: usize = 32;

/// Returns a SYN, an INIT or the first datagram. Checksums are zero, as no decision depends on them.
pub(super) fn first(protocol: Protocol, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let transport = transport(protocol, from.port(), to.port());
    let mut packet = vec![0; HARDWARE];
    let length = transport.len() as u16;
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x08, 0x00, 0x45, 0]);
            packet.extend((20 + length).to_be_bytes());
            // The identification is 0, the flag "don't fragment" is set, and there is no offset.
            packet.extend([0, 0, 0x40, 0, HOPS, protocol.0, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        (from, to) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(length.to_be_bytes());
            packet.extend([protocol.0, HOPS]);
            packet.extend(v6(from));
            packet.extend(v6(to));
        }
    }
    packet.extend(transport);
    packet
}

const fn v6(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn transport(protocol: Protocol, from: u16, to: u16) -> Vec<u8> {
    let mut header = [from.to_be_bytes(), to.to_be_bytes()].concat();
    if protocol == Protocol::TCP {
        header.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, tcp::SYN]);
        header.resize(TCP, 0);
        return header;
    }
    if protocol == Protocol::SCTP {
        header.resize(COMMON, 0);
        header.extend([sctp::INIT, 0, 0, (SCTP - COMMON) as u8]);
        header.resize(SCTP, 0);
        return header;
    }
    header.extend((SHORT as u16).to_be_bytes());
    header.resize(SHORT, 0);
    header
}

#[cfg(test)]
mod tests {
    use lb_common::fake::{Datagram, Transport, at};

    use super::*;

    /// An INIT chunk: its type, flags and length, and 16 bytes of values.
    const INIT: [u8; 20] = [1, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// Returns a packet without the fields that no decision depends on.
    fn decisive(mut packet: Vec<u8>, protocol: Protocol, v4: bool) -> Vec<u8> {
        let transport = HARDWARE + 2 + if v4 { 20 } else { 40 };
        packet[..HARDWARE].fill(0);
        // Window and checksum, tag and checksum, or checksum alone.
        let rest = match protocol {
            Protocol::TCP => 14..18,
            Protocol::SCTP => 4..12,
            _ => 6..8,
        };
        packet[transport + rest.start..transport + rest.end].fill(0);
        if v4 {
            // Identification with the flags of fragments, and the checksum.
            packet[18..22].fill(0);
            packet[24..26].fill(0);
        }
        packet
    }

    #[test]
    fn first_packet_equals_a_datagram_of_the_fixtures() {
        let asks = [["10.1.0.5:40000", "10.96.0.10:80"], ["[fd00::1]:40000", "[fd00::2]:80"]];
        for (protocol, transport, payload) in [
            (Protocol::TCP, Transport::Tcp(tcp::SYN), &[][..]),
            (Protocol::UDP, Transport::Udp(true), &[0; 8]),
            (Protocol::SCTP, Transport::Sctp, &INIT),
        ] {
            for [from, to] in asks {
                let [source, destination] =
                    [from, to].map(|text| text.parse().expect("an address"));
                let known = Datagram::new(at(from), at(to), transport).with(payload);
                let known = Datagram { hops: HOPS, ..known.numbered(1, 0) }.build();
                let made = first(protocol, source, destination);
                let [made, known] =
                    [made, known].map(|packet| decisive(packet, protocol, source.is_ipv4()));
                assert_eq!(made, known, "{protocol:?} {from}");
            }
        }
    }
}
