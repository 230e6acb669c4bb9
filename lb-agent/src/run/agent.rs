//! The main loop. It owns the tracker, the mirror and the maps, takes events in and writes operations out.
//!
//! It blocks only for grace periods of the kernel: work that waits for anything else is a separate task.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_common::config::Settings;
use lb_common::flow::Lifetimes;
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::checks::Shortfall;
use super::devices::Devices;
use super::early_drops::EarlyDrops;
use super::error::End;
use super::grace_clock::GraceClock;
use super::growth::Growth;
use super::kubernetes;
use super::node_object::NodeObject;
use super::open_connections::OpenConnections;
use super::servers::Unbound;
use super::service_manager::ServiceManager;
use super::state::State;
use super::stop::Stop;
use super::turns::{Rest, Turn, Turns};
use super::writer::Writer;
use crate::health::{Health, NodeState};
use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::node::Primary;
use crate::node::host::FrontendNetworks;
use crate::node::watch::PublishedView;
use crate::plan::Family;
use crate::reconcile::{Change, GRACE, Op, Reconciler};
use crate::snapshot::Event;
use crate::syscall::wait_for_programs;
use crate::takeover::Takeover;
use crate::tracker::{Effect, Tracker};

/// Interval of inspections. The kernel does not report a detached program; an inspection takes a few system calls for
/// each interface.
pub(super) const INSPECTION: Duration = Duration::from_secs(2);

/// Number of grace periods for which one change waits: after the first one a port may displace others, for whose
/// entries it waits again.
const GRACE_PERIODS: usize = 4;

/// Number of Services that are planned before their operations are written. The operations of a whole cluster at once
/// would take much memory.
const PIECE: usize = 1_000;

/// Largest number of events taken in before something is programmed, so that a long list cannot delay programming
/// without end.
const AT_ONCE: usize = 50_000;

/// The state that the loop owns.
pub(super) struct Agent {
    pub(super) began: Instant,
    /// The clock by which the reconciler reuses what a change released.
    pub(super) clock: GraceClock,
    pub(super) tracker: Tracker,
    pub(super) reconciler: Reconciler,
    pub(super) writer: Writer<Maps>,
    pub(super) open: OpenConnections,
    pub(super) devices: Devices,
    pub(super) health: Health,
    pub(super) reporter: kubernetes::Reporter,
    pub(super) numbers: Arc<Numbers>,
    pub(super) state: State,
    pub(super) manager: ServiceManager,
    /// Time of the last inspection of attachments.
    pub(super) inspected: Instant,
    pub(super) is_programmed: bool,
    /// Whether nothing of an earlier run's data path is left ([`Devices::finish_upgrade`]).
    pub(super) is_upgraded: bool,
    /// Publishes the frontends that processes of this host need routes to.
    pub(super) frontends: watch::Sender<Option<FrontendNetworks>>,
    /// Whether those frontends may have changed since they were published.
    pub(super) frontends_are_due: bool,
    /// The problem of earlier settings of the loopback interface that cannot be saved.
    pub(super) unsaved_loopback: watch::Receiver<Option<String>>,
    pub(super) lifetimes: Lifetimes,
    /// [`crate::sweep::Report::next`] of the last sweep.
    pub(super) sweep_skips: usize,
    pub(super) takeover: Takeover,
    pub(super) early_drops: EarlyDrops,
    pub(super) node_object: NodeObject,
    pub(super) unbound: Unbound,
    /// Configured sizes of maps.
    pub(super) configured_sizes: BTreeMap<String, u32>,
    pub(super) growth: Growth,
    /// The problem if the memory limit at the start was below what full maps may take.
    pub(super) memory_problem: Option<String>,
}

impl Agent {
    /// Takes over the objects that arrived before the maps were open.
    pub(super) fn begin(&mut self) {
        self.take_node();
        self.reconcile();
    }

    pub(super) async fn work(
        &mut self,
        mut turns: Turns,
        shared: Arc<Maps>,
        stop: &mut Stop,
    ) -> End {
        let mut next_sweep = Instant::now() + Duration::from_secs(1);
        loop {
            // The tick guarantees a turn about every second.
            self.health.turns();
            match turns.next(stop).await {
                Turn::Stop => return End::Asked,
                Turn::Lost(what) => return End::Lost(what),
                Turn::View(published) => {
                    self.take_view(published);
                    turns.rest(Rest::View);
                }
                Turn::Event(event) => {
                    let (began, was_programmed) = (Instant::now(), self.is_programmed);
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
                    if turns.sweeping.is_none() && Instant::now() >= next_sweep {
                        turns.sweeping = Some(self.begin_sweep(&shared));
                    }
                    turns.rest(Rest::Tick);
                }
            }
        }
    }

    /// Takes in a change of links or addresses.
    fn take_view(&mut self, published: PublishedView) {
        let Some(published) = published else { return };
        let before = self.devices.has_primary();
        self.devices.set_view(published);
        self.frontends_are_due = true;
        if self.devices.has_primary() != before {
            // The kernel has removed the routes with the source of an address that was removed.
            self.frontends.send_modify(|_| {});
        }
        self.update_node();
        // New interfaces come first: the next event may be about a pod that waits for its programs (ADR 0030).
        if self.inspected.elapsed() >= INSPECTION {
            self.inspect();
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

    fn take_service_cidrs(&mut self) {
        // Without the Services, every address of the prefixes would count as unused: packets to them are dropped, also
        // those that kube-proxy serves meanwhile.
        if !self.is_programmed {
            return;
        }
        let cidrs = self.tracker.service_cidrs().to_vec();
        self.change(|reconciler, _| reconciler.set_service_cidrs(&cidrs));
    }

    /// Takes in a change of the Node object, or its absence.
    fn take_node(&mut self) {
        let deleting = self.tracker.node().map(|node| node.deleting || node.to_be_deleted);
        self.health.node(match deleting {
            None => NodeState::Unknown,
            Some(true) => NodeState::Deleting,
            Some(false) => NodeState::Eligible,
        });
        self.reporter.node(self.tracker.node());
        self.state.changed();
        self.frontends_are_due = true;
        self.update_node();
    }

    fn take_event(&mut self, event: Event) -> bool {
        match self.tracker.apply(event) {
            Effect::Node => true,
            Effect::ServiceCidrs => {
                self.take_service_cidrs();
                false
            }
            Effect::Services => {
                self.reporter.metrics.queued();
                false
            }
            Effect::Nothing => false,
        }
    }

    /// Updates settings, addresses and interfaces after a change of links or Node.
    pub(super) fn update_node(&mut self) {
        let context = self.tracker.context();
        let ip = |family| context.ip(family);
        let primary = Primary { v4: ip(Family::V4), v6: ip(Family::V6) };
        self.devices.set_node(self.tracker.node(), primary);
        self.put_settings();
        if self.is_programmed && self.writer.is_done() {
            self.devices.switch();
        }
        self.devices.apply(self.tracker.is_synced(), &self.numbers);
        // The interfaces are attached now, and their flags are known.
        self.put_settings();
        self.devices.accelerate_waiting();
        let (own, all) = self.devices.probed();
        self.reporter.addresses(&own, all);
        self.report_ready();
    }

    /// Writes the settings that follow from the node.
    pub(super) fn put_settings(&mut self) {
        let mut settings = self.devices.settings();
        let is_taking_over = self.takeover.is_under_way();
        if is_taking_over {
            // The flag makes the programs leave connections alone that netfilter translates.
            settings.flags |= Settings::TAKE_OVER;
        }
        self.open.hold(is_taking_over);
        self.change(|reconciler, _| reconciler.set_node(&settings));
    }

    /// Programs the Services that changed.
    pub(super) fn reconcile(&mut self) {
        // Before anything that may return: `/healthz` must also see changes that cannot be programmed yet (contract
        // 6.2).
        let waiting = [self.tracker.dirty_since(), self.writer.failing_since()];
        self.health.pending(waiting.into_iter().flatten().min());
        // With only part of the objects, Services would lose endpoints that an earlier run serves (invariant 1 in
        // ARCHITECTURE.md).
        if !self.tracker.is_synced() {
            return;
        }
        let (began, has_changes) = (Instant::now(), self.tracker.dirty_since().is_some());
        let taken = self.tracker.take();
        if taken.is_empty() && self.is_programmed {
            let (is_done, took) = (self.writer.is_done(), began.elapsed());
            if self.reporter.unchanged(&mut self.tracker, has_changes, is_done, took) {
                self.record_sync();
            }
            self.check();
            return;
        }
        for (service, finding) in self.tracker.new_findings() {
            warn!(%service, %finding, "Service is only partly served");
        }
        self.reporter.taken(&self.tracker, &taken);
        let changes = taken.into_iter().map(|(service, translated)| Change {
            service,
            ports: translated.map(|translated| translated.ports).unwrap_or_default(),
        });
        let mut changes: Vec<Change> = changes.collect();
        let (services, began) = (changes.len(), Instant::now());
        // Oldest Services first: a frontend that several claim goes to its winner at once, even if they are in
        // different pieces. Only a ClusterIP that an older Service names as an external IP may change hands twice.
        changes.sort_by(|left, right| left.age().cmp(&right.age()));
        let (mut operations, mut changes) = (0, changes.into_iter());
        loop {
            let piece: Vec<Change> = changes.by_ref().take(PIECE).collect();
            if piece.is_empty() {
                break;
            }
            operations += self.plan(piece);
        }
        let is_first = !self.is_programmed;
        if is_first {
            operations += self.change(Reconciler::synced);
        }
        // While a write holds up the queue, the sync is not over.
        if self.writer.is_done() {
            self.reporter.programmed(&mut self.tracker, began.elapsed(), is_first);
        } else {
            self.reporter.sync_due = Some((began.elapsed(), is_first));
        }
        self.is_programmed = true;
        if is_first {
            self.take_service_cidrs();
        }
        self.record_sync();
        self.state.changed();
        debug!(services, operations, took = ?began.elapsed(), "sync complete");
        self.publish_frontends();
        self.update_node();
        self.check();
    }

    /// Programs changes of Services. Returns the number of operations.
    ///
    /// If a port lacks only what changes have released, the grace period passes at once: a rollout of a large Service
    /// may release more between two ticks than the map has left.
    fn plan(&mut self, changes: Vec<Change>) -> usize {
        let mut count = self.change(|reconciler, now| reconciler.plan(now, changes));
        for _ in 0..GRACE_PERIODS {
            if !self.writer.is_up_to_date() || self.reconciler.delayed().next().is_none() {
                break;
            }
            wait_for_programs();
            self.clock.skip(GRACE);
            count += self.change(Reconciler::tick);
        }
        count
    }

    /// Plans a change and writes it. Returns the number of operations.
    ///
    /// The clock stops meanwhile: rows that the change releases stay in use until all operations are in the maps.
    pub(super) fn change(
        &mut self,
        plan: impl FnOnce(&mut Reconciler, Duration) -> Vec<Op>,
    ) -> usize {
        let now = self.clock.stop(Instant::now());
        let ops = plan(&mut self.reconciler, now);
        let count = ops.len();
        if count > 0 {
            self.state.changed();
            self.frontends_are_due = true;
        }
        // The names first, so that a reader of the rows can name them.
        self.state.record_names(self.reconciler.take_named());
        self.open.record(&ops, self.is_programmed, |ip| self.devices.may_be_own(ip));
        self.writer.write(ops, &self.numbers);
        self.open.record_again();
        self.pass_time();
        count
    }

    /// Opens and raises the health checks of what the maps have.
    fn check(&mut self) {
        if !self.writer.is_done() {
            return;
        }
        let refused = self.reconciler.refused().map(|(key, _)| key);
        let lacking = refused.chain(self.reconciler.delayed());
        let lacking = lacking.map(|key| (key, self.reconciler.is_programmed(key)));
        let unwritten = self.writer.refused();
        let unwritten =
            unwritten.filter_map(|(id, is_served)| Some((self.reconciler.key(id)?, is_served)));
        let mut shortfall = Shortfall::default();
        for (key, is_served) in lacking.chain(unwritten) {
            shortfall.add(key.service.clone(), is_served);
        }
        self.reporter.checks.programmed(shortfall);
    }

    /// Lets the grace clock run again when the maps have everything.
    pub(super) fn pass_time(&mut self) {
        if self.writer.is_up_to_date() {
            self.clock.go_on(Instant::now());
        }
    }

    /// Reports the time of a sync if everything that arrived is programmed.
    pub(super) fn record_sync(&mut self) {
        if self.is_programmed && self.writer.is_done() && self.tracker.dirty_since().is_none() {
            self.state.synced();
            self.health.updated();
        }
    }
}
