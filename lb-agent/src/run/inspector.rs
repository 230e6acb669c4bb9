//! The schedule of inspections, and the problems of the node that no other part of the agent knows.

use std::time::{Duration, Instant};

use super::early_drops::EarlyDrops;
use super::node_object::NodeObject;
use super::state::State;
use crate::node::Identity;
use crate::reconcile::Reconciler;
use crate::snapshot::ObjectKind;
use crate::tracker::Tracker;

/// Interval of inspections. The kernel does not report a detached program; an inspection takes a few system calls for
/// each interface.
const INTERVAL: Duration = Duration::from_secs(2);

/// The time of the last inspection, and what inspections have found.
pub(super) struct Inspector {
    last: Instant,
    /// The problem if the memory limit at the start was below what full maps may take.
    memory_problem: Option<String>,
    early_drops: EarlyDrops,
    node_object: NodeObject,
}

impl Inspector {
    /// Makes an inspector whose first inspection is due after the interval.
    pub(super) fn new(memory_problem: Option<String>) -> Self {
        Self {
            last: Instant::now(),
            memory_problem,
            early_drops: EarlyDrops::default(),
            node_object: NodeObject::default(),
        }
    }

    /// Reports whether an inspection is due.
    pub(super) fn is_due(&self) -> bool {
        self.last.elapsed() >= INTERVAL
    }

    /// Notes that an inspection begins.
    pub(super) fn begin(&mut self) {
        self.last = Instant::now();
    }

    /// Returns the problem of the memory limit.
    pub(super) fn memory_problem(&self) -> Option<String> {
        self.memory_problem.clone()
    }

    /// Returns the problems of backends to which rules of the node drop packets.
    pub(super) fn backend_problems(&mut self, reconciler: &Reconciler) -> Vec<String> {
        self.early_drops.problems(reconciler)
    }

    /// Returns the problem of the Node object.
    pub(super) fn node_object_problem(
        &mut self,
        tracker: &Tracker,
        state: &State,
        identity: &Identity,
    ) -> Option<String> {
        // Before the lists are whole, the object may still come.
        if !tracker.is_synced() {
            return None;
        }
        let (context, is_known) = (tracker.context(), tracker.node().is_some());
        let (name, has_zone) = (&context.name, context.zone.is_some());
        let unread = state.unread(ObjectKind::Node);
        self.node_object.problem(name, is_known, unread.as_deref(), identity, has_zone)
    }
}
