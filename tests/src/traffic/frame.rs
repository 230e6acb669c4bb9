//! One captured frame, parsed as far as tests need it, with its checksums recomputed and verified.
//!
//! It deliberately shares no code with the data path: it is a second opinion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const ETHERNET: usize = 14;
const FRAGMENT: u8 = 44;
/// IPv6 extension headers that may precede a transport header: hop-by-hop options, routing, fragment, destination
/// options.
const EXTENSIONS: [u8; 4] = [0, 43, FRAGMENT, 60];
/// IP protocol number of ICMP, as in the headers of IPv4 and IPv6.
pub const ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of `ICMPv6`.
pub const ICMPV6: u8 = 58;

/// A captured frame with the kernel's metadata.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The bytes from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// Whether the transport checksum covers only the pseudo-header; the interface that transmits it completes it.
    pub partial: bool,
    /// Whether the frame left by the interface; otherwise it arrived.
    pub outgoing: bool,
    /// The VLAN tag, which the kernel keeps apart from the bytes.
    pub tag: Option<u16>,
}

/// The addresses of a frame, and the offset of its transport header.
struct Network {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    transport: usize,
    end: usize,
    fragment: bool,
}

impl Frame {
    /// Returns the IP protocol number; `None` if the frame is not IP.
    pub fn protocol(&self) -> Option<u8> {
        self.network().map(|network| network.protocol)
    }

    /// Returns the source address; the port is 0 if there is none.
    pub fn source(&self) -> Option<SocketAddr> {
        self.network().map(|n| SocketAddr::new(n.source, self.port(&n, 0)))
    }

    /// Returns the destination address; the port is 0 if there is none.
    pub fn destination(&self) -> Option<SocketAddr> {
        self.network().map(|n| SocketAddr::new(n.destination, self.port(&n, 2)))
    }

    /// Returns the TCP flags: 1 FIN, 2 SYN, 4 RST, 16 ACK.
    pub fn tcp_flags(&self) -> Option<u8> {
        let network = self.network().filter(|network| network.protocol == TCP)?;
        self.bytes.get(network.transport + 13).copied()
    }

    /// Returns the TCP sequence and acknowledgement numbers.
    pub fn tcp_numbers(&self) -> Option<(u32, u32)> {
        let network = self.network().filter(|network| network.protocol == TCP)?;
        let word = |at| {
            let bytes = self.bytes.get(network.transport + at..network.transport + at + 4)?;
            Some(u32::from_be_bytes(bytes.try_into().ok()?))
        };
        Some((word(4)?, word(8)?))
    }

    /// Returns ICMP type and code, for both families.
    pub fn icmp(&self) -> Option<(u8, u8)> {
        let network = self.network().filter(|n| n.protocol == ICMP || n.protocol == ICMPV6)?;
        let header = self.bytes.get(network.transport..network.transport + 2)?;
        Some((*header.first()?, *header.last()?))
    }

    /// Returns the packet that an ICMP error quotes, as a frame.
    pub fn quoted(&self) -> Option<Self> {
        let network = self.network().filter(|n| n.protocol == ICMP || n.protocol == ICMPV6)?;
        let quote = self.bytes.get(network.transport + 8..network.end)?;
        let mut bytes = self.bytes.get(..ETHERNET)?.to_vec();
        bytes.extend(quote);
        Some(Self { bytes, partial: false, outgoing: self.outgoing, tag: None })
    }

    /// Returns source and destination of the packet that an ICMP error quotes.
    pub fn quoted_ends(&self) -> Option<[SocketAddr; 2]> {
        let quoted = self.quoted()?;
        Some([quoted.source()?, quoted.destination()?])
    }

    /// Names every wrong checksum; empty if all are right, or if there is none.
    pub fn wrong_checksums(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let Some(network) = self.network() else {
            return wrong;
        };
        if let Some(header) = self.ipv4_header()
            && sum(header, 0) != 0xffff
        {
            wrong.push("IPv4 header".to_owned());
        }
        if !network.fragment
            && let Some(complaint) = self.wrong_transport(&network)
        {
            wrong.push(complaint);
        }
        wrong
    }

    fn wrong_transport(&self, network: &Network) -> Option<String> {
        let (name, at) = match network.protocol {
            TCP => ("TCP", 16),
            UDP => ("UDP", 6),
            ICMP => ("ICMP", 2),
            ICMPV6 => ("ICMPv6", 2),
            _ => return None,
        };
        let segment = self.bytes.get(network.transport..network.end)?;
        let field = u16::from_be_bytes(segment.get(at..at + 2)?.try_into().ok()?);
        let pseudo = if network.protocol == ICMP { 0 } else { pseudo_header(network) };
        if network.protocol == UDP && field == 0 {
            return network.source.is_ipv6().then(|| "UDP checksum of zero over IPv6".to_owned());
        }
        // Only checksums of TCP and UDP can be partial; an ICMP message about such a packet must have a complete one.
        let partial = self.partial && matches!(network.protocol, TCP | UDP);
        let (found, expected) =
            if partial { (field, fold(pseudo)) } else { (sum(segment, pseudo), 0xffff) };
        let kind = if partial { "partial" } else { "full" };
        (found != expected).then(|| format!("{name} {kind}: {found:#06x}, not {expected:#06x}"))
    }

    fn ipv4_header(&self) -> Option<&[u8]> {
        let ip = self.bytes.get(ETHERNET..)?;
        let first = *ip.first()?;
        (first >> 4 == 4).then(|| ip.get(..usize::from(first & 15) * 4))?
    }

    fn port(&self, network: &Network, offset: usize) -> u16 {
        let has_ports = matches!(network.protocol, TCP | UDP) && !network.fragment;
        let at = network.transport + offset;
        let port = self.bytes.get(at..at + 2).filter(|_| has_ports);
        port.and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_be_bytes)
    }

    fn network(&self) -> Option<Network> {
        let kind = u16::from_be_bytes(self.bytes.get(12..ETHERNET)?.try_into().ok()?);
        let ip = self.bytes.get(ETHERNET..)?;
        let word = |at: usize| Some(u16::from_be_bytes(ip.get(at..at + 2)?.try_into().ok()?));
        match kind {
            0x0800 => Some(Network {
                source: Ipv4Addr::from(address::<4>(ip, 12)?).into(),
                destination: Ipv4Addr::from(address::<4>(ip, 16)?).into(),
                protocol: *ip.get(9)?,
                transport: ETHERNET + self.ipv4_header()?.len(),
                end: ETHERNET + usize::from(word(2)?),
                fragment: word(6)? & 0x3fff != 0,
            }),
            0x86dd => {
                let (mut protocol, mut at, mut fragment) = (*ip.get(6)?, 40, false);
                while EXTENSIONS.contains(&protocol) {
                    let units = usize::from(*ip.get(at + 1)?);
                    fragment |= protocol == FRAGMENT;
                    let length = if protocol == FRAGMENT { 8 } else { (units + 1) * 8 };
                    (protocol, at) = (*ip.get(at)?, at + length);
                }
                Some(Network {
                    source: Ipv6Addr::from(address::<16>(ip, 8)?).into(),
                    destination: Ipv6Addr::from(address::<16>(ip, 24)?).into(),
                    protocol,
                    transport: ETHERNET + at,
                    end: ETHERNET + 40 + usize::from(word(4)?),
                    fragment,
                })
            }
            _ => None,
        }
    }
}

fn address<const N: usize>(ip: &[u8], at: usize) -> Option<[u8; N]> {
    ip.get(at..at + N)?.try_into().ok()
}

/// The sum over addresses, length and protocol that is part of a transport checksum.
fn pseudo_header(network: &Network) -> u32 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut bytes = octets(network.source);
    bytes.extend(octets(network.destination));
    let length = (network.end - network.transport) as u32;
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0, 0, network.protocol]);
    u32::from(sum(&bytes, 0))
}

/// The ones' complement sum of 16-bit words, an odd last byte padded with zero (RFC 1071).
fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    fold(words.fold(start, u32::wrapping_add))
}

const fn fold(mut total: u32) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP datagram "hi" from 10.0.0.1:1 to 10.0.0.2:2 with complete checksums.
    fn datagram() -> Frame {
        let mut bytes = vec![0; 12];
        bytes.extend([0x08, 0x00, 0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0x66, 0xcd]);
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 10, 0x83, 0x6b, b'h', b'i']);
        Frame { bytes, partial: false, outgoing: true, tag: None }
    }

    #[test]
    fn right_checksums_are_accepted() {
        assert_eq!(datagram().wrong_checksums(), Vec::<String>::new());
        assert_eq!(datagram().destination(), Some("10.0.0.2:2".parse().unwrap()));
    }

    #[test]
    fn changed_byte_is_noticed() {
        let mut frame = datagram();
        *frame.bytes.last_mut().unwrap() = b'o';
        assert_eq!(frame.wrong_checksums().len(), 1);
    }

    #[test]
    fn partial_checksum_covers_the_pseudo_header_only() {
        let mut frame = datagram();
        frame.partial = true;
        assert_eq!(frame.wrong_checksums().len(), 1);
        let pseudo = 0x0a00 + 1 + 0x0a00 + 2 + 10 + 17;
        frame.bytes[40..42].copy_from_slice(&u16::to_be_bytes(pseudo));
        assert_eq!(frame.wrong_checksums(), Vec::<String>::new());
    }
}
