//! The ids of service ports, by the key of the port. An id is given only once.

use std::collections::BTreeMap;

use lb_common::service::ServiceId;

use crate::plan::{PortKey, ServiceName};

/// Service ids by the key of the port.
#[derive(Debug)]
pub(super) struct Names {
    ids: BTreeMap<PortKey, ServiceId>,
    next_id: ServiceId,
    /// Number of changes of `ids`.
    changes: u64,
    /// Ids that were given since the last [`Names::take_new`].
    new: Vec<ServiceId>,
}

impl Names {
    /// Starts without ports. Ids up to `highest` belong to an earlier run and are not given again.
    pub(super) const fn after(highest: ServiceId) -> Self {
        Self { ids: BTreeMap::new(), next_id: highest + 1, changes: 0, new: Vec::new() }
    }

    /// Returns the id of a port, if it has one.
    pub(super) fn get(&self, key: &PortKey) -> Option<ServiceId> {
        self.ids.get(key).copied()
    }

    /// Returns the id that the next new port gets.
    pub(super) const fn next(&self) -> ServiceId {
        self.next_id
    }

    /// Takes an id that no port will get.
    pub(super) const fn take(&mut self) -> ServiceId {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Gives a port its id, unless it has one.
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

    /// Removes a port, and returns its id.
    pub(super) fn remove(&mut self, key: &PortKey) -> Option<ServiceId> {
        let id = self.ids.remove(key)?;
        self.changes += 1;
        Some(id)
    }

    /// Returns the keys of the ports of a Service.
    pub(super) fn of(&self, service: &ServiceName) -> Vec<PortKey> {
        let from = PortKey::first(service);
        let ports = self.ids.range(from..).map(|(key, _)| key);
        ports.take_while(|key| key.service == *service).cloned().collect()
    }

    /// Returns the number of changes so far.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the ids that were given since the last call.
    pub(super) fn take_new(&mut self) -> Vec<ServiceId> {
        std::mem::take(&mut self.new)
    }
}
