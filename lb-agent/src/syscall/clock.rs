//! The clock of the data path.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Returns the time of `CLOCK_MONOTONIC`. The data path stamps flows with its coarse variant
/// (`bpf_ktime_get_coarse_ns`), which is a tick behind at most.
pub(crate) fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}
