//! The internet checksum (RFC 1071) and its incremental update (RFC 1624).
//!
//! Sums are taken over words in memory order, as in the kernel's `__wsum`: the result is
//! right in either byte order as long as it is stored the way it was read.

pub mod crc32c;

/// The effect of changed bytes on a checksum: the one's complement sum of the new bytes minus that of the old ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference(u64);

impl Difference {
    /// No change.
    pub const NONE: Self = Self(0);

    /// Adds the replacement of one 32-bit word (in memory order) by another.
    #[inline(always)]
    #[must_use]
    pub const fn word(self, old: u32, new: u32) -> Self {
        // In one's complement a number is subtracted by adding its complement (RFC 1624).
        Self(self.0 + (!old) as u64 + new as u64)
    }

    /// Adds the replacement of four words (an address).
    #[inline(always)]
    #[must_use]
    pub const fn words(self, old: [u32; 4], new: [u32; 4]) -> Self {
        let [o0, o1, o2, o3] = old;
        let [n0, n1, n2, n3] = new;
        self.word(o0, n0).word(o1, n1).word(o2, n2).word(o3, n3)
    }

    /// Adds the replacement of one 16-bit word (in memory order) by another.
    #[inline(always)]
    #[must_use]
    pub const fn replace_u16(self, old: [u8; 2], new: [u8; 2]) -> Self {
        let [a, b] = old;
        let [c, d] = new;
        self.word(u32::from_ne_bytes([a, b, 0, 0]), u32::from_ne_bytes([c, d, 0, 0]))
    }

    /// Adds a word (in memory order) that was not covered before.
    #[inline(always)]
    #[must_use]
    pub const fn add(self, word: u32) -> Self {
        Self(self.0 + word as u64)
    }

    /// The sum of both changes.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The difference folded to 32 bits: the kernel's `__wsum`.
    #[inline(always)]
    pub const fn wsum(self) -> u32 {
        let once = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        // The first addition may leave a carry of its own, which this one adds.
        ((once & 0xffff_ffff) + (once >> 32)) as u32
    }

    /// Applies the change to a stored checksum (RFC 1624, equation 3).
    #[inline(always)]
    pub const fn apply(self, checksum: [u8; 2]) -> [u8; 2] {
        (!fold(self.0 + (!u16::from_ne_bytes(checksum)) as u64)).to_ne_bytes()
    }

    /// The difference folded to 16 bits, as a word in memory order whose other 16 bits are 0.
    #[inline(always)]
    pub const fn fold(self) -> u32 {
        let [a, b] = fold(self.0).to_ne_bytes();
        u32::from_ne_bytes([a, b, 0, 0])
    }

    /// The field that makes the sum zero when it is added twice: -S/2. One's complement is arithmetic modulo 65535,
    /// where 2 has an inverse.
    #[inline(always)]
    pub const fn halved(self) -> [u8; 2] {
        let negative = !fold(self.0);
        // An odd number is halved as the equal number that is larger by 65,535.
        let odd = if negative.is_multiple_of(2) { 0 } else { 0x8000 };
        (negative / 2 + odd).to_ne_bytes()
    }

    /// The checksum of bytes whose sum started at zero.
    #[inline(always)]
    pub const fn finish(self) -> [u8; 2] {
        (!fold(self.0)).to_ne_bytes()
    }
}

/// The sum of at most 65,536 words, more than a packet has.
#[inline(always)]
const fn fold(sum: u64) -> u16 {
    // So many words of 32 bits have a sum of at most 48 bits: three terms, whose sum carries twice at most.
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// RFC 1071, section 4.1, as it is written there.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn rfc_1624_example_is_right() {
        // Section 4: 0xDD2F with 0x5555 replaced by 0x3285 becomes 0x0000.
        let new = Difference::NONE.replace_u16([0x55, 0x55], [0x32, 0x85]).apply([0xdd, 0x2f]);
        assert_eq!(new, [0, 0]);
    }

    #[test]
    fn every_carry_is_added() {
        // A value that is added to the lower 16 bits carries once, twice, and a third time.
        for (sum, folded) in [
            (0xffff, 0xffff),
            (0x1_0000, 1),
            (0x1_ffff, 1),
            (0xffff_ffff, 0xffff),
            (0x1_ffff_ffff, 1),
            (0xffff_ffff_ffff, 0xffff),
        ] {
            let wanted = u16::try_from((sum - 1) % 0xffff + 1).unwrap();
            assert_eq!((fold(sum), wanted), (folded, folded), "{sum:#x}");
            assert_eq!(Difference(sum).fold().to_ne_bytes()[..2], folded.to_ne_bytes());
            assert_eq!(u64::from(Difference(sum).wsum()) % 0xffff, u64::from(folded) % 0xffff);
        }
        assert_eq!(Difference(0x1_ffff_ffff).wsum(), 1, "a carry out of the carry");
        assert_eq!(Difference(0x2_0000_0003).wsum(), 5);
    }

    #[test]
    fn a_word_that_does_not_change_changes_nothing() {
        let stored = [0x12, 0x34];
        let words = [1_u32, 0x8000_0000, u32::MAX, 0x1234_5678];
        assert_eq!(Difference::NONE.words(words, words).apply(stored), stored);
        assert_eq!(Difference::NONE.replace_u16([0xab, 0xcd], [0xab, 0xcd]).apply(stored), stored);
        let (one, other) = (Difference::NONE.add(7), Difference::NONE.add(9));
        assert_eq!(one.and(other), Difference::NONE.add(16));
    }

    proptest! {
        #[test]
        fn update_equals_recomputation(
            mut bytes in proptest::collection::vec(any::<u8>(), 40),
            at in 0_usize..9,
            new: [u8; 4],
        ) {
            let at = at * 4;
            let stored = reference(&bytes).to_be_bytes();
            let old = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            let change = Difference::NONE.word(u32::from_ne_bytes(old), u32::from_ne_bytes(new));
            bytes[at..at + 4].copy_from_slice(&new);
            let updated = u16::from_be_bytes(change.apply(stored));
            let fresh = reference(&bytes);
            // Both zeros of one's complement stand for the same sum.
            prop_assert!(updated == fresh || (updated ^ fresh) == 0xffff && (updated == 0 || fresh == 0));
        }

        #[test]
        fn half_of_a_sum_twice_brings_it_to_nothing(words in proptest::collection::vec(any::<[u8; 4]>(), 1..20)) {
            let sum = words.iter().fold(Difference::NONE, |sum, word| sum.add(u32::from_ne_bytes(*word)));
            let [a, b] = sum.halved();
            let total = sum.add(u32::from_ne_bytes([a, b, a, b])).finish();
            prop_assert!(total == [0; 2] || total == [0xff; 2]);
        }

        #[test]
        fn sum_from_nothing_equals_the_reference(words in proptest::collection::vec(any::<[u8; 4]>(), 0..20)) {
            let sum = words.iter().fold(Difference::NONE, |sum, word| sum.add(u32::from_ne_bytes(*word)));
            let flat: Vec<u8> = words.concat();
            prop_assert_eq!(u16::from_be_bytes(sum.finish()), reference(&flat));
        }
    }
}
