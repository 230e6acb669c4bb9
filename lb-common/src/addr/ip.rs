//! One address type for both families (ADR 0001).

use core::cmp::Ordering;
use core::hash::{Hash, Hasher};
#[cfg(any(test, feature = "host"))]
use core::net::IpAddr;

use crate::layout::{Plain, named, sealed};

/// An IPv6 address, or an IPv4 address mapped into `::ffff:0:0/96`. Network byte order.
///
/// Stored as two u64s in memory order: the bytes in memory are those of the wire, and the compiler moves u64s, not
/// bytes (VERIFIER: 16 bytes each in a register overflow the stack of a program). Words of four bytes would not do
/// either: a processor cannot forward two small stores to the one large load that compares a key.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Ip([u64; 2]);

const _: () = assert!(size_of::<Ip>() == 16 && align_of::<Ip>() == 4);

// Implemented by hand: the macro would take a reference to a packed field.
impl sealed::Proven for Ip {}

impl Plain for Ip {
    const FINGERPRINT: u64 = named(<[u64; 2]>::FINGERPRINT, "Ip");
    const ZERO: Self = Self([0; 2]);
}

/// The third word of a mapped IPv4 address.
const MAPPED: u32 = 0x0000_ffff_u32.to_be();
/// The second word of a cookie.
const COOKIE: u32 = 0x0000_c00c_u32.to_be();

/// Two words in memory order as one value.
pub(crate) const fn joined(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        first as u64 | (second as u64) << 32
    } else {
        (first as u64) << 32 | second as u64
    }
}

/// A value as two words.
pub(crate) const fn parted(value: u64) -> [u32; 2] {
    let (low, high) = (value as u32, (value >> 32) as u32);
    if cfg!(target_endian = "little") { [low, high] } else { [high, low] }
}

impl PartialEq for Ip {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let [a0, a1] = self.0;
        let [b0, b1] = other.0;
        (a0 ^ b0) | (a1 ^ b1) == 0
    }
}

impl Eq for Ip {}

impl Hash for Ip {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.u64s().hash(state);
    }
}

impl PartialOrd for Ip {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ip {
    fn cmp(&self, other: &Self) -> Ordering {
        self.octets().cmp(&other.octets())
    }
}

#[cfg(any(test, feature = "host"))]
impl From<IpAddr> for Ip {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::v4(ip.octets()),
            IpAddr::V6(ip) => Self::v6(ip.octets()),
        }
    }
}

#[cfg(any(test, feature = "host"))]
impl From<Ip> for IpAddr {
    fn from(ip: Ip) -> Self {
        if ip.is_v4() { Self::from(ip.v4_octets()) } else { Self::from(ip.octets()) }
    }
}

impl Ip {
    /// `::`, which also stands for "no address" in the tables.
    pub const UNSPECIFIED: Self = Self([0; 2]);
    /// `0.0.0.0` mapped: the key under which the `NodePorts` of IPv4 are kept.
    pub const ANY_V4: Self = Self::v4([0; 4]);
    /// `::`: the key under which the `NodePorts` of IPv6 are kept.
    pub const ANY_V6: Self = Self::UNSPECIFIED;

    /// Maps an IPv4 address, given in network byte order.
    #[inline(always)]
    pub const fn v4(bytes: [u8; 4]) -> Self {
        Self::v4_word(u32::from_ne_bytes(bytes))
    }

    /// Maps an IPv4 address, given as a word in memory order.
    #[inline(always)]
    pub const fn v4_word(word: u32) -> Self {
        Self([0, joined(MAPPED, word)])
    }

    /// Takes an IPv6 address, given in network byte order.
    #[inline(always)]
    pub const fn v6(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self([
            u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
        ])
    }

    /// From two u64s in memory order, as [`Ip::u64s`] gives them.
    #[inline(always)]
    pub const fn from_u64s(u64s: [u64; 2]) -> Self {
        Self(u64s)
    }

    /// From four words in memory order, as [`Ip::words`] gives them.
    #[inline(always)]
    pub const fn from_words(words: [u32; 4]) -> Self {
        let [a, b, c, d] = words;
        Self([joined(a, b), joined(c, d)])
    }

    /// A key for a kernel cookie, in a range that no packet can carry (`::/64` with a marker). It stands for a socket
    /// or a network namespace where no address is known yet.
    #[inline(always)]
    pub const fn cookie(cookie: u64) -> Self {
        Self([joined(0, COOKIE), joined((cookie >> 32) as u32, cookie as u32)])
    }

    /// Whether this is a mapped IPv4 address.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        let [first, second] = self.0;
        let [third, _] = parted(second);
        first | (third ^ MAPPED) as u64 == 0
    }

    /// The 16 bytes of the address, IPv4 mapped.
    #[inline(always)]
    pub const fn octets(&self) -> [u8; 16] {
        let [first, second] = self.0;
        let [a, b, c, d, e, f, g, h] = first.to_ne_bytes();
        let [i, j, k, l, m, n, o, p] = second.to_ne_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    /// The last word in memory order: the IPv4 address where [`Ip::is_v4`].
    #[inline(always)]
    pub const fn last_word(&self) -> u32 {
        let [_, second] = self.0;
        let [_, word] = parted(second);
        word
    }

    /// The last four bytes: the IPv4 address where [`Ip::is_v4`].
    #[inline(always)]
    pub const fn v4_octets(&self) -> [u8; 4] {
        self.last_word().to_ne_bytes()
    }

    /// Four words in memory order (network byte order inside each): for checksums, hashes, compares.
    #[inline(always)]
    pub const fn words(&self) -> [u32; 4] {
        let [first, second] = self.0;
        let ([a, b], [c, d]) = (parted(first), parted(second));
        [a, b, c, d]
    }

    /// Two u64s in memory order.
    #[inline(always)]
    pub const fn u64s(&self) -> [u64; 2] {
        self.0
    }

    /// The wildcard of this address's family, under which `NodePorts` are kept.
    #[inline(always)]
    #[must_use]
    pub const fn any_of_family(&self) -> Self {
        if self.is_v4() { Self::ANY_V4 } else { Self::ANY_V6 }
    }

    /// Whether the address is unspecified: `0.0.0.0` or `::`.
    #[inline(always)]
    pub fn is_unspecified(&self) -> bool {
        *self == self.any_of_family()
    }

    /// Whether the address is a link-local one of IPv6 (RFC 4291 2.5.6).
    #[inline(always)]
    pub const fn is_link_local(&self) -> bool {
        let [w0, ..] = self.words();
        w0 & 0xffc0_0000_u32.to_be() == 0xfe80_0000_u32.to_be()
    }

    /// Whether the address is invalid as a source on a wire (RFC 1122 3.2.1.3, RFC 4291 2.5 and 2.7), by Linux's rules:
    /// loopback, unspecified, multicast, and of IPv4 also 0.0.0.0/8 and 255.255.255.255.
    #[inline(always)]
    pub const fn is_martian(&self) -> bool {
        let [w0, w1, w2, w3] = self.words();
        let [first, ..] = if self.is_v4() { w3.to_ne_bytes() } else { w0.to_ne_bytes() };
        if self.is_v4() {
            // As in `ip_route_input_slow` (net/ipv4/route.c), only the last address of 240.0.0.0/4 is invalid.
            first == 0 || first == 127 || first >= 224 && first < 240 || w3 == u32::MAX
        } else {
            first == 0xff || w0 | w1 | w2 == 0 && (w3 == 0 || w3 == 1_u32.to_be())
        }
    }

    /// Whether the address is loopback: 127.0.0.0/8 or `::1`.
    #[inline(always)]
    pub const fn is_loopback(&self) -> bool {
        let [first, ..] = self.v4_octets();
        if self.is_v4() {
            first == 127
        } else {
            self.0[0] == 0 && self.0[1] == joined(0, 1_u32.to_be())
        }
    }
}

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
    fn addresses_of_both_families_are_converted_and_back() {
        for text in ["10.0.0.1", "0.0.0.0", "fd00::1", "::"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(Ip::from(ip).is_v4(), ip.is_ipv4(), "{text}");
            assert_eq!(IpAddr::from(Ip::from(ip)), ip);
        }
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
}
