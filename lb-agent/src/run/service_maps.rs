//! The maps of Services: their mirror, the operations that wait, and the clock after which they reuse what a change
//! released.
//!
//! A change is planned and written here, and nowhere else, so that nothing is reused while packets may still read it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_common::service::ServiceId;

use super::checks::Shortfall;
use super::devices::Devices;
use super::grace_clock::GraceClock;
use super::open_connections::OpenConnections;
use super::state::State;
use super::writer::Writer;
use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::reconcile::{Change, GRACE, Op, Reconciler};
use crate::syscall::wait_for_programs;

/// Number of grace periods for which one change waits: after the first one a port may displace others, for whose
/// entries it waits again.
const GRACE_PERIODS: usize = 4;

/// Number of Services that are planned before their operations are written. The operations of a whole cluster at once
/// would take much memory.
const PIECE: usize = 1_000;

/// The mirror of the maps, and what writes it to them.
pub(super) struct ServiceMaps {
    /// The clock by which the reconciler reuses what a change released.
    clock: GraceClock,
    reconciler: Reconciler,
    writer: Writer<Maps>,
    open: OpenConnections,
    numbers: Arc<Numbers>,
    /// Whether the Services of the initial sync were planned.
    is_programmed: bool,
}

impl ServiceMaps {
    /// Continues from the maps as `reconciler` has adopted them. `shared`: other handles to them.
    pub(super) fn new(
        maps: Maps,
        reconciler: Reconciler,
        shared: Arc<Maps>,
        numbers: Arc<Numbers>,
        began: Instant,
    ) -> Self {
        Self {
            clock: GraceClock::started(began),
            reconciler,
            writer: Writer::new(maps),
            open: OpenConnections::new(shared),
            numbers,
            is_programmed: false,
        }
    }

    /// Returns the mirror, to read it.
    pub(super) const fn reconciler(&self) -> &Reconciler {
        &self.reconciler
    }

    /// Programs changes of Services, in pieces. Returns the number of operations.
    pub(super) fn program(
        &mut self,
        state: &mut State,
        devices: &Devices,
        mut changes: Vec<Change>,
    ) -> usize {
        // Oldest Services first: a frontend that several claim goes to its winner at once, even if they are in
        // different pieces. Only a ClusterIP that an older Service names as an external IP may change hands twice.
        changes.sort_by(|left, right| left.age().cmp(&right.age()));
        let (mut operations, mut changes) = (0, changes.into_iter());
        loop {
            let piece: Vec<Change> = changes.by_ref().take(PIECE).collect();
            if piece.is_empty() {
                return operations;
            }
            operations += self.plan(state, devices, piece);
        }
    }

    /// Programs one piece of the changes. Returns the number of operations.
    ///
    /// If a port lacks only what changes have released, the grace period passes at once: a rollout of a large Service
    /// may release more between two ticks than the map has left.
    fn plan(&mut self, state: &mut State, devices: &Devices, changes: Vec<Change>) -> usize {
        let mut count =
            self.change(state, devices, |reconciler, now| reconciler.plan(now, changes));
        for _ in 0..GRACE_PERIODS {
            if !self.writer.is_up_to_date() || self.reconciler.delayed().next().is_none() {
                break;
            }
            wait_for_programs();
            // The clock may run ahead of the time: no program still reads what was released before this call.
            self.clock.skip(GRACE);
            count += self.change(state, devices, Reconciler::tick);
        }
        count
    }

    /// Plans a change and writes it. Returns the number of operations.
    ///
    /// The clock stops meanwhile: rows that the change releases stay in use until all operations are in the maps.
    pub(super) fn change(
        &mut self,
        state: &mut State,
        devices: &Devices,
        plan: impl FnOnce(&mut Reconciler, Duration) -> Vec<Op>,
    ) -> usize {
        let now = self.clock.stop(Instant::now());
        let ops = plan(&mut self.reconciler, now);
        let count = ops.len();
        if count > 0 {
            state.changed();
        }
        // The names first, so that a reader of the rows can name them.
        state.record_names(self.reconciler.take_named());
        // Open connections are searched before the frontends are written, and again afterwards: one may begin between
        // the search and the write.
        self.open.record(&ops, self.is_programmed, |ip| devices.may_be_own(ip));
        self.writer.write(ops, &self.numbers);
        self.open.record_again();
        self.pass_time();
        count
    }

    /// Takes in whether a take-over is under way. Call it before the settings are written.
    pub(super) fn hold(&mut self, is_taking_over: bool) {
        self.open.hold(is_taking_over);
    }

    /// Retries what the maps refused. Returns whether the set of refused entries changed.
    pub(super) fn retry(&mut self) -> bool {
        let has_changed = self.writer.retry(&self.numbers);
        if self.writer.take_replaced() {
            // Packets may have confirmed the old entry since its change was counted.
            let ops = self.reconciler.count_removal();
            self.writer.write(ops, &self.numbers);
        }
        self.pass_time();
        has_changed
    }

    /// Lets the grace clock run again when the maps have everything.
    fn pass_time(&mut self) {
        if self.writer.is_up_to_date() {
            self.clock.go_on(Instant::now());
        }
    }

    /// Returns the time that the grace clock shows.
    pub(super) fn grace_time(&self) -> Duration {
        self.clock.shows(Instant::now())
    }

    /// Notes that the Services of the initial sync were planned.
    pub(super) const fn programmed(&mut self) {
        self.is_programmed = true;
    }

    /// Reports whether the Services of the initial sync were planned.
    pub(super) const fn is_programmed(&self) -> bool {
        self.is_programmed
    }

    /// Reports whether no operation waits; refused entries do not count.
    pub(super) fn is_done(&self) -> bool {
        self.writer.is_done()
    }

    /// Reports whether the maps have the Services of the initial sync, and all changes since.
    pub(super) fn is_complete(&self) -> bool {
        self.is_programmed && self.writer.is_done()
    }

    /// Returns the time since which a refused write holds up all others.
    pub(super) const fn failing_since(&self) -> Option<Instant> {
        self.writer.failing_since()
    }

    /// Returns the services some of whose entries were refused, and why.
    pub(super) fn unwritten(&self) -> Vec<(ServiceId, String)> {
        self.writer.unwritten()
    }

    /// Returns the Services whose newest plan is not in the maps; `None` while an operation waits.
    pub(super) fn shortfall(&self) -> Option<Shortfall> {
        // An operation that waits may be of any Service, so no Service counts as served yet.
        if !self.writer.is_done() {
            return None;
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
        Some(shortfall)
    }
}
