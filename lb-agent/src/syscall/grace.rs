//! A grace period: waits until all programs that run now have ended.
//!
//! `membarrier(2)` would not be enough. On one CPU it returns at once (`num_online_cpus() > 1`,
//! kernel/sched/membarrier.c), although a preemptible kernel may have interrupted a socket hook. It also refuses while
//! CPUs are isolated with `nohz_full`.

use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::expedite::expedite;
use super::{number, single, update};

/// `BPF_MAP_TYPE_ARRAY` and `BPF_MAP_TYPE_ARRAY_OF_MAPS`.
const ARRAY: u32 = 2;
const ARRAY_OF_MAPS: u32 = 12;

/// No program runs this long for a packet.
const ENOUGH: Duration = Duration::from_millis(20);

/// Returns when no program runs any more that ran at the time of the call. Takes some milliseconds.
pub(crate) fn wait_for_programs() {
    if let Err(error) = grace_period() {
        tracing::warn!(%error, "no RCU grace period available; waiting 20 ms instead");
        let began = Instant::now();
        while began.elapsed() < ENOUGH {
            // A park can end early, so the time decides.
            std::thread::park_timeout(ENOUGH);
        }
    }
}

/// Waits for a grace period of the kernel, on any number of CPUs.
///
/// Programs run inside RCU read-side sections. Updating a map of maps returns only after a grace period, so that no
/// program uses the previous inner map (`maybe_wait_bpf_programs`, kernel commit 1ae80cf31938, Linux 4.20).
fn grace_period() -> io::Result<()> {
    let inner = single(ARRAY, 0)?;
    let outer = single(ARRAY_OF_MAPS, number(inner.as_fd()))?;
    let _expedited = expedite();
    update(outer.as_fd(), &0_u32, &number(inner.as_fd()), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without permission for bpf(2) the call must fail with that error and no other.
    #[test]
    fn a_change_of_a_map_of_maps_is_taken() {
        match grace_period() {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}
