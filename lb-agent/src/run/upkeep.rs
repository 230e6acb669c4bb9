//! What the loop does once a second, and between changes: tries again, looks after attachments, sweeps, says how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tracing::{info, warn};

use super::agent::Agent;
use super::sizes;
use super::sweeper::{monotonic, period};
use crate::maps::{self, Maps};
use crate::metrics::Numbers;
use crate::program::{Programmer, Refusal};
use crate::sweep::{self, Report};
use crate::syscall::give_memory_back;

/// Nobody tells of a program that is detached: looking is a few system calls a device.
const INSPECTION: Duration = Duration::from_secs(2);

/// A run lasts so long at least before another begins with larger maps.
const GROWTH: Duration = Duration::from_secs(20);

impl Agent {
    /// Writes what `status` and lists want to know, done when this returns.
    pub(super) fn write_state(&mut self) {
        self.count();
        self.state.write_sync();
        let (unwritten, doubtful) = (self.writer.unwritten(), self.devices.doubtful());
        self.state.write_now(&self.programmer, unwritten, doubtful);
    }

    fn count(&mut self) {
        Numbers::set(&self.numbers.findings, self.tracker.findings().count());
        self.state.finds(self.tracker.findings());
        Numbers::set(&self.numbers.refused, self.programmer.refused().count());
        Numbers::set(&self.numbers.conflicts, self.programmer.contested());
        let mut usage =
            self.numbers.usage.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *usage = self.programmer.usage();
    }

    /// Once a second: what is due, what failed, what waits.
    pub(super) fn tick(&mut self) {
        if self.programmer.is_waiting() {
            let _: usize = self.change(Programmer::tick);
        }
        let was_failing = self.writer.failing_since().is_some();
        if self.writer.retry(&self.numbers) {
            self.state.changed();
        }
        self.pass_time();
        if was_failing {
            self.note_sync();
        }
        self.devices.retry(self.tracker.is_synced(), &self.numbers);
        self.put_settings();
        if self.devices.is_held() {
            self.update_node();
        }
        if self.inspected.elapsed() >= INSPECTION {
            self.inspect();
        }
        self.program();
        self.manager.alive();
        self.shown.tick(&self.tracker, self.health.is_fresh());
        self.shown.changes(&self.tracker);
        self.report_ready();
        self.state.write_sync();
        if self.state.is_due() {
            self.count();
            self.shown.shortcomings(&self.tracker, &self.programmer, self.writer.unwritten());
            let (unwritten, doubtful) = (self.writer.unwritten(), self.devices.doubtful());
            self.state.write(&self.programmer, unwritten, doubtful);
        }
    }

    /// Whether somebody found no room in a map that would be larger if it were made now.
    pub(super) fn wants_larger_maps(&self) -> bool {
        // Not again and again, should that not help.
        if self.began.elapsed() < GROWTH || self.programmer.refused().next().is_none() {
            return false;
        }
        let (need, has) = (self.tracker.demand(), self.programmer.limits());
        let small = sizes::outgrown(&self.configured_sizes, &need, &has);
        let helps = |(_, refusal): (_, Refusal)| small.contains(&refusal.map());
        let wants = self.programmer.refused().any(helps);
        if wants {
            info!(maps = small.join(" "), "maps are too small: beginning anew with larger ones");
        }
        wants
    }

    /// Looks at what is attached.
    pub(super) fn inspect(&mut self) {
        self.inspected = Instant::now();
        if self.devices.inspect(&self.numbers) {
            self.state.changed();
        }
    }

    pub(super) fn report_ready(&mut self) {
        if let Some(acceleration) = self.devices.take_acceleration() {
            self.state.accelerates(acceleration);
        }
        if let Some(short_cuts) = self.devices.take_short_cuts() {
            self.state.opens(short_cuts);
        }
        let is_complete = self.tracker.is_synced() && self.devices.is_complete();
        if is_complete && !self.is_settled {
            self.is_settled = self.devices.settle();
        }
        if is_complete && self.is_programmed && self.writer.is_done() && !self.health.is_ready() {
            // Whoever asks now is told names, not numbers.
            self.write_state();
            self.health.ready();
            self.manager.ready();
            let took = self.began.elapsed();
            info!(?took, "everything is programmed");
            drop(spawn_blocking(give_memory_back));
        }
    }

    pub(super) fn begin_sweep(&self, maps: &Arc<Maps>) -> JoinHandle<Result<Report, maps::Error>> {
        let maps = Arc::clone(maps);
        let context = sweep::Context {
            leaving: self.programmer.leaving(),
            rows: self.programmer.rows_ever(),
            began: self.clock.shows(Instant::now()),
            lifetimes: self.lifetimes,
        };
        spawn_blocking(move || sweep::sweep(&maps, &context, monotonic()))
    }

    /// Takes a sweep's report over, and says when the next one is due.
    pub(super) fn take_report(
        &mut self,
        result: Result<Result<Report, maps::Error>, JoinError>,
    ) -> Duration {
        let report = match result {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                warn!(error = %crate::chain(&error), "flows were not swept");
                return period(0, 0);
            }
            Err(error) => {
                warn!(%error, "flows were not swept");
                return period(0, 0);
            }
        };
        Numbers::add(&self.numbers.swept, report.removed);
        if self.is_programmed {
            let (began, live) = (report.began, &report.live);
            let _: usize = self.change(|programmer, now| programmer.bury(now, began, live));
        }
        period(report.fullest.0, report.fullest.1)
    }
}
