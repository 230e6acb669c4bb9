//! The main loop. It owns the tracker, the maps of Services and the interfaces, takes events in and has them programmed.
//!
//! It blocks only for grace periods of the kernel: work that waits for anything else is a separate task.

mod node;

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::devices::Devices;
use super::error::End;
use super::growth::Growth;
use super::host_stack::HostStack;
use super::inspector::Inspector;
use super::service_maps::ServiceMaps;
use super::stop::Stop;
use super::sweeper::Sweeper;
use super::telemetry::Telemetry;
use super::turns::{Rest, Turn, Turns};
use crate::reconcile::{Change, Op, Reconciler};
use crate::snapshot::Event;
use crate::takeover::Takeover;
use crate::tracker::{Effect, Tracker};

/// Largest number of events taken in before something is programmed, so that a long list cannot delay programming
/// without end.
const AT_ONCE: usize = 50_000;

/// The state that the loop owns.
pub(super) struct Agent {
    pub(super) began: Instant,
    pub(super) tracker: Tracker,
    pub(super) service_maps: ServiceMaps,
    pub(super) devices: Devices,
    /// Whether nothing of an earlier run's data path is left ([`Devices::finish_upgrade`]).
    pub(super) is_upgraded: bool,
    pub(super) host_stack: HostStack,
    pub(super) telemetry: Telemetry,
    pub(super) inspector: Inspector,
    pub(super) sweeper: Sweeper,
    pub(super) growth: Growth,
    pub(super) takeover: Takeover,
}

impl Agent {
    /// Takes over the objects that arrived before the maps were open.
    pub(super) fn begin(&mut self) {
        self.telemetry.reporter.events.node("Starting", String::new());
        self.take_node();
        self.reconcile();
    }

    pub(super) async fn work(&mut self, mut turns: Turns, stop: &mut Stop) -> End {
        let mut next_sweep = Instant::now() + Duration::from_secs(1);
        loop {
            // The tick guarantees a turn about every second.
            self.telemetry.health.turns();
            match turns.next(stop).await {
                Turn::Stop => return End::Asked,
                Turn::Lost(what) => return End::Lost(what),
                Turn::View(published) => {
                    self.take_view(published);
                    turns.rest(Rest::View);
                }
                Turn::Event(event) => {
                    let began = Instant::now();
                    let was_programmed = self.service_maps.is_programmed();
                    self.take_events(event, &mut turns.events);
                    // The initial sync is not delayed: nothing is programmed before it.
                    if was_programmed {
                        turns.rest(Rest::Events(began.elapsed()));
                    }
                }
                Turn::Swept(result) => next_sweep = Instant::now() + self.take_report(result),
                Turn::Tick => {
                    self.tick();
                    if self.wants_larger_maps() {
                        return End::Changed;
                    }
                    // A sweep goes on where the last one ended, so there is one at a time.
                    if turns.sweeping.is_none() && Instant::now() >= next_sweep {
                        let own = self.devices.own();
                        turns.sweeping = Some(self.sweeper.begin(&self.service_maps, own));
                    }
                    turns.rest(Rest::Tick);
                }
            }
        }
    }

    /// Ends the work of a run. The data path stays as it is.
    pub(super) fn end(&mut self, end: End) {
        // Links stay pinned, so ending the agent changes nothing for packets. The inspection restores pins that were
        // removed a moment ago: without them the links would end with this process.
        self.inspect();
        self.telemetry.manager.ends(end);
        self.write_state();
        let restarts = end == End::Changed;
        if self.devices.unpinned_since().is_some() {
            warn!(
                restarts,
                "agent stopping; its programs end with it, because their pins are missing"
            );
        } else {
            info!(restarts, "agent stopping; data path stays active");
        }
    }

    /// Takes in changes of objects: all that wait, up to a limit.
    fn take_events(&mut self, first: Event, events: &mut mpsc::Receiver<Event>) {
        let mut node_changed = self.take_event(first);
        // Many changes cost one pass over the maps; the limit keeps probes and repairs from waiting.
        for _ in 0..AT_ONCE {
            let Ok(event) = events.try_recv() else { break };
            node_changed |= self.take_event(event);
        }
        if node_changed {
            self.take_node();
        }
        self.reconcile();
    }

    fn take_event(&mut self, event: Event) -> bool {
        match self.tracker.apply(event) {
            Effect::Node => true,
            Effect::ServiceCidrs => {
                self.take_service_cidrs();
                false
            }
            Effect::Services => {
                self.telemetry.reporter.metrics.queued();
                false
            }
            Effect::Nothing => false,
        }
    }

    fn take_service_cidrs(&mut self) {
        // Without the Services, every address of the prefixes would count as unused: packets to them are dropped, also
        // those that kube-proxy serves meanwhile.
        if !self.service_maps.is_programmed() {
            return;
        }
        let cidrs = self.tracker.service_cidrs().to_vec();
        self.change(|reconciler, _| reconciler.set_service_cidrs(&cidrs));
    }

    /// Programs the Services that changed.
    pub(super) fn reconcile(&mut self) {
        // Before anything that may return: `/healthz` must also see changes that cannot be programmed yet (contract
        // 6.2).
        let waiting = [self.tracker.dirty_since(), self.service_maps.failing_since()];
        self.telemetry.health.pending(waiting.into_iter().flatten().min());
        // With only part of the objects, Services would lose endpoints that an earlier run serves (invariant 1 in
        // ARCHITECTURE.md).
        if !self.tracker.is_synced() {
            return;
        }
        let (began, has_changes) = (Instant::now(), self.tracker.dirty_since().is_some());
        let taken = self.tracker.take();
        // The first pass goes on even without any Service: it removes what an earlier run served and no object wants
        // any more.
        if taken.is_empty() && self.service_maps.is_programmed() {
            let (is_done, took) = (self.service_maps.is_done(), began.elapsed());
            let reporter = &mut self.telemetry.reporter;
            if reporter.unchanged(&mut self.tracker, has_changes, is_done, took) {
                self.record_sync();
            }
            self.check();
            return;
        }
        for (service, finding) in self.tracker.new_findings() {
            warn!(%service, %finding, "Service is only partly served");
        }
        self.telemetry.reporter.taken(&self.tracker, &taken);
        let changes = taken.into_iter().map(|(service, translated)| Change {
            service,
            ports: translated.map(|translated| translated.ports).unwrap_or_default(),
        });
        let changes: Vec<Change> = changes.collect();
        let (services, began) = (changes.len(), Instant::now());
        let mut operations = self.program(changes);
        let is_first = !self.service_maps.is_programmed();
        if is_first {
            // Only now every plan has had the chance to claim its entries of an earlier run.
            operations += self.change(Reconciler::synced);
        }
        // While a write holds up the queue, the sync is not over.
        let reporter = &mut self.telemetry.reporter;
        if self.service_maps.is_done() {
            reporter.programmed(&mut self.tracker, began.elapsed(), is_first);
        } else {
            reporter.sync_due = Some((began.elapsed(), is_first));
        }
        self.service_maps.programmed();
        if is_first {
            self.take_service_cidrs();
        }
        self.record_sync();
        self.telemetry.state.changed();
        debug!(services, operations, took = ?began.elapsed(), "sync complete");
        self.host_stack.publish(&self.devices, &self.service_maps);
        self.update_node();
        self.check();
    }

    /// Programs changes of Services. Returns the number of operations.
    fn program(&mut self, changes: Vec<Change>) -> usize {
        let state = &mut self.telemetry.state;
        let count = self.service_maps.program(state, &self.devices, changes);
        if count > 0 {
            self.host_stack.set_due();
        }
        count
    }

    /// Plans a change of the maps and writes it. Returns the number of operations.
    pub(super) fn change(
        &mut self,
        plan: impl FnOnce(&mut Reconciler, Duration) -> Vec<Op>,
    ) -> usize {
        let count = self.service_maps.change(&mut self.telemetry.state, &self.devices, plan);
        if count > 0 {
            self.host_stack.set_due();
        }
        count
    }

    /// Opens and raises the health checks of what the maps have.
    fn check(&mut self) {
        if let Some(shortfall) = self.service_maps.shortfall() {
            self.telemetry.reporter.checks.programmed(shortfall);
        }
    }

    /// Reports the time of a sync if everything that arrived is programmed.
    pub(super) fn record_sync(&mut self) {
        if self.service_maps.is_complete() && self.tracker.dirty_since().is_none() {
            self.telemetry.synced();
        }
    }
}
