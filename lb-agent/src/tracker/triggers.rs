//! Times of the changes behind EndpointSlices (contract 7): the annotation that the endpoint controller writes.

use std::collections::BTreeMap;
use std::mem;

use jiff::Timestamp;

use crate::plan::{Family, ServiceName};
use crate::snapshot::SliceSpec;

/// Triggers of slices not yet taken, and of those just taken.
#[derive(Debug)]
pub(super) struct Triggers {
    started: Timestamp,
    pending: BTreeMap<ServiceName, Vec<(Family, Timestamp)>>,
    taken: Vec<(Family, Timestamp)>,
}

impl Triggers {
    /// Changes made from now on count.
    pub(super) fn new() -> Self {
        Self { started: Timestamp::now(), pending: BTreeMap::new(), taken: Vec::new() }
    }

    /// The trigger of a slice, if it counts.
    pub(super) fn of(&self, slice: &SliceSpec) -> Option<(Family, Timestamp)> {
        let time = slice.triggered.filter(|time| *time > self.started)?;
        Some((slice.family?, time))
    }

    /// A Service waits to be taken because of this.
    pub(super) fn add(&mut self, owner: &ServiceName, trigger: (Family, Timestamp)) {
        self.pending.entry(owner.clone()).or_default().push(trigger);
    }

    /// A slice of the Service went: what is programmed next is not what was asked for then.
    pub(super) fn forget(&mut self, owner: &ServiceName) {
        drop(self.pending.remove(owner));
    }

    /// Everything that waited is taken.
    pub(super) fn take_pending(&mut self) {
        let pending = mem::take(&mut self.pending);
        self.taken.extend(pending.into_values().flatten());
    }

    /// Those taken since this was asked last.
    pub(super) fn take(&mut self) -> Vec<(Family, Timestamp)> {
        mem::take(&mut self.taken)
    }
}
