//! Network prefixes of either family.

use crate::addr::Ip;
use crate::layout::plain;

/// A network prefix; bits outside of the mask are zero in `ip`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Network address, IPv4 mapped.
    pub ip: Ip,
    /// The mask as four words in network order.
    pub mask: Ip,
}

plain!(Prefix = 32 { ip, mask });

impl Prefix {
    /// A prefix that holds no address by [`Prefix::covers`], for
    /// [`ServiceRanges::cluster_ip_cover`](super::ServiceRanges::cluster_ip_cover).
    pub const NOTHING: Self = Self { ip: Ip::v6([0xff; 16]), mask: Ip::UNSPECIFIED };

    /// Whether the prefix is set: an all-zero mask means that there is none.
    #[inline(always)]
    pub const fn is_set(&self) -> bool {
        let [m0, m1] = self.mask.u64s();
        m0 | m1 != 0
    }

    /// Whether `ip` lies inside. An unset prefix contains nothing.
    #[inline(always)]
    pub const fn contains(&self, ip: &Ip) -> bool {
        self.is_set() && self.covers(ip)
    }

    /// Whether `ip` lies inside. Unlike for [`Prefix::contains`], a mask and an address of zeros hold every address.
    #[inline(always)]
    pub const fn covers(&self, ip: &Ip) -> bool {
        let [m0, m1] = self.mask.u64s();
        let [a0, a1] = ip.u64s();
        let [n0, n1] = self.ip.u64s();
        // VERIFIER: no `&&`, since each branch doubles the paths of the program around it.
        ((a0 & m0) ^ n0) | ((a1 & m1) ^ n1) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_of_everything_and_of_nothing() {
        for ip in [Ip::v4([10, 0, 0, 1]), Ip::v6([0xff; 16]), Ip::UNSPECIFIED] {
            assert!(Prefix::default().covers(&ip));
            assert!(!Prefix::default().contains(&ip));
            assert!(!Prefix::NOTHING.covers(&ip));
        }
    }
}
