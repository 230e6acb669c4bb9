//! A service port in the mirror: its rows, its two sets, and how a new plan replaces the current one.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::service::{BackendId, Frontend, Service, ServiceId, Set};

mod placing;
mod reading;

use reading::{claims, flags, lean, rank};

use super::frontends::key;
use super::rows_by_endpoint::RowsByEndpoint;
use super::slot_ranges::Range;
use super::{FullMap, Reconciler, Transaction};
use crate::plan::{FrontendKind, PortKey, PortPlan, ServiceName};

/// The result of placing a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// The plan is programmed.
    Placed,
    /// The plan waits for room that will become free.
    Waits,
    /// There is no room, and none will become free.
    Refused,
}

/// A service port in the mirror: its plan, and the rows and sets that it has.
#[derive(Debug)]
pub(super) struct MirroredPort {
    pub(super) plan: PortPlan,
    pub(super) rows: RowsByEndpoint,
    /// Backends under traffic policy Cluster.
    pub(super) cluster: Members,
    /// Backends under traffic policy Local.
    pub(super) local: Members,
    /// Number of changes of the sets; of two entries the one with the larger number is newer.
    pub(super) generation: u32,
}

/// A set, and its rows in the order of the set.
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

impl MirroredPort {
    /// Returns the rank of the port when several claim a frontend: the smaller wins.
    ///
    /// A port whose `ClusterIP` it is comes first: whoever may write Services may name any address as an external IP
    /// (CVE-2020-8554). Then comes a port with endpoints anywhere, because kube-proxy refuses connections only after no
    /// port has translated them (contract 1.6).
    pub(super) fn claim_rank(&self, frontend: Frontend) -> (bool, bool, &(i64, String), &PortKey) {
        let (age, port) = self.seniority();
        let is_own = self.plan.frontends.iter().any(|plan| {
            plan.kind == FrontendKind::ClusterIp && key(plan, self.plan.key.protocol) == frontend
        });
        (!is_own, !self.plan.anywhere, age, port)
    }

    /// Returns the rank of the port when room runs out: the smaller, which is the older, has it.
    pub(super) const fn seniority(&self) -> (&(i64, String), &PortKey) {
        (&self.plan.age, &self.plan.key)
    }

    /// Returns the entry of one of the port's frontends.
    pub(super) fn service(&self, id: ServiceId, frontend: Frontend) -> Option<Service> {
        let plans = self.plan.frontends.iter();
        let plan = plans.filter(|plan| key(plan, self.plan.key.protocol) == frontend);
        // One address can be an external IP and a load balancer address at once; one of them decides.
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

    /// Returns how many entries of a map removing the port would free.
    pub(super) fn holds(&self, full: FullMap) -> usize {
        match full {
            FullMap::Services => self.plan.frontends.len(),
            FullMap::Backends => self.rows.len(),
            FullMap::Slots => self.ranges().iter().map(|range| range.lines as usize).sum(),
            FullMap::Sources => self.plan.sources.len(),
        }
    }

    fn ranges(&self) -> BTreeSet<Range> {
        self.cluster.range().into_iter().chain(self.local.range()).collect()
    }
}

impl Reconciler {
    /// Places a plan for its port. Without room, the port stays as it is and is refused.
    pub(super) fn put(
        &mut self,
        plan: PortPlan,
        now: Duration,
        transaction: &mut Transaction,
    ) -> Placement {
        let known = self.names.get(&plan.key);
        if known.and_then(|id| self.ports.get(id)).is_some_and(|port| port.plan == plan) {
            return Placement::Placed;
        }
        // With the number of an earlier run a port keeps its rows, and thereby its flows and affinities.
        let id = known.or_else(|| self.match_orphan(&plan)).unwrap_or_else(|| self.names.next());
        if let Err(lack) = self.place(id, &plan, now, transaction) {
            let waits = self.displace_younger(&plan, lack, now, transaction);
            self.refused.insert(lack.full, plan, waits);
            return if waits { Placement::Waits } else { Placement::Refused };
        }
        self.refused.record_served(&plan.key);
        self.ports.record_age(&plan.age);
        // Only a port that found room uses its id up: a refused one gets the next free id when it is retried.
        self.names.give(&plan.key, id);
        self.claim(id, lean(plan), transaction);
        Placement::Placed
    }

    /// Removes a port, and retires its rows and sets for a grace period.
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
        self.capacity.abandon(id, &port, now, transaction);
    }

    /// Claims the frontends of a plan, and releases those of the previous one.
    fn claim(&mut self, id: ServiceId, plan: PortPlan, transaction: &mut Transaction) {
        let Some(port) = self.ports.get_mut(id) else {
            return;
        };
        // If affinity is switched on again later, clients must not return to their old backends.
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
    /// Returns the smallest key that a Service can have.
    pub(super) fn first(service: &ServiceName) -> Self {
        Self {
            service: service.clone(),
            port: String::new(),
            protocol: lb_common::addr::Protocol::NONE,
            family: crate::plan::Family::V4,
        }
    }
}
