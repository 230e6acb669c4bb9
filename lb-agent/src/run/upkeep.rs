//! Periodic work of the main loop: retries, inspection of attachments, sweeps and reports.

use std::time::Duration;

use tokio::task::{JoinError, spawn_blocking};
use tracing::{info, warn};

use super::agent::Agent;
use super::sweeper::period;
use crate::maps;
use crate::node::listeners;
use crate::reconcile::Reconciler;
use crate::sweep::Report;
use crate::syscall::give_memory_back;
use crate::words;

impl Agent {
    /// Writes the state for `status` and the lists before it returns.
    pub(super) fn write_state(&mut self) {
        let ambiguous = self.devices.ambiguous();
        self.telemetry.write_state(&self.tracker, &self.service_maps, ambiguous);
    }

    /// Does the work that is due once a second: retries, repairs and reports.
    pub(super) fn tick(&mut self) {
        if self.service_maps.reconciler().is_waiting() {
            self.change(Reconciler::tick);
        }
        // The state before the retry counts: a retry that ends the failure may also have completed a sync.
        let was_failing = self.service_maps.failing_since().is_some();
        if self.service_maps.retry() {
            self.telemetry.state.changed();
        }
        // From then on the take-over compares connections with the frontends, so all of these must be written.
        if self.service_maps.is_complete() {
            self.takeover.programmed();
        }
        if was_failing {
            self.record_sync();
        }
        self.devices.retry(self.tracker.is_synced(), &self.telemetry.numbers);
        // The local port range of the host, and the take-over, change without an event.
        self.put_settings();
        // The switch from another layout waits until the maps are complete, of which no event tells.
        if self.devices.is_held() {
            self.update_node();
        }
        if self.inspector.is_due() {
            self.inspect();
        }
        // `/healthz` must learn of changes that still wait (contract 6.2), also if no event arrives.
        self.reconcile();
        self.host_stack.publish(&self.devices, &self.service_maps);
        self.telemetry.tick(&self.tracker);
        self.report_ready();
        let ambiguous = self.devices.ambiguous();
        self.telemetry.write_state_if_due(&self.tracker, &self.service_maps, ambiguous);
    }

    /// Reports whether it is time to restart for larger maps.
    pub(super) fn wants_larger_maps(&mut self) -> bool {
        self.growth.wants_restart(&self.tracker, &self.service_maps, self.began.elapsed())
    }

    /// Inspects the attachments and collects the problems of the node.
    pub(super) fn inspect(&mut self) {
        self.inspector.begin();
        self.keep_listeners();
        if self.devices.inspect(&self.telemetry.numbers) {
            self.telemetry.state.changed();
        }
        self.telemetry.health.unpinned(self.devices.unpinned_since());
        let reconciler = self.service_maps.reconciler();
        self.devices.look_at_hidden(|| reconciler.cluster_networks());
        let mut problems = self.devices.problems();
        problems.extend(self.takeover.problem());
        problems.extend(self.inspector.memory_problem());
        problems.extend(self.host_stack.problem());
        problems.extend(self.inspector.backend_problems(reconciler));
        problems.extend(self.telemetry.reporter.problem());
        let (state, identity) = (&self.telemetry.state, self.devices.identity());
        problems.extend(self.inspector.node_object_problem(&self.tracker, state, identity));
        problems.extend(self.telemetry.unbound.problems());
        self.telemetry.node_problems(problems);
    }

    /// Leaves `ClusterIP`s that are addresses of this node to the processes that listen there.
    fn keep_listeners(&mut self) {
        if !self.service_maps.is_programmed() {
            return;
        }
        let reconciler = self.service_maps.reconciler();
        let asked = reconciler.cluster_frontends(&self.devices.listening());
        let kept = match listeners::of(&asked) {
            Ok(kept) => kept,
            Err(error) => {
                warn!(%error, "listening sockets of this node could not be read; retrying");
                return;
            }
        };
        for frontend in kept.difference(reconciler.kept()) {
            let frontend = words::frontend(frontend);
            info!(frontend, "ClusterIP is left to a process of this node, which listens there");
        }
        for frontend in reconciler.kept().difference(&kept) {
            let frontend = words::frontend(frontend);
            info!(frontend, "ClusterIP is served again: no process of this node listens there");
        }
        self.change(|reconciler, now| reconciler.keep(now, kept));
    }

    pub(super) fn report_ready(&mut self) {
        if let Some(acceleration) = self.devices.take_acceleration() {
            self.telemetry.state.set_acceleration(acceleration);
        }
        let is_complete = self.tracker.is_synced() && self.devices.is_complete();
        // While an interface lacks our programs, packets there meet only those of the earlier run.
        if is_complete && !self.is_upgraded {
            self.is_upgraded = self.devices.finish_upgrade();
        }
        let is_ready = is_complete && self.service_maps.is_complete();
        if is_ready && !self.telemetry.health.is_ready() {
            // From readiness on, lists must be able to show names.
            self.write_state();
            self.telemetry.ready();
            let took = self.began.elapsed();
            info!(?took, "everything programmed");
            // The lists needed memory that is free now. Returning it takes a walk through the heap, so another thread
            // does it.
            drop(spawn_blocking(give_memory_back));
        }
    }

    /// Takes in the report of a sweep. Returns the time until the next one.
    pub(super) fn take_report(
        &mut self,
        result: Result<Result<Report, maps::Error>, JoinError>,
    ) -> Duration {
        let Some(report) = self.sweeper.end(result, &self.telemetry.numbers) else {
            return period(0, 0);
        };
        if self.service_maps.is_programmed() {
            let (began, live) = (report.began, &report.live);
            self.change(|reconciler, now| reconciler.remove_drained(now, began, live));
        }
        period(report.fullest.0, report.fullest.1)
    }
}
