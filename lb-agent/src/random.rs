//! Random numbers and delays.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Returns a random number.
pub(crate) fn number() -> u64 {
    // The keys of a new state are random.
    RandomState::new().hash_one(())
}

/// Returns a random time that is shorter than this one, which keeps the nodes of a cluster from doing the same all at
/// once.
pub(crate) fn below(longest: Duration) -> Duration {
    longest.mul_f64((number() >> 32) as f64 / 2_f64.powi(32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_shorter_than_the_longest_and_differs_each_time() {
        let longest = Duration::from_mins(1);
        let [one, two] = [(); 2].map(|()| below(longest));
        assert!(one < longest && two < longest && one != two, "{one:?} {two:?}");
        assert_eq!(below(Duration::ZERO), Duration::ZERO);
    }
}
