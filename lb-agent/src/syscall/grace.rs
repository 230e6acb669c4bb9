//! A grace period: waits until no program that runs now runs any more.
//!
//! `membarrier(2)` would do on several CPUs only: on one it returns at once (`num_online_cpus() > 1`), although a
//! preemptible kernel may have put a socket hook aside in the middle, and it refuses where CPUs take no interrupts.

use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::expedite::expedite;
use super::{number, single, update};

/// `BPF_MAP_TYPE_ARRAY` and `BPF_MAP_TYPE_ARRAY_OF_MAPS`.
const ARRAY: u32 = 2;
const ARRAY_OF_MAPS: u32 = 12;

/// No packet is this long in a program.
const ENOUGH: Duration = Duration::from_millis(20);

/// Returns when no program that ran when this was called runs any more (some milliseconds).
pub(crate) fn wait_for_programs() {
    if let Err(error) = grace_period() {
        tracing::warn!(%error, "no RCU grace period available; waiting by time instead");
        let began = Instant::now();
        while began.elapsed() < ENOUGH {
            std::thread::park_timeout(ENOUGH);
        }
    }
}

/// Programs run inside of RCU's read side, and who changes a map of maps comes back after a grace period, on any number
/// of CPUs: so that nobody uses the map that was there before (`maybe_wait_bpf_programs`, kernel commit 1ae80cf31938,
/// Linux 4.20). The maps live for that long.
fn grace_period() -> io::Result<()> {
    let inner = single(ARRAY, 0)?;
    let outer = single(ARRAY_OF_MAPS, number(inner.as_fd()))?;
    let _expedited = expedite();
    update(outer.as_fd(), &0_u32, &number(inner.as_fd()), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only who may use bpf(2) can ask; whoever may not is told so, and nothing else.
    #[test]
    fn a_change_of_a_map_of_maps_is_taken() {
        match grace_period() {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}
