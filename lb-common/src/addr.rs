//! Addresses, ports and protocols as they stand on the wire.
//!
//! One 16-byte address type serves both families (IPv4 is mapped, RFC 4291 2.5.5.2), so that every
//! table and every rule exists once (ADR 0001). Byte order is in the types: nothing here is ever
//! compared or stored in host order.

/// An IPv6 address, or an IPv4 address mapped into `::ffff:0:0/96`. Network byte order.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ip([u8; 16]);

const _: () = assert!(size_of::<Ip>() == 16 && align_of::<Ip>() == 4);

impl Ip {
    /// `::`, which also stands for "no address" in the tables.
    pub const UNSPECIFIED: Self = Self([0; 16]);
    /// `0.0.0.0` mapped: the key under which the `NodePorts` of IPv4 are kept.
    pub const ANY_V4: Self = Self::v4([0; 4]);
    /// `::`: the key under which the `NodePorts` of IPv6 are kept.
    pub const ANY_V6: Self = Self::UNSPECIFIED;

    /// Maps an IPv4 address, given in network byte order.
    #[inline(always)]
    pub const fn v4(bytes: [u8; 4]) -> Self {
        let [a, b, c, d] = bytes;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// Takes an IPv6 address, given in network byte order.
    #[inline(always)]
    pub const fn v6(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Makes a key out of a kernel cookie, in a range that no packet can carry (`::/64` with a
    /// marker). Stands for a socket or a network namespace where no address is known yet.
    #[inline(always)]
    pub const fn cookie(cookie: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = cookie.to_be_bytes();
        Self([0, 0, 0, 0, 0, 0, 0xc0, 0x0c, a, b, c, d, e, f, g, h])
    }

    /// Says whether this is a mapped IPv4 address.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        let [a, b, c, _] = self.words();
        a == 0 && b == 0 && c == 0x0000_ffff_u32.to_be()
    }

    /// The 16 bytes, IPv4 mapped.
    #[inline(always)]
    pub const fn octets(&self) -> [u8; 16] {
        self.0
    }

    /// The last four bytes: the IPv4 address where [`Ip::is_v4`].
    #[inline(always)]
    pub const fn v4_octets(&self) -> [u8; 4] {
        let [.., a, b, c, d] = self.0;
        [a, b, c, d]
    }

    /// Four words in memory order (network byte order inside each): for checksums, hashes, compares.
    #[inline(always)]
    pub const fn words(&self) -> [u32; 4] {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.0;
        [
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, g, h]),
            u32::from_ne_bytes([i, j, k, l]),
            u32::from_ne_bytes([m, n, o, p]),
        ]
    }

    /// The wildcard of this address's family, as `NodePorts` are keyed.
    #[inline(always)]
    pub const fn any_of_family(&self) -> Self {
        if self.is_v4() { Self::ANY_V4 } else { Self::ANY_V6 }
    }

    /// 127.0.0.0/8 or `::1`.
    #[inline(always)]
    pub const fn is_loopback(&self) -> bool {
        let [.., a, _, _, d] = self.0;
        let [w0, w1, w2, w3] = self.words();
        if self.is_v4() { a == 127 } else { w0 | w1 | w2 == 0 && d == 1 && w3 == 1_u32.to_be() }
    }
}

/// A transport port. Network byte order; 0 means "none".
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port([u8; 2]);

impl Port {
    /// "No port": ICMP, and the mark of a known address without a port.
    pub const NONE: Self = Self([0, 0]);

    /// From a number in host order.
    #[inline(always)]
    pub const fn new(number: u16) -> Self {
        Self(number.to_be_bytes())
    }

    /// From the two bytes of a header.
    #[inline(always)]
    pub const fn from_wire(bytes: [u8; 2]) -> Self {
        Self(bytes)
    }

    /// The number in host order.
    #[inline(always)]
    pub const fn get(&self) -> u16 {
        u16::from_be_bytes(self.0)
    }

    /// The two bytes as a header carries them.
    #[inline(always)]
    pub const fn octets(&self) -> [u8; 2] {
        self.0
    }
}

/// A transport protocol that Services can name (`ServicePort.protocol`), as its IP number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// No protocol: the mark of a known address without a port.
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
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Address, IPv4 mapped.
    pub ip: Ip,
    /// Port, network byte order.
    pub port: Port,
    pad: [u8; 2],
}

impl Endpoint {
    /// Joins an address and a port.
    #[inline(always)]
    pub const fn new(ip: Ip, port: Port) -> Self {
        Self { ip, port, pad: [0; 2] }
    }
}

const _: () = assert!(size_of::<Endpoint>() == 20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_know_their_family() {
        assert!(Ip::v4([10, 0, 0, 1]).is_v4());
        assert!(!Ip::v6([0x20; 16]).is_v4());
        assert!(!Ip::UNSPECIFIED.is_v4());
        assert!(Ip::ANY_V4.is_v4());
        assert!(!Ip::cookie(u64::MAX).is_v4());
    }

    #[test]
    fn loopback_is_known_in_both_families() {
        let mut one = [0; 16];
        one[15] = 1;
        assert!(Ip::v6(one).is_loopback());
        assert!(Ip::v4([127, 3, 2, 1]).is_loopback());
        assert!(!Ip::v4([10, 0, 0, 1]).is_loopback());
        assert!(!Ip::UNSPECIFIED.is_loopback());
    }

    #[test]
    fn ports_keep_network_order() {
        assert_eq!(Port::new(80).octets(), [0, 80]);
        assert_eq!(Port::from_wire([0x1f, 0x90]).get(), 8080);
    }
}
