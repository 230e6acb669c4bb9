//! A generator of pseudo-random numbers that a seed reproduces.

/// A generator of numbers (`splitmix64`): equal seeds give equal packets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub const fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(super) const fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }

    /// One of the items, which must not be empty.
    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
        *items.get(self.below(items.len())).expect("at least one item")
    }
}
