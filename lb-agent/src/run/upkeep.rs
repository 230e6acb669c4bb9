//! Periodic work of the main loop: retries, inspection of attachments, sweeps and reports.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tracing::{info, warn};

use super::agent::{Agent, INSPECTION};
use super::growth::{self, Room};
use super::sweeper::period;
use super::{memory, sizes};
use crate::maps::{self, Maps};
use crate::metrics::Numbers;
use crate::node::host::FrontendNetworks;
use crate::node::listeners;
use crate::reconcile::Reconciler;
use crate::snapshot::ObjectKind;
use crate::sweep::{self, Report};
use crate::syscall::{give_memory_back, monotonic, unhurried};
use crate::words;

impl Agent {
    /// Writes the state for `status` and the lists before it returns.
    pub(super) fn write_state(&mut self) {
        self.count();
        self.state.write_sync();
        let (unwritten, ambiguous) = (self.writer.unwritten(), self.devices.ambiguous());
        self.state.write_now(&self.reconciler, unwritten, ambiguous);
    }

    fn count(&mut self) {
        Numbers::set(&self.numbers.findings, self.tracker.findings().count());
        self.state.set_findings(self.tracker.findings());
        Numbers::set(&self.numbers.refused, self.reconciler.refused().count());
        Numbers::set(&self.numbers.conflicts, self.reconciler.contested());
        let mut usage =
            self.numbers.usage.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *usage = self.reconciler.usage();
    }

    /// Does the work that is due once a second: retries, repairs and reports.
    pub(super) fn tick(&mut self) {
        if self.reconciler.is_waiting() {
            self.change(Reconciler::tick);
        }
        // The state before the retry counts: a retry that ends the failure may also have completed a sync.
        let was_failing = self.writer.failing_since().is_some();
        if self.writer.retry(&self.numbers) {
            self.state.changed();
        }
        self.pass_time();
        // From then on the take-over compares connections with the frontends, so all of these must be written.
        if self.is_programmed && self.writer.is_done() {
            self.takeover.programmed();
        }
        if was_failing {
            self.record_sync();
        }
        self.devices.retry(self.tracker.is_synced(), &self.numbers);
        self.put_settings();
        if self.devices.is_held() {
            self.update_node();
        }
        if self.inspected.elapsed() >= INSPECTION {
            self.inspect();
        }
        self.reconcile();
        self.publish_frontends();
        self.manager.alive();
        self.reporter.tick(&self.tracker);
        self.reporter.changes(&self.tracker);
        self.report_ready();
        self.state.write_sync();
        if self.state.is_due() {
            self.count();
            let (unwritten, of_source) = (self.writer.unwritten(), self.state.of_source());
            self.reporter.shortcomings(&self.tracker, &self.reconciler, unwritten, &of_source);
            let (unwritten, ambiguous) = (self.writer.unwritten(), self.devices.ambiguous());
            self.state.write(&self.reconciler, unwritten, ambiguous);
        }
    }

    /// Publishes the frontends that processes of this host need routes to: those that are not addresses of the node.
    pub(super) fn publish_frontends(&mut self) {
        // Before the initial sync is programmed, frontends of an earlier run would lose their routes.
        let interfaces = self.devices.external();
        let has_changed =
            self.frontends.borrow().as_ref().is_some_and(|all| all.interfaces != interfaces);
        if !self.is_programmed || !std::mem::take(&mut self.frontends_are_due) && !has_changed {
            return;
        }
        let networks = self.reconciler.networks(|ip| self.devices.is_own(ip));
        let sources = self.devices.primary();
        let wanted = Some(FrontendNetworks { networks, interfaces, sources });
        self.frontends.send_if_modified(|frontends| {
            let differs = *frontends != wanted;
            if differs {
                *frontends = wanted;
            }
            differs
        });
    }

    /// Reports whether it is time to restart for larger maps.
    pub(super) fn wants_larger_maps(&mut self) -> bool {
        let now = self.began.elapsed();
        if !self.growth.counts(self.reconciler.refused().next().is_some(), now) {
            return false;
        }
        let (room, growing) = self.room();
        let wants = self.growth.is_due(room, now);
        if wants {
            info!(maps = growing.join(" "), "maps are too small; restarting with larger ones");
        }
        wants
    }

    /// Returns the room in the maps that would be larger if they were created now, and these maps.
    fn room(&self) -> (Room, Vec<&'static str>) {
        let refused = || self.reconciler.refused().map(|(_, full)| full);
        let (usage, has) = (self.reconciler.usage(), self.reconciler.limits());
        // Counting the objects takes a while, so it is left out while no map is half full.
        let may_lack = refused().next().is_some() || growth::is_half_full(&usage, &has);
        // The next run needs the count of all objects.
        if !may_lack || !self.is_programmed {
            return (Room::Ample, Vec::new());
        }
        let need = self.tracker.demand();
        let growing = sizes::outgrown(&self.configured_sizes, &need, &has, memory::limit());
        (Room::of(&growing, refused(), &need, &has), growing)
    }

    /// Inspects the attachments and collects the problems of the node.
    pub(super) fn inspect(&mut self) {
        self.inspected = Instant::now();
        self.keep_listeners();
        if self.devices.inspect(&self.numbers) {
            self.state.changed();
        }
        self.health.unpinned(self.devices.unpinned_since());
        self.devices.look_at_hidden(|| self.reconciler.cluster_networks());
        let mut problems = self.devices.problems();
        problems.extend(self.takeover.problem());
        problems.extend(self.memory_problem.clone());
        problems.extend(self.unsaved_loopback.borrow().clone());
        problems.extend(self.early_drops.problems(&self.reconciler));
        problems.extend(self.reporter.problem());
        problems.extend(self.node_problem());
        problems.extend(self.unbound.problems());
        Numbers::set(&self.numbers.node_problems, problems.len());
        // Problems are counted at one place, so that metric, probe and status agree.
        self.health.troubles(problems.len(), self.state.stale_kinds());
        self.state.set_node_problems(problems);
    }

    fn node_problem(&mut self) -> Option<String> {
        // Before the lists are whole, the object may still come.
        if !self.tracker.is_synced() {
            return None;
        }
        let (context, is_known) = (self.tracker.context(), self.tracker.node().is_some());
        let (name, has_zone) = (&context.name, context.zone.is_some());
        let unread = self.state.unread(ObjectKind::Node);
        let identity = self.devices.identity();
        self.node_object.problem(name, is_known, unread.as_deref(), identity, has_zone)
    }

    /// Leaves `ClusterIP`s that are addresses of this node to the processes that listen there.
    fn keep_listeners(&mut self) {
        if !self.is_programmed {
            return;
        }
        let asked = self.reconciler.cluster_frontends(&self.devices.listening());
        let kept = match listeners::of(&asked) {
            Ok(kept) => kept,
            Err(error) => {
                warn!(%error, "listening sockets of this node could not be read; retrying");
                return;
            }
        };
        for frontend in kept.difference(self.reconciler.kept()) {
            let frontend = words::frontend(frontend);
            info!(frontend, "ClusterIP is left to a process of this node, which listens there");
        }
        for frontend in self.reconciler.kept().difference(&kept) {
            let frontend = words::frontend(frontend);
            info!(frontend, "ClusterIP is served again: no process of this node listens there");
        }
        self.change(|reconciler, now| reconciler.keep(now, kept));
    }

    pub(super) fn report_ready(&mut self) {
        if let Some(acceleration) = self.devices.take_acceleration() {
            self.state.set_acceleration(acceleration);
        }
        let is_complete = self.tracker.is_synced() && self.devices.is_complete();
        if is_complete && !self.is_upgraded {
            self.is_upgraded = self.devices.finish_upgrade();
        }
        if is_complete && self.is_programmed && self.writer.is_done() && !self.health.is_ready() {
            // From readiness on, lists must be able to show names.
            self.write_state();
            self.health.ready();
            self.manager.ready();
            let took = self.began.elapsed();
            info!(?took, "everything programmed");
            drop(spawn_blocking(give_memory_back));
        }
    }

    pub(super) fn begin_sweep(&self, maps: &Arc<Maps>) -> JoinHandle<Result<Report, maps::Error>> {
        let maps = Arc::clone(maps);
        let context = sweep::Context {
            // The walk gets a copy: it runs beside the main loop, which may change the set.
            draining: self.reconciler.draining(),
            began: self.clock.shows(Instant::now()),
            lifetimes: self.lifetimes,
            own: self.devices.own(),
            skip: self.sweep_skips,
        };
        spawn_blocking(move || unhurried(|| sweep::sweep(&maps, &context, monotonic())))
    }

    /// Takes in the report of a sweep. Returns the time until the next one.
    pub(super) fn take_report(
        &mut self,
        result: Result<Result<Report, maps::Error>, JoinError>,
    ) -> Duration {
        let report = match result {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                warn!(error = %crate::chain(&error), "sweeping flows failed");
                return period(0, 0);
            }
            Err(error) => {
                warn!(%error, "sweeping flows failed");
                return period(0, 0);
            }
        };
        Numbers::add(&self.numbers.swept, report.removed);
        self.sweep_skips = report.next;
        if self.is_programmed {
            let (began, live) = (report.began, &report.live);
            self.change(|reconciler, now| reconciler.remove_drained(now, began, live));
        }
        period(report.fullest.0, report.fullest.1)
    }
}
