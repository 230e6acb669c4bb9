//! Addresses, ports and protocols as they stand on the wire.
//!
//! One 16-byte address type serves both families (IPv4 is mapped, RFC 4291 2.5.5.2), so that every
//! table and every rule exists once (ADR 0001). Byte order is in the types: nothing here is ever
//! compared or stored in host order.

mod ip;

use core::cmp::Ordering;

pub use self::ip::Ip;
pub(crate) use self::ip::{joined, parted};
use crate::layout::plain;

/// A transport port. Network byte order; 0 means "none".
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Port(u16);

plain!(Port = 2 { 0 });

impl PartialOrd for Port {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Port {
    fn cmp(&self, other: &Self) -> Ordering {
        self.get().cmp(&other.get())
    }
}

impl Port {
    /// "No port": ICMP, and the marker of a known address without a port.
    pub const NONE: Self = Self(0);

    /// A port from a number in host order.
    #[inline(always)]
    pub const fn new(number: u16) -> Self {
        Self(number.to_be())
    }

    /// A port from the two bytes of a header.
    #[inline(always)]
    pub const fn from_wire(bytes: [u8; 2]) -> Self {
        Self(u16::from_ne_bytes(bytes))
    }

    /// Both ports of a transport header, source first, from its first word in memory order.
    #[inline(always)]
    pub const fn pair(word: u32) -> (Self, Self) {
        let [a, b, c, d] = word.to_ne_bytes();
        (Self::from_wire([a, b]), Self::from_wire([c, d]))
    }

    /// The first word of a transport header, in memory order.
    #[inline(always)]
    pub const fn word(source: Self, destination: Self) -> u32 {
        // Not assembled from bytes, which the compiler would handle one by one.
        let (first, second) = (source.0 as u32, destination.0 as u32);
        if cfg!(target_endian = "little") { first | second << 16 } else { first << 16 | second }
    }

    /// The number in host order.
    #[inline(always)]
    pub const fn get(&self) -> u16 {
        u16::from_be(self.0)
    }

    /// The two bytes as a header carries them.
    #[inline(always)]
    pub const fn octets(&self) -> [u8; 2] {
        self.0.to_ne_bytes()
    }
}

/// A transport protocol that Services can name (`ServicePort.protocol`), as its IP number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

plain!(Protocol = 1 { 0 });

impl Protocol {
    /// No protocol: the marker of a known address without a port.
    pub const NONE: Self = Self(0);
    /// ICMP (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// `ICMPv6` (RFC 4443).
    pub const ICMP6: Self = Self(58);
    /// SCTP (RFC 9260).
    pub const SCTP: Self = Self(132);
}

/// Address and port of one end.
///
/// VERIFIER: aligned to 8 like every value that a program builds on its stack, where the compiler joins stores and the
/// verifier refuses misaligned ones.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Address, IPv4 mapped.
    pub ip: Ip,
    /// Port, network byte order.
    pub port: Port,
    pad: u16,
    rest: u32,
}

impl Endpoint {
    /// Joins an address and a port.
    #[inline(always)]
    pub const fn new(ip: Ip, port: Port) -> Self {
        Self { ip, port, pad: 0, rest: 0 }
    }
}

plain!(Endpoint = 24 { ip, port, pad, rest });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_keep_network_order() {
        assert_eq!(Port::new(80).octets(), [0, 80]);
        assert_eq!(Port::from_wire([0x1f, 0x90]).get(), 8080);
    }
}
