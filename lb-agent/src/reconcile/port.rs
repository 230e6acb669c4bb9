//! One service port in the mirror: its rows, its two sets, and how a new plan replaces the old one.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::service::{BackendId, Frontend, Service, ServiceId, Set};

mod placing;
mod reading;

use reading::{claims, flags, lean, rank};

use super::frontends::key;
use super::rows_by_endpoint::RowsByEndpoint;
use super::slot_ranges::Range;
use super::{Reconciler, Refusal, Transaction};
use crate::plan::{PortKey, PortPlan, ServiceName};

/// The outcome of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is programmed.
    Placed,
    /// It waits for room that is coming.
    Waits,
    /// There is no room.
    Refused,
}

/// The state that is programmed for one service port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) plan: PortPlan,
    pub(super) rows: RowsByEndpoint,
    /// Backends under traffic policy Cluster.
    pub(super) cluster: Members,
    /// Backends under traffic policy Local.
    pub(super) local: Members,
    /// Counts the changes of the sets.
    pub(super) generation: u32,
}

/// A set, and who is in it in the order of the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) set: Set,
    pub(super) ids: Vec<BackendId>,
}

impl Members {
    pub(super) const fn range(&self) -> Option<Range> {
        match self.set.lines() {
            0 => None,
            lines => Some(Range { line: self.set.line, lines }),
        }
    }
}

impl Port {
    /// The rank of the port when two ask for one frontend.
    pub(super) const fn seniority(&self) -> (&(i64, String), &PortKey) {
        (&self.plan.age, &self.plan.key)
    }

    /// The entry of one of its frontends.
    pub(super) fn service(&self, id: ServiceId, frontend: Frontend) -> Option<Service> {
        let plans = self.plan.frontends.iter();
        let plan = plans.filter(|plan| key(plan, self.plan.key.protocol) == frontend);
        let plan = plan.min_by_key(|plan| rank(plan))?;
        Some(Service {
            id,
            flags: flags(&self.plan, plan),
            affinity: self.plan.affinity.unwrap_or(0),
            generation: self.generation,
            cluster: self.cluster.set,
            local: self.local.set,
        })
    }

    /// How much of a map it would give back.
    pub(super) fn holds(&self, refusal: Refusal) -> usize {
        match refusal {
            Refusal::Services => self.plan.frontends.len(),
            Refusal::Backends => self.rows.len(),
            Refusal::Slots => self.ranges().iter().map(|range| range.lines as usize).sum(),
            Refusal::Sources => self.plan.sources.len(),
        }
    }

    fn ranges(&self) -> BTreeSet<Range> {
        self.cluster.range().into_iter().chain(self.local.range()).collect()
    }
}

impl Reconciler {
    /// Puts a plan in place of what its port has now; without room the port stays as it is and is refused.
    pub(super) fn put(
        &mut self,
        plan: PortPlan,
        now: Duration,
        transaction: &mut Transaction,
    ) -> Outcome {
        let known = self.names.get(&plan.key);
        if known.and_then(|id| self.ports.get(id)).is_some_and(|port| port.plan == plan) {
            return Outcome::Placed;
        }
        let id = known.or_else(|| self.match_orphan(&plan)).unwrap_or_else(|| self.names.next());
        if let Err(lack) = self.place(id, &plan, now, transaction) {
            let waits = self.make_room(&plan, lack, now, transaction);
            self.refused.insert(lack.refusal, plan);
            return if waits { Outcome::Waits } else { Outcome::Refused };
        }
        self.ports.note_age(&plan.age);
        self.names.give(&plan.key, id);
        self.claim(id, lean(plan), transaction);
        Outcome::Placed
    }

    /// Ends a port.
    pub(super) fn remove(&mut self, key: &PortKey, now: Duration, transaction: &mut Transaction) {
        let Some(id) = self.names.remove(key) else {
            return;
        };
        let Some(port) = self.ports.remove(id) else {
            return;
        };
        for (frontend, kind) in claims(&port.plan) {
            self.frontends.release(frontend, kind, id, &mut transaction.dirty);
        }
        self.room.abandon(id, &port, now, transaction);
    }

    /// Claims the frontends of a plan, and gives up those of the one before it.
    fn claim(&mut self, id: ServiceId, plan: PortPlan, transaction: &mut Transaction) {
        let Some(port) = self.ports.get_mut(id) else {
            return;
        };
        if port.plan.affinity.is_some() && plan.affinity.is_none() {
            transaction.forgotten.insert(id);
        }
        let old = claims(&port.plan);
        let new = claims(&plan);
        port.plan = plan;
        for (frontend, kind) in old.difference(&new) {
            self.frontends.release(*frontend, *kind, id, &mut transaction.dirty);
        }
        for (frontend, kind) in new {
            self.frontends.claim(frontend, kind, id, &mut transaction.dirty);
        }
    }
}

impl PortKey {
    /// The first key a Service can have.
    pub(super) fn first(service: &ServiceName) -> Self {
        Self {
            service: service.clone(),
            port: String::new(),
            protocol: lb_common::addr::Protocol::NONE,
            family: crate::plan::Family::V4,
        }
    }
}
