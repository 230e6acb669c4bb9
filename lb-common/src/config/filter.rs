//! A filter of addresses: each address stands for one of 4,096 bits.
//!
//! A packet for no Service whose destination has a set bit costs a lookup of a flow and one of a frontend; from a pod
//! it leaves the fast path, too. With 1,000 addresses that is a quarter of all destinations, with 100 one of forty.

use crate::addr::Ip;
use crate::layout::plain;

const WORDS: usize = 64;

/// Addresses as bits: a clear bit rules an address out, a set one may stand for another address of the same number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressFilter {
    /// The bit with the number of an address ([`AddressFilter::bit`]) is set if the address was added.
    pub words: [u64; WORDS],
}

plain!(AddressFilter = 512 { words });

impl Default for AddressFilter {
    fn default() -> Self {
        Self { words: [0; WORDS] }
    }
}

impl AddressFilter {
    /// The number of the bit that stands for an address, below 4,096.
    #[inline(always)]
    pub const fn bit(ip: &Ip) -> u16 {
        let [first, second, third, fourth] = ip.words();
        // The upper bits of a product depend on all bits of the word, its lower bits only on those below them.
        ((first ^ second ^ third ^ fourth).wrapping_mul(0x9e37_79b1) >> 20) as u16
    }

    /// Whether an address may have been added: false means that it was not, false positives are possible.
    #[inline(always)]
    pub fn may_hold(&self, ip: &Ip) -> bool {
        let bit = Self::bit(ip);
        self.words.get(usize::from(bit >> 6)).is_some_and(|word| word >> (bit & 63) & 1 != 0)
    }

    /// Adds an address.
    pub fn add(&mut self, ip: &Ip) {
        self.add_bit(Self::bit(ip));
    }

    /// Adds every address whose bit has this number.
    pub fn add_bit(&mut self, bit: u16) {
        if let Some(word) = self.words.get_mut(usize::from(bit >> 6)) {
            *word |= 1 << (bit & 63);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of a load balancer's pool, and the share of other destinations that pass the filter.
    #[test]
    fn most_destinations_are_ruled_out_beside_a_thousand_addresses() {
        for (count, share) in [(100_u16, 5), (1_000, 35)] {
            let mut filter = AddressFilter::default();
            let of = |net: u8, number: u16| {
                let [high, low] = number.to_be_bytes();
                Ip::v4([198, net, high, low])
            };
            (0..count).for_each(|number| filter.add(&of(51, number)));
            assert!((0..count).all(|number| filter.may_hold(&of(51, number))));
            let others = (0..10_000).filter(|number| filter.may_hold(&of(18, *number))).count();
            assert!(others < 100 * share, "{others} of 10,000 beside {count}");
        }
    }
}
