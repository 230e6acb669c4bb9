//! A filter of addresses: each address stands for one of 256 bits.

use crate::addr::Ip;
use crate::layout::plain;

/// Addresses as bits: a clear bit rules an address out, a set one may stand for another address of the same number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressFilter {
    /// The bit with the number of an address ([`AddressFilter::bit`]) is set if the address was added.
    pub words: [u64; 4],
}

plain!(AddressFilter = 32 { words });

impl AddressFilter {
    /// The number of the bit that stands for an address.
    #[inline(always)]
    pub const fn bit(ip: &Ip) -> u8 {
        let [first, second, third, fourth] = ip.words();
        ((first ^ second ^ third ^ fourth).wrapping_mul(0x9e37_79b1) >> 24) as u8
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
    pub fn add_bit(&mut self, bit: u8) {
        if let Some(word) = self.words.get_mut(usize::from(bit >> 6)) {
            *word |= 1 << (bit & 63);
        }
    }
}
