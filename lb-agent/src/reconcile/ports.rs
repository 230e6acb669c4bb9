//! All service ports: those that are programmed, and those that an earlier run left.

use std::collections::BTreeMap;

use lb_common::service::ServiceId;

use super::{Port, Refusal};
use crate::plan::{PortKey, PortPlan};

/// The order in which ports get room.
pub(super) type Seniority = ((i64, String), PortKey);

/// Ports by identity.
#[derive(Debug)]
pub(super) struct Ports {
    /// In boxes: half of what such a map holds is empty.
    programmed: BTreeMap<ServiceId, Box<Port>>,
    /// Ports that an earlier run left and that nobody has asked for yet.
    orphans: BTreeMap<ServiceId, Port>,
    /// No port that is programmed is younger.
    youngest: (i64, String),
}

impl Ports {
    /// What an earlier run left.
    pub(super) const fn after(orphans: BTreeMap<ServiceId, Port>) -> Self {
        Self { programmed: BTreeMap::new(), orphans, youngest: (0, String::new()) }
    }

    /// The port of an identity, if it is programmed.
    pub(super) fn get(&self, id: ServiceId) -> Option<&Port> {
        self.programmed.get(&id).map(|port| &**port)
    }

    pub(super) fn get_mut(&mut self, id: ServiceId) -> Option<&mut Port> {
        self.programmed.get_mut(&id).map(|port| &mut **port)
    }

    /// All that are programmed.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServiceId, &Port)> {
        self.programmed.iter().map(|(id, port)| (*id, &**port))
    }

    /// Takes out a port, or the orphan that becomes one.
    pub(super) fn take(&mut self, id: ServiceId) -> Option<Box<Port>> {
        self.programmed.remove(&id).or_else(|| self.orphans.remove(&id).map(Box::new))
    }

    /// Ends a port that is programmed.
    pub(super) fn remove(&mut self, id: ServiceId) -> Option<Box<Port>> {
        self.programmed.remove(&id)
    }

    pub(super) fn insert(&mut self, id: ServiceId, port: Box<Port>) {
        drop(self.programmed.insert(id, port));
    }

    /// Notes the age of a port that is programmed.
    pub(super) fn note_age(&mut self, age: &(i64, String)) {
        if *age > self.youngest {
            self.youngest.clone_from(age);
        }
    }

    /// Whether every port that is programmed is older, or as old.
    pub(super) fn are_older(&self, age: &(i64, String)) -> bool {
        *age > self.youngest
    }

    /// Ports that are younger than `plan` and have some of what it lacks, and how much.
    pub(super) fn younger(&self, plan: &PortPlan, refusal: Refusal) -> BTreeMap<Seniority, usize> {
        let mine = (&plan.age, &plan.key);
        let younger = self.programmed.values().filter(|port| port.seniority() > mine);
        younger
            .map(|port| ((port.plan.age.clone(), port.plan.key.clone()), port.holds(refusal)))
            .filter(|(_, held)| *held > 0)
            .collect()
    }

    /// Whether an earlier run left a port of this identity.
    pub(super) fn has_orphan(&self, id: ServiceId) -> bool {
        self.orphans.contains_key(&id)
    }

    pub(super) fn add_orphan(&mut self, id: ServiceId, port: Port) {
        drop(self.orphans.insert(id, port));
    }

    /// Takes out what nobody has asked for.
    pub(super) fn take_orphans(&mut self) -> BTreeMap<ServiceId, Port> {
        std::mem::take(&mut self.orphans)
    }
}
