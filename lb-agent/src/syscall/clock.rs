//! The clock of the data path.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Returns the time of the clock by which the data path stamps flows.
pub(crate) fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}
