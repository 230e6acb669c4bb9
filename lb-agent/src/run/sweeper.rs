//! Sweeps beside the main loop, and the interval between them: shorter for a fuller table.

use std::sync::Arc;
use std::time::Duration;

use lb_common::flow::Lifetimes;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tracing::warn;

use super::service_maps::ServiceMaps;
use crate::maps::{self, Maps};
use crate::metrics::Numbers;
use crate::sweep::{self, OwnAddresses, Report};
use crate::syscall::{monotonic, unhurried};

/// The facts that sweeps need, and the place where the next one goes on.
pub(super) struct Sweeper {
    maps: Arc<Maps>,
    lifetimes: Lifetimes,
    /// [`Report::next`] of the last sweep.
    skip: usize,
}

impl Sweeper {
    pub(super) const fn new(maps: Arc<Maps>, lifetimes: Lifetimes) -> Self {
        Self { maps, lifetimes, skip: 0 }
    }

    /// Begins a sweep in a thread of its own.
    pub(super) fn begin(
        &self,
        service_maps: &ServiceMaps,
        own: OwnAddresses,
    ) -> JoinHandle<Result<Report, maps::Error>> {
        let maps = Arc::clone(&self.maps);
        let context = sweep::Context {
            // The walk gets a copy: it runs beside the main loop, which may change the set.
            draining: service_maps.reconciler().draining(),
            // Frontends began to drain by this clock, so the begin of the sweep is compared with it
            // (`Reconciler::remove_drained`).
            began: service_maps.grace_time(),
            lifetimes: self.lifetimes,
            own,
            skip: self.skip,
        };
        spawn_blocking(move || unhurried(|| sweep::sweep(&maps, &context, monotonic())))
    }

    /// Takes in the report of a sweep; returns it unless the sweep failed.
    pub(super) fn end(
        &mut self,
        result: Result<Result<Report, maps::Error>, JoinError>,
        numbers: &Numbers,
    ) -> Option<Report> {
        let report = match result {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                warn!(error = %crate::chain(&error), "sweeping flows failed");
                return None;
            }
            Err(error) => {
                warn!(%error, "sweeping flows failed");
                return None;
            }
        };
        Numbers::add(&numbers.swept, report.removed);
        self.skip = report.next;
        Some(report)
    }
}

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
