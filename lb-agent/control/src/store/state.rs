//! The state in memory: all objects, all bookings, and the last changes of each resource.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::object::{Change, ChangeKind, Key, Object};
use crate::service::Booking;

/// The requested revision is older than the window of kept changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The oldest revision that can be requested.
    pub oldest: u64,
}

/// The whole state at one revision.
#[derive(Debug, Default)]
pub(super) struct State {
    revision: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    bookings: BTreeSet<Booking>,
    window: BTreeMap<String, VecDeque<Arc<Change>>>,
    /// History up to this revision has been removed.
    forgotten: u64,
}

impl State {
    pub(super) fn new(revision: u64, forgotten: u64) -> Self {
        Self { revision, forgotten, ..Self::default() }
    }

    pub(super) fn insert(&mut self, object: Object) {
        drop(self.objects.insert(object.key.clone(), Arc::new(object)));
    }

    pub(super) fn insert_booking(&mut self, booking: Booking) {
        self.bookings.insert(booking);
    }

    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.objects.get(key).map(Arc::clone)
    }

    pub(super) fn is_booked(&self, booking: Booking) -> bool {
        self.bookings.contains(&booking)
    }

    pub(super) fn list(&self, resource: &str, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let first = Key::new(resource, namespace.unwrap_or_default(), "");
        let from = (Bound::Included(first), Bound::Unbounded);
        let all = self.objects.range(from).map(|it| it.1);
        let is_in = |it: &&Arc<Object>| {
            it.key.resource == resource && namespace.is_none_or(|name| it.key.namespace == name)
        };
        all.take_while(is_in).map(Arc::clone).collect()
    }

    pub(super) fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Object>>, Gone> {
        self.ensure_known(revision)?;
        let now = self.list(resource, namespace).into_iter();
        let mut then: BTreeMap<Key, Arc<Object>> = now.map(|it| (it.key.clone(), it)).collect();
        // Undoes the later changes, newest first, so that the oldest `previous` of an object counts.
        let later = self.window.get(resource).into_iter().flatten().rev();
        for change in later.take_while(|it| it.revision > revision) {
            let key = &change.object.key;
            if namespace.is_some_and(|it| it != key.namespace) {
                continue;
            }
            drop(match &change.previous {
                Some(before) => then.insert(key.clone(), Arc::clone(before)),
                None => then.remove(key),
            });
        }
        Ok(then.into_values().collect())
    }

    const fn ensure_known(&self, revision: u64) -> Result<(), Gone> {
        if revision < self.forgotten { Err(Gone { oldest: self.forgotten }) } else { Ok(()) }
    }

    pub(super) fn changes(
        &self,
        resource: &str,
        after: u64,
        most: usize,
    ) -> Result<Vec<Arc<Change>>, Gone> {
        self.ensure_known(after)?;
        let Some(changes) = self.window.get(resource) else { return Ok(Vec::new()) };
        // The changes of a resource are in the order of their revisions.
        let start = changes.partition_point(|it| it.revision <= after);
        Ok(changes.iter().skip(start).take(most).map(Arc::clone).collect())
    }

    /// Applies a batch, after it was written to disk.
    pub(super) fn apply(&mut self, changes: &[Arc<Change>], bookings: &BTreeMap<Booking, bool>) {
        for change in changes {
            let key = change.object.key.clone();
            drop(match change.kind {
                ChangeKind::Deleted => self.objects.remove(&key),
                ChangeKind::Added | ChangeKind::Modified => {
                    self.objects.insert(key, Arc::clone(&change.object))
                }
            });
            self.revision = self.revision.max(change.revision);
            self.remember(Arc::clone(change));
        }
        for (booking, is_kept) in bookings {
            if *is_kept {
                self.bookings.insert(*booking);
            } else {
                self.bookings.remove(booking);
            }
        }
    }

    pub(super) fn remember(&mut self, change: Arc<Change>) {
        let resource = change.object.key.resource.clone();
        self.window.entry(resource).or_default().push_back(change);
    }

    /// Returns the revision up to which history may be removed: `keep` changes of each resource remain, and all since
    /// `since` (seconds since 1970).
    pub(super) fn forgettable(&self, keep: usize, since: u64) -> u64 {
        let of = |changes: &VecDeque<Arc<Change>>| {
            let surplus = changes.len().saturating_sub(keep);
            let old = changes.iter().take(surplus).take_while(|it| it.at < since);
            old.last().map(|it| it.revision)
        };
        self.window.values().filter_map(of).max().unwrap_or(self.forgotten)
    }

    pub(super) fn forget(&mut self, up_to: u64) {
        for changes in self.window.values_mut() {
            let kept = changes.partition_point(|it| it.revision <= up_to);
            drop(changes.drain(..kept));
        }
        self.forgotten = self.forgotten.max(up_to);
    }
}
