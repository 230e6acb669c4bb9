//! Places a new plan beside the current one: checks the capacity, then allocates rows, sets and source ranges.

use std::collections::BTreeMap;
use std::time::Duration;

use lb_common::addr::Endpoint;
use lb_common::service::{Backend, BackendId, ServiceId, Set};

use super::reading::{self, at, members, row};
use super::{Members, MirroredPort};
use crate::plan::{EndpointPlan, PortPlan};
use crate::reconcile::capacity::{Capacity, Lack};
use crate::reconcile::frontends::key;
use crate::reconcile::rows_by_endpoint::RowsByEndpoint;
use crate::reconcile::{FullMap, GRACE, Limits, Op, Reconciler, Transaction, selection};

impl Reconciler {
    /// Checks the capacity, then makes rows, sets and sources of a plan beside the current ones.
    pub(super) fn place(
        &mut self,
        id: ServiceId,
        plan: &PortPlan,
        now: Duration,
        transaction: &mut Transaction,
    ) -> Result<(), Lack> {
        // The port is taken out, because `check` needs the rest of `self` beside it.
        let mut port = self.ports.take(id).unwrap_or_else(|| Box::new(MirroredPort::empty(plan)));
        let placed = self.check(id, plan, &port).and_then(|()| self.capacity.sets(&port, plan));
        if let Ok(sets) = placed {
            self.capacity.replace(id, &mut port, plan, sets, now + GRACE, transaction);
        }
        // A port of an earlier run that finds no room keeps its rows: packets still use them.
        let orphaned = placed.is_err() && self.names.get(&plan.key).is_none();
        if orphaned && !port.is_empty() {
            // Its rows are freed if it still has no room after the initial sync.
            self.refused.record_left(&plan.key);
            self.ports.add_orphan(id, *port);
        } else if !orphaned {
            self.ports.insert(id, port);
        }
        placed.map(|_| ())
    }

    fn check(&self, id: ServiceId, plan: &PortPlan, port: &MirroredPort) -> Result<(), Lack> {
        let has_nothing = self.names.get(&plan.key).is_none() && port.is_empty();
        let is_new = has_nothing && !self.refused.is_returning(&plan.key);
        let Capacity { limits, rows, lines, sources } = &self.capacity;
        let enough = |full, limit: u32, used: usize, needed: usize, whole| {
            let free = (limit as usize).saturating_sub(used);
            // New ports leave a reserve, so that known ones can still change when the map is nearly full.
            let needed_all = needed + Limits::reserve(limit, is_new);
            let lack = Lack { full, needed: needed_all, whole };
            if needed == 0 || free >= needed_all { Ok(()) } else { Err(lack) }
        };
        let frontends = plan.frontends.iter();
        let frontends = frontends.map(|plan_of| (key(plan_of, plan.key.protocol), plan_of.clone()));
        let entries = self.frontends.missing(id, &frontends.collect());
        // Frontends of a removed port stay while they drain, so its removal frees nothing at once.
        let used = self.frontends.used();
        enough(FullMap::Services, limits.services, used, entries, usize::MAX)?;
        let new = plan.endpoints.iter().filter(|endpoint| port.rows.get(&at(endpoint)).is_none());
        let (used, all) = (limits.backends as usize - rows.free(), plan.endpoints.len());
        enough(FullMap::Backends, limits.backends, used, new.count(), all)?;
        let (used, new) = (sources.len(), sources.missing(id, &plan.sources));
        enough(FullMap::Sources, limits.sources, used, new, plan.sources.len())?;
        let of_plan = reading::lines(plan) as usize;
        // A known port is checked when its ranges are taken (`sets`): an unchanged set needs none.
        let of_new = if has_nothing { of_plan } else { 0 };
        enough(FullMap::Slots, limits.lines, lines.used() as usize, of_new, of_plan)
    }
}

impl Capacity {
    /// Allocates lines for the sets that change; `None` for a set that stays.
    fn sets(
        &mut self,
        port: &MirroredPort,
        plan: &PortPlan,
    ) -> Result<(Option<Set>, Option<Set>), Lack> {
        let member = |is: fn(&EndpointPlan) -> bool| members(plan, is);
        let cluster = member(|endpoint| endpoint.cluster);
        let local = member(|endpoint| endpoint.local);
        let unchanged = |old: &Members, new: &[Endpoint]| {
            let ids = new.iter().map(|endpoint| port.rows.get(endpoint));
            old.ids.iter().copied().map(Some).eq(ids)
        };
        let is_other = !unchanged(&port.cluster, &cluster);
        let whole = reading::lines(plan) as usize;
        let cluster_set = if is_other { Some(self.take(cluster.len(), whole)?) } else { None };
        // A local set that shared the cluster set's range must move with it.
        if unchanged(&port.local, &local) && !(cluster_set.is_some() && port.is_shared()) {
            return Ok((cluster_set, None));
        }
        if local == cluster {
            return Ok((cluster_set, Some(cluster_set.unwrap_or(port.cluster.set))));
        }
        match self.take(local.len(), whole) {
            Ok(set) => Ok((cluster_set, Some(set))),
            Err(lack) => {
                // Nothing points to the cluster range yet, so it is given back without a grace period.
                let taken = cluster_set.map(|set| Members { set, ids: Vec::new() });
                if let Some(range) = taken.and_then(|members| members.range()) {
                    self.lines.give(range);
                }
                let both = lack.needed + cluster_set.map_or(0, |set| set.lines() as usize);
                Err(Lack { needed: both, ..lack })
            }
        }
    }

    fn take(&mut self, members: usize, whole: usize) -> Result<Set, Lack> {
        let set = selection::shape(0, members as u32);
        match set.lines() {
            0 => Ok(set),
            lines => {
                let lack = Lack { full: FullMap::Slots, needed: lines as usize, whole };
                let range = self.lines.take(lines).ok_or(lack)?;
                Ok(Set { line: range.line, ..set })
            }
        }
    }

    /// Ends the rows, sets, sources and affinity of a service that nothing claims any more.
    pub(in crate::reconcile) fn abandon(
        &mut self,
        id: ServiceId,
        port: &MirroredPort,
        now: Duration,
        transaction: &mut Transaction,
    ) {
        for row in port.rows.rows() {
            self.rows.retire(row, now + GRACE, &mut transaction.after);
        }
        for range in port.ranges() {
            self.lines.retire(range, now + GRACE);
        }
        self.sources.set(id, &[], &mut transaction.before, &mut transaction.after);
        if port.plan.affinity.is_some() {
            transaction.forgotten.insert(id);
        }
    }

    /// Changes a port to what its plan says; there is room for all of it.
    fn replace(
        &mut self,
        id: ServiceId,
        port: &mut MirroredPort,
        plan: &PortPlan,
        (cluster, local): (Option<Set>, Option<Set>),
        due: Duration,
        transaction: &mut Transaction,
    ) {
        let old_ranges = port.ranges();
        let wanted = MirroredPort::wanted_rows(plan, id);
        for (endpoint, backend) in &wanted {
            if let Some(row) = port.rows.get(endpoint) {
                // Bits that come are set before the switch, bits that go are cleared after it.
                let both = self.rows.get(row).flags | backend.flags;
                self.rows.set_flags(row, both, &mut transaction.before);
                self.rows.set_flags(row, backend.flags, &mut transaction.after);
            } else {
                let row = self.rows.take(*backend, &mut transaction.before);
                port.rows.insert(*endpoint, row);
            }
        }
        if let Some(set) = cluster {
            port.cluster = port.fill(set, &members(plan, |endpoint| endpoint.cluster), transaction);
        }
        if let Some(set) = local {
            port.local = if set == port.cluster.set && set.members > 0 {
                port.cluster.clone()
            } else {
                port.fill(set, &members(plan, |endpoint| endpoint.local), transaction)
            };
        }
        // Maglev slots changed: a run that takes over continues with the newest generation.
        if cluster.is_some() || local.is_some() {
            port.generation = port.generation.wrapping_add(1);
        }
        // Packets may still read old rows and ranges until the grace period is over.
        for row in port.rows.keep(|endpoint| wanted.contains_key(endpoint)) {
            self.rows.retire(row, due, &mut transaction.after);
        }
        for range in old_ranges.difference(&port.ranges()) {
            self.lines.retire(*range, due);
        }
        self.sources.set(id, &plan.sources, &mut transaction.before, &mut transaction.after);
    }
}

impl MirroredPort {
    /// Returns the row of each endpoint.
    fn wanted_rows(plan: &PortPlan, id: ServiceId) -> BTreeMap<Endpoint, Backend> {
        plan.endpoints.iter().map(|endpoint| (at(endpoint), row(endpoint, id))).collect()
    }

    /// Makes a port without entries.
    fn empty(plan: &PortPlan) -> Self {
        Self {
            plan: PortPlan { frontends: Vec::new(), endpoints: Vec::new(), ..plan.clone() },
            rows: RowsByEndpoint::default(),
            cluster: Members::default(),
            local: Members::default(),
            generation: 0,
        }
    }

    const fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.generation == 0
    }

    fn is_shared(&self) -> bool {
        self.local.set == self.cluster.set && self.local.set.members > 0
    }

    /// Adds the operation that writes the lines of a set. Returns the set with its rows.
    fn fill(&self, set: Set, endpoints: &[Endpoint], transaction: &mut Transaction) -> Members {
        let id = |endpoint: &Endpoint| self.rows.get(endpoint).unwrap_or(0);
        let members: Vec<(Endpoint, BackendId)> =
            endpoints.iter().map(|endpoint| (*endpoint, id(endpoint))).collect();
        if !members.is_empty() {
            let lines = selection::lines(&members);
            transaction.before.push(Op::WriteLines { line: set.line, lines });
        }
        let mut ids: Vec<BackendId> = members.into_iter().map(|(_, id)| id).collect();
        ids.shrink_to_fit();
        Members { set, ids }
    }
}
