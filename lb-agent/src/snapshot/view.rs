//! The age of the known state: for status, metrics and probes.
//!
//! The data path never waits for it: while a source is unreachable, the last known state stays active.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use super::{Finding, ObjectKind};

/// The state of a source, shared between the source, which writes it, and all parts that show it.
#[derive(Clone, Debug, Default)]
pub struct ViewHealth(Arc<Mutex<SourceState>>);

/// The kinds, problems and unread parts of a source.
#[derive(Debug, Default)]
struct SourceState {
    kinds: BTreeMap<ObjectKind, KindView>,
    problems: BTreeMap<String, Vec<Finding>>,
    unread: BTreeSet<String>,
}

/// The view of one kind of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindView {
    /// A complete list has been read at least once.
    pub synced: bool,
    /// The failure; set while changes do not arrive.
    pub stale: Option<Stale>,
}

/// The reason why a view may be old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The time at which changes stopped to arrive.
    pub since: Timestamp,
    /// The reason for the failure of the last attempt.
    pub reason: String,
}

impl ViewHealth {
    /// Notes that a complete list of this kind was read.
    pub fn synced(&self, kind: ObjectKind) {
        self.state().kinds.entry(kind).or_default().synced = true;
    }

    /// Notes that changes of this kind arrive.
    pub fn fresh(&self, kind: ObjectKind) {
        let stale = self.state().kinds.entry(kind).or_default().stale.take();
        if let Some(stale) = stale {
            let resource = kind.resource();
            tracing::info!(resource, stale_since = %stale.since, "watch works again");
        }
    }

    /// Notes that changes of this kind do not arrive.
    pub fn stale(&self, kind: ObjectKind, reason: &str) {
        let mut state = self.state();
        let view = state.kinds.entry(kind).or_default();
        let first = view.stale.is_none();
        let stale = view
            .stale
            .get_or_insert_with(|| Stale { since: Timestamp::now(), reason: String::new() });
        reason.clone_into(&mut stale.reason);
        // The lock must not be held while the log writes.
        drop(state);
        let resource = kind.resource();
        if first {
            tracing::warn!(resource, reason, "watch failed; keeping the last known state");
        } else {
            tracing::debug!(resource, reason, "watch still fails");
        }
    }

    /// Replaces the problems of one part of the source, for example of a file.
    pub fn problems_of(&self, part: &str, findings: Vec<Finding>) {
        let mut state = self.state();
        if findings.is_empty() {
            drop(state.problems.remove(part));
        } else {
            drop(state.problems.insert(part.to_owned(), findings));
        }
    }

    /// Notes whether one part of the source, for example a file, cannot be read now.
    pub fn unread(&self, part: &str, is_unread: bool) {
        let mut state = self.state();
        if is_unread {
            state.unread.insert(part.to_owned())
        } else {
            state.unread.remove(part)
        };
    }

    /// Reports whether every part of the source can be read.
    pub fn is_whole(&self) -> bool {
        self.state().unread.is_empty()
    }

    /// Returns the view of each kind that was requested.
    pub fn kinds(&self) -> BTreeMap<ObjectKind, KindView> {
        self.state().kinds.clone()
    }

    /// Returns the kind that has been stale for longest.
    pub fn oldest(&self) -> Option<(ObjectKind, Stale)> {
        let kinds = self.kinds().into_iter();
        kinds.filter_map(|(kind, view)| Some((kind, view.stale?))).min_by_key(|(_, s)| s.since)
    }

    /// Returns the problems of the source itself, part by part.
    pub fn problems(&self) -> Vec<Finding> {
        self.state().problems.values().flatten().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, SourceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_counts_from_the_first_failure_and_names_the_last() {
        let view = ViewHealth::default();
        view.fresh(ObjectKind::Node);
        view.stale(ObjectKind::Slice, "connection refused");
        view.stale(ObjectKind::Service, "connection refused");
        let (kind, before) = view.oldest().expect("stale");
        view.stale(kind, "timed out");
        let (_, after) = view.oldest().expect("stale");
        assert_eq!((kind, after.since), (ObjectKind::Slice, before.since));
        assert_eq!(after.reason, "timed out");
        view.fresh(ObjectKind::Slice);
        assert_eq!(view.oldest().expect("stale").0, ObjectKind::Service);
        view.fresh(ObjectKind::Service);
        assert_eq!(view.oldest(), None);
    }

    #[test]
    fn problems_are_replaced_part_by_part() {
        let view = ViewHealth::default();
        let finding = |field: &str| {
            let mut findings = crate::snapshot::Findings::of("file", "", "a.yaml");
            findings.wrong(field, "is wrong", "correct it");
            findings.into_list()
        };
        view.problems_of("a.yaml", finding("one"));
        view.problems_of("b.yaml", finding("two"));
        view.problems_of("a.yaml", finding("three"));
        let fields: Vec<_> = view.problems().into_iter().map(|finding| finding.field).collect();
        assert_eq!(fields, ["three", "two"]);
        view.problems_of("a.yaml", Vec::new());
        assert_eq!(view.problems().len(), 1);
    }

    #[test]
    fn a_source_is_whole_when_every_part_can_be_read() {
        let view = ViewHealth::default();
        view.unread("a.yaml", false);
        assert!(view.is_whole());
        view.unread("a.yaml", true);
        view.unread("b.yaml", false);
        assert!(!view.is_whole());
        view.unread("a.yaml", false);
        assert!(view.is_whole());
    }
}
