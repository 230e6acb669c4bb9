//! A transaction: it reads the result of all transactions before it, those of the same commit included.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::Value;

use super::object::{Change, ChangeKind, Key, Object};
use super::state::State;
use crate::service::{Booking, Decision, Taken};

/// The changes of the transactions of one commit.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) objects: BTreeMap<Key, Option<Arc<Object>>>,
    pub(super) bookings: BTreeMap<Booking, bool>,
    pub(super) changes: Vec<Arc<Change>>,
}

impl Batch {
    pub(super) fn extend(&mut self, more: Self) {
        self.objects.extend(more.objects);
        self.bookings.extend(more.bookings);
        self.changes.extend(more.changes);
    }
}

/// A running transaction: it sees its own writes, and others see them after it.
#[derive(Debug)]
pub struct Transaction<'a> {
    state: &'a State,
    before: &'a Batch,
    own: Batch,
    revision: u64,
    /// Time of its changes, in seconds since 1970.
    at: u64,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(state: &'a State, before: &'a Batch, at: u64) -> Self {
        let revision = before.changes.last().map_or_else(|| state.revision(), |it| it.revision);
        Self { state, before, own: Batch::default(), revision, at }
    }

    pub(super) fn finish(self) -> Batch {
        self.own
    }

    /// Returns the revision of the last change, also of one in this transaction.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns an object as this transaction sees it.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        let changed = self.own.objects.get(key).or_else(|| self.before.objects.get(key));
        changed.map_or_else(|| self.state.get(key), Clone::clone)
    }

    /// Returns the objects of a resource in key order, of one namespace or all.
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> Vec<Arc<Object>> {
        let kept = self.state.list(resource, namespace).into_iter();
        let mut all: BTreeMap<Key, Arc<Object>> = kept.map(|it| (it.key.clone(), it)).collect();
        // Transactions of one batch share a write to disk; each one sees those before it.
        for (key, object) in self.before.objects.iter().chain(&self.own.objects) {
            let is_other = namespace.is_some_and(|it| it != key.namespace);
            if key.resource != resource || is_other {
                continue;
            }
            drop(match object {
                Some(object) => all.insert(key.clone(), Arc::clone(object)),
                None => all.remove(key),
            });
        }
        all.into_values().collect()
    }

    /// Stores an object under a key, and returns it with its new revision.
    pub fn put(&mut self, key: Key, value: Value) -> Arc<Object> {
        self.revision += 1;
        let object = Arc::new(Object::new(key.clone(), value, self.revision));
        let previous = self.get(&key);
        let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        self.change(kind, &object, previous);
        drop(self.own.objects.insert(key, Some(Arc::clone(&object))));
        object
    }

    /// Deletes an object, and returns its last state.
    pub fn delete(&mut self, key: &Key) -> Option<Arc<Object>> {
        self.end(key, None)
    }

    /// Deletes an object with `last` as its final state, or with the stored state, and returns that.
    pub fn end(&mut self, key: &Key, last: Option<Value>) -> Option<Arc<Object>> {
        let previous = self.get(key)?;
        self.revision += 1;
        let last = last.unwrap_or_else(|| previous.value());
        let last = Arc::new(Object::new(key.clone(), last, self.revision));
        self.change(ChangeKind::Deleted, &last, Some(previous));
        drop(self.own.objects.insert(key.clone(), None));
        Some(last)
    }

    fn change(&mut self, kind: ChangeKind, object: &Arc<Object>, previous: Option<Arc<Object>>) {
        let (revision, at) = (self.revision, self.at);
        let object = Arc::clone(object);
        self.own.changes.push(Arc::new(Change { revision, kind, object, previous, at }));
    }

    /// Applies the bookings of a decision.
    pub fn book(&mut self, decision: &Decision) {
        self.own.bookings.extend(decision.releases.iter().map(|it| (*it, false)));
        self.own.bookings.extend(decision.books.iter().map(|it| (*it, true)));
    }

    /// Releases a booking, so that its address or port is free again.
    pub fn release(&mut self, booking: Booking) {
        self.own.bookings.insert(booking, false);
    }

    fn is_booked(&self, booking: Booking) -> bool {
        let changed =
            self.own.bookings.get(&booking).or_else(|| self.before.bookings.get(&booking));
        changed.copied().unwrap_or_else(|| self.state.is_booked(booking))
    }
}

impl Taken for Transaction<'_> {
    fn has_address(&self, address: IpAddr) -> bool {
        self.is_booked(Booking::Address(address))
    }

    fn has_port(&self, port: u16) -> bool {
        self.is_booked(Booking::Port(port))
    }
}
