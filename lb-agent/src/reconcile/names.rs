//! The identities of service ports: given once, known by the key of the port, and counted when they come or go.

use std::collections::BTreeMap;

use lb_common::service::ServiceId;

use crate::plan::{PortKey, ServiceName};

/// Identities by key.
#[derive(Debug)]
pub(super) struct Names {
    ids: BTreeMap<PortKey, ServiceId>,
    next_id: ServiceId,
    /// Counts the changes of `ids`.
    changes: u64,
    /// Those that got their identity since somebody asked.
    new: Vec<ServiceId>,
}

impl Names {
    /// Nobody has one yet; an earlier run gave them up to the `highest`.
    pub(super) const fn after(highest: ServiceId) -> Self {
        Self { ids: BTreeMap::new(), next_id: highest + 1, changes: 0, new: Vec::new() }
    }

    /// The identity of a port, if it has one.
    pub(super) fn get(&self, key: &PortKey) -> Option<ServiceId> {
        self.ids.get(key).copied()
    }

    /// The identity that the next new port gets.
    pub(super) const fn next(&self) -> ServiceId {
        self.next_id
    }

    /// An identity that no port will get.
    pub(super) const fn take(&mut self) -> ServiceId {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Gives a port its identity, unless it has it.
    pub(super) fn give(&mut self, key: &PortKey, id: ServiceId) {
        if id == self.next_id {
            self.next_id += 1;
        }
        if !self.ids.contains_key(key) {
            self.ids.insert(key.clone(), id);
            self.changes += 1;
            self.new.push(id);
        }
    }

    /// Takes the identity of a port that ends.
    pub(super) fn remove(&mut self, key: &PortKey) -> Option<ServiceId> {
        let id = self.ids.remove(key)?;
        self.changes += 1;
        Some(id)
    }

    /// The ports of a Service.
    pub(super) fn of(&self, service: &ServiceName) -> Vec<PortKey> {
        let from = PortKey::first(service);
        let ports = self.ids.range(from..).map(|(key, _)| key);
        ports.take_while(|key| key.service == *service).cloned().collect()
    }

    /// Counts the changes.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Those that got their identity since this was asked last.
    pub(super) fn take_new(&mut self) -> Vec<ServiceId> {
        std::mem::take(&mut self.new)
    }
}
