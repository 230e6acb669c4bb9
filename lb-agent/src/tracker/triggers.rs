//! Trigger times of changes of `EndpointSlice`s (contract 7), from the annotation that the endpoint controller writes.

use std::collections::BTreeMap;
use std::mem;

use jiff::Timestamp;

use crate::plan::{Family, ServiceName};
use crate::snapshot::SliceSpec;

/// Triggers of slices that are not taken yet, and of those just taken.
#[derive(Debug)]
pub(super) struct Triggers {
    started: Timestamp,
    pending: BTreeMap<ServiceName, Vec<(Family, Timestamp)>>,
    taken: Vec<(Family, Timestamp)>,
}

impl Triggers {
    /// Counts changes from now on; older triggers would measure the agent's start.
    pub(super) fn new() -> Self {
        Self { started: Timestamp::now(), pending: BTreeMap::new(), taken: Vec::new() }
    }

    /// Returns the trigger of a slice, if it counts.
    pub(super) fn of(&self, slice: &SliceSpec) -> Option<(Family, Timestamp)> {
        let time = slice.triggered.filter(|time| *time > self.started)?;
        Some((slice.family?, time))
    }

    /// Adds a trigger to a Service that waits to be taken.
    pub(super) fn add(&mut self, owner: &ServiceName, trigger: (Family, Timestamp)) {
        self.pending.entry(owner.clone()).or_default().push(trigger);
    }

    /// Drops the triggers of a Service that lost a slice: the next programming does not answer them.
    pub(super) fn forget(&mut self, owner: &ServiceName) {
        drop(self.pending.remove(owner));
    }

    /// Moves all pending triggers to the taken ones.
    pub(super) fn take_pending(&mut self) {
        let pending = mem::take(&mut self.pending);
        self.taken.extend(pending.into_values().flatten());
    }

    /// Returns the triggers taken since the last call.
    pub(super) fn take(&mut self) -> Vec<(Family, Timestamp)> {
        mem::take(&mut self.taken)
    }
}
