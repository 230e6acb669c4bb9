//! The mixing function of all hashes.

/// Mixes two words: two rounds of xor, multiply, shift (constants of `splitmix64`).
#[inline(always)]
pub(crate) const fn mix(left: u64, right: u64) -> u64 {
    let mut word = left ^ right.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
