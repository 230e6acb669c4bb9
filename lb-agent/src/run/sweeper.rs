//! The interval between sweeps: shorter for a fuller table.

use std::time::Duration;

/// Returns the time until the next sweep, for a table with this many entries of its capacity.
pub(super) const fn period(entries: usize, capacity: u32) -> Duration {
    let capacity = capacity as usize;
    Duration::from_secs(match entries {
        _ if entries >= capacity / 4 * 3 && capacity > 0 => 1,
        _ if entries >= capacity / 2 && capacity > 0 => 2,
        _ => 5,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_is_swept_sooner() {
        assert_eq!(period(0, 100).as_secs(), 5);
        assert_eq!(period(50, 100).as_secs(), 2);
        assert_eq!(period(90, 100).as_secs(), 1);
    }
}
