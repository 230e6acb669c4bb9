//! All service ports: the programmed ones, and those of an earlier run that no plan has claimed.

use std::collections::BTreeMap;

use lb_common::service::ServiceId;

use super::{FullMap, MirroredPort};
use crate::plan::{PortKey, PortPlan};

/// The order in which ports get room.
pub(super) type Seniority = ((i64, String), PortKey);

/// The service ports in the mirror, those of this run and those of an earlier one, by service id.
#[derive(Debug)]
pub(super) struct MirroredPorts {
    /// Programmed ports. They are boxed, because half of the slots of a B-tree are empty.
    programmed: BTreeMap<ServiceId, Box<MirroredPort>>,
    /// Ports of an earlier run that no plan has claimed yet.
    orphans: BTreeMap<ServiceId, MirroredPort>,
    /// Age of the youngest port so far: no programmed port is younger.
    youngest: (i64, String),
}

impl MirroredPorts {
    /// Starts with the ports of an earlier run, and none of this one.
    pub(super) const fn after(orphans: BTreeMap<ServiceId, MirroredPort>) -> Self {
        Self { programmed: BTreeMap::new(), orphans, youngest: (0, String::new()) }
    }

    /// Returns the port of an id, if it is programmed.
    pub(super) fn get(&self, id: ServiceId) -> Option<&MirroredPort> {
        self.programmed.get(&id).map(|port| &**port)
    }

    pub(super) fn get_mut(&mut self, id: ServiceId) -> Option<&mut MirroredPort> {
        self.programmed.get_mut(&id).map(|port| &mut **port)
    }

    /// Returns all programmed ports.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServiceId, &MirroredPort)> {
        self.programmed.iter().map(|(id, port)| (*id, &**port))
    }

    /// Removes and returns the programmed port of an id, or else its orphan.
    pub(super) fn take(&mut self, id: ServiceId) -> Option<Box<MirroredPort>> {
        self.programmed.remove(&id).or_else(|| self.orphans.remove(&id).map(Box::new))
    }

    /// Removes and returns the programmed port of an id.
    pub(super) fn remove(&mut self, id: ServiceId) -> Option<Box<MirroredPort>> {
        self.programmed.remove(&id)
    }

    pub(super) fn insert(&mut self, id: ServiceId, port: Box<MirroredPort>) {
        drop(self.programmed.insert(id, port));
    }

    /// Records the age of a programmed port.
    pub(super) fn record_age(&mut self, age: &(i64, String)) {
        if *age > self.youngest {
            self.youngest.clone_from(age);
        }
    }

    /// Reports whether every programmed port is older than `age`.
    pub(super) fn are_older(&self, age: &(i64, String)) -> bool {
        *age > self.youngest
    }

    /// Returns the ports that are younger than `plan` and hold entries of the full map, with the number of entries.
    pub(super) fn younger(&self, plan: &PortPlan, full: FullMap) -> BTreeMap<Seniority, usize> {
        let mine = (&plan.age, &plan.key);
        let younger = self.programmed.values().filter(|port| port.seniority() > mine);
        younger
            .map(|port| ((port.plan.age.clone(), port.plan.key.clone()), port.holds(full)))
            .filter(|(_, held)| *held > 0)
            .collect()
    }

    /// Reports whether an earlier run left a port of this id that no plan has claimed.
    pub(super) fn has_orphan(&self, id: ServiceId) -> bool {
        self.orphans.contains_key(&id)
    }

    pub(super) fn add_orphan(&mut self, id: ServiceId, port: MirroredPort) {
        drop(self.orphans.insert(id, port));
    }

    /// Removes and returns the ports that no plan has claimed.
    pub(super) fn take_orphans(&mut self) -> BTreeMap<ServiceId, MirroredPort> {
        std::mem::take(&mut self.orphans)
    }
}
