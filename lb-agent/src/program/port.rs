//! One service port in the book: its rows, its two sets, and how a new plan replaces the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lb_common::addr::{Endpoint, Port as WirePort};
use lb_common::service::{Backend, BackendId, Flags, Frontend, Service, ServiceId, Set};

use super::frontends::key;
use super::places::Places;
use super::room::Lack;
use super::{GRACE, Limits, Op, Programmer, Range, Refusal, Stage, selection, wire};
use crate::plan::{EndpointPlan, FrontendKind, FrontendPlan, PortKey, PortPlan, ServiceName};

/// What became of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is programmed.
    Placed,
    /// It waits for room that is coming.
    Waits,
    /// There is no room.
    Refused,
}

/// What is programmed for one service port.
#[derive(Debug)]
pub(super) struct Port {
    /// What was asked.
    pub(super) plan: PortPlan,
    /// Its rows.
    pub(super) rows: Places,
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
    /// Who comes before whom when two ask for one frontend.
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

    /// An address as a row has it, by endpoint.
    fn wanted_rows(plan: &PortPlan, id: ServiceId) -> BTreeMap<Endpoint, Backend> {
        plan.endpoints.iter().map(|endpoint| (at(endpoint), row(endpoint, id))).collect()
    }
}

impl Programmer {
    /// Puts a plan in place of what its port has now; without room the port stays as it is and is refused.
    pub(super) fn put(&mut self, plan: PortPlan, now: Duration, stage: &mut Stage) -> Outcome {
        let known = self.ids.get(&plan.key).copied();
        if known.and_then(|id| self.ports.get(&id)).is_some_and(|port| port.plan == plan) {
            return Outcome::Placed;
        }
        let id = known.or_else(|| self.match_orphan(&plan)).unwrap_or(self.next_id);
        if let Err(lack) = self.place(id, &plan, now, stage) {
            let waits = self.make_room(&plan, lack, now, stage);
            drop(self.refused.insert(plan.key.clone(), (lack.refusal, plan)));
            return if waits { Outcome::Waits } else { Outcome::Refused };
        }
        if plan.age > self.youngest {
            self.youngest.clone_from(&plan.age);
        }
        if id == self.next_id {
            self.next_id += 1;
        }
        if known.is_none() {
            let _: Option<ServiceId> = self.ids.insert(plan.key.clone(), id);
            self.naming += 1;
        }
        self.claim(id, lean(plan), stage);
        Outcome::Placed
    }

    /// Ends a port.
    pub(super) fn remove(&mut self, key: &PortKey, now: Duration, stage: &mut Stage) {
        let Some(id) = self.ids.remove(key) else {
            return;
        };
        let Some(port) = self.ports.remove(&id) else {
            return;
        };
        self.naming += 1;
        for (frontend, kind) in claims(&port.plan) {
            self.frontends.release(frontend, kind, id, &mut stage.dirty);
        }
        self.abandon(id, &port, now, stage);
    }

    /// Ends the rows, sets and sources of a service that nothing claims any more.
    pub(super) fn abandon(&mut self, id: ServiceId, port: &Port, now: Duration, stage: &mut Stage) {
        for row in port.rows.rows() {
            self.rows.retire(row, now + GRACE, &mut stage.after);
        }
        for range in port.ranges() {
            self.lines.retire(range, now + GRACE);
        }
        self.sources.set(id, &[], &mut stage.before, &mut stage.after);
    }

    /// Checks the room, then makes rows, sets and sources of a plan beside the old ones.
    fn place(
        &mut self,
        id: ServiceId,
        plan: &PortPlan,
        now: Duration,
        stage: &mut Stage,
    ) -> Result<(), Lack> {
        let known = self.ports.remove(&id);
        let known = known.or_else(|| self.orphans.remove(&id).map(Box::new));
        let mut port = known.unwrap_or_else(|| Box::new(Port::empty(plan)));
        let placed = self.check(id, plan, &port).and_then(|()| self.sets(&port, plan));
        if let Ok(sets) = placed {
            self.replace((id, &mut *port), plan, (sets, now + GRACE), stage);
        }
        let orphaned = placed.is_err() && !self.ids.contains_key(&plan.key);
        if orphaned && !port.is_empty() {
            drop(self.orphans.insert(id, *port));
        } else if !orphaned {
            drop(self.ports.insert(id, port));
        }
        placed.map(|_| ())
    }

    fn check(&self, id: ServiceId, plan: &PortPlan, port: &Port) -> Result<(), Lack> {
        let is_new = !self.ids.contains_key(&plan.key) && port.is_empty();
        let limits = self.limits;
        let enough = |refusal, limit: u32, used: usize, needed: usize, whole| {
            let room = (limit as usize).saturating_sub(used);
            let needed_all = needed + Limits::reserve(limit, is_new);
            let lack = Lack { refusal, needed: needed_all, whole };
            if needed == 0 || room >= needed_all { Ok(()) } else { Err(lack) }
        };
        let frontends = plan.frontends.iter();
        let frontends = frontends.map(|plan_of| (key(plan_of, plan.key.protocol), plan_of.clone()));
        let entries = self.frontends.missing(id, &frontends.collect());
        // Those of a port that leaves stay as tombstones: its leaving gives nothing at once.
        let used = self.frontends.used();
        enough(Refusal::Services, limits.services, used, entries, usize::MAX)?;
        let new = plan.endpoints.iter().filter(|endpoint| port.rows.get(&at(endpoint)).is_none());
        let (used, all) = (limits.backends as usize - self.rows.room(), plan.endpoints.len());
        enough(Refusal::Backends, limits.backends, used, new.count(), all)?;
        let (used, new) = (self.sources.len(), self.sources.missing(id, &plan.sources));
        enough(Refusal::Sources, limits.sources, used, new, plan.sources.len())?;
        let lines = lines(plan) as usize;
        let of_new = if is_new { lines } else { 0 };
        enough(Refusal::Slots, limits.lines, self.lines.used() as usize, of_new, lines)
    }

    /// Lines for the sets that change; the old ones where nothing does.
    fn sets(&mut self, port: &Port, plan: &PortPlan) -> Result<(Option<Set>, Option<Set>), Lack> {
        let member = |is: fn(&EndpointPlan) -> bool| members(plan, is);
        let cluster = member(|endpoint| endpoint.cluster);
        let local = member(|endpoint| endpoint.local);
        let unchanged = |old: &Members, new: &[Endpoint]| {
            let ids = new.iter().map(|endpoint| port.rows.get(endpoint));
            old.ids.iter().copied().map(Some).eq(ids)
        };
        let is_other = !unchanged(&port.cluster, &cluster);
        let whole = lines(plan) as usize;
        let cluster_set = if is_other { Some(self.take(cluster.len(), whole)?) } else { None };
        if unchanged(&port.local, &local) && !(cluster_set.is_some() && port.is_shared()) {
            return Ok((cluster_set, None));
        }
        if local == cluster {
            return Ok((cluster_set, Some(cluster_set.unwrap_or(port.cluster.set))));
        }
        match self.take(local.len(), whole) {
            Ok(set) => Ok((cluster_set, Some(set))),
            Err(lack) => {
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
                let lack = Lack { refusal: Refusal::Slots, needed: lines as usize, whole };
                let range = self.lines.take(lines).ok_or(lack)?;
                Ok(Set { line: range.line, ..set })
            }
        }
    }

    /// Makes a port what its plan says; there is room for all of it.
    fn replace(
        &mut self,
        (id, port): (ServiceId, &mut Port),
        plan: &PortPlan,
        ((cluster, local), due): ((Option<Set>, Option<Set>), Duration),
        stage: &mut Stage,
    ) {
        let old_ranges = port.ranges();
        let wanted = Port::wanted_rows(plan, id);
        for (endpoint, backend) in &wanted {
            if let Some(row) = port.rows.get(endpoint) {
                // Bits that come are set before the switch, bits that go are cleared after it.
                let both = self.rows.get(row).flags | backend.flags;
                self.rows.set_flags(row, both, &mut stage.before);
                self.rows.set_flags(row, backend.flags, &mut stage.after);
            } else {
                let row = self.rows.take(*backend, &mut stage.before);
                let _: Option<BackendId> = port.rows.insert(*endpoint, row);
            }
        }
        if let Some(set) = cluster {
            port.cluster = port.fill(set, &members(plan, |endpoint| endpoint.cluster), stage);
        }
        if let Some(set) = local {
            port.local = if set == port.cluster.set && set.members > 0 {
                port.cluster.clone()
            } else {
                port.fill(set, &members(plan, |endpoint| endpoint.local), stage)
            };
        }
        if cluster.is_some() || local.is_some() {
            port.generation = port.generation.wrapping_add(1);
        }
        for row in port.rows.keep(|endpoint| wanted.contains_key(endpoint)) {
            self.rows.retire(row, due, &mut stage.after);
        }
        for range in old_ranges.difference(&port.ranges()) {
            self.lines.retire(*range, due);
        }
        self.sources.set(id, &plan.sources, &mut stage.before, &mut stage.after);
    }

    /// Claims the frontends of a plan, and gives up those of the one before it.
    fn claim(&mut self, id: ServiceId, plan: PortPlan, stage: &mut Stage) {
        let Some(port) = self.ports.get_mut(&id) else {
            return;
        };
        if port.plan.affinity.is_some() && plan.affinity.is_none() {
            stage.after.push(Op::ForgetClients { service: id });
        }
        let old = claims(&port.plan);
        let new = claims(&plan);
        port.plan = plan;
        for (frontend, kind) in old.difference(&new) {
            self.frontends.release(*frontend, *kind, id, &mut stage.dirty);
        }
        for (frontend, kind) in new {
            self.frontends.claim(frontend, kind, id, &mut stage.dirty);
        }
    }
}

impl Port {
    /// A port that has nothing yet.
    fn empty(plan: &PortPlan) -> Self {
        Self {
            plan: PortPlan { frontends: Vec::new(), endpoints: Vec::new(), ..plan.clone() },
            rows: Places::default(),
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

    /// Writes the lines of a set.
    fn fill(&self, set: Set, endpoints: &[Endpoint], stage: &mut Stage) -> Members {
        let id = |endpoint: &Endpoint| self.rows.get(endpoint).unwrap_or(0);
        let members: Vec<(Endpoint, BackendId)> =
            endpoints.iter().map(|endpoint| (*endpoint, id(endpoint))).collect();
        if !members.is_empty() {
            let lines = selection::lines(&members);
            stage.before.push(Op::WriteLines { line: set.line, lines });
        }
        let mut ids: Vec<BackendId> = members.into_iter().map(|(_, id)| id).collect();
        ids.shrink_to_fit();
        Members { set, ids }
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

/// A plan without spare room: it is kept as long as its service lives.
fn lean(mut plan: PortPlan) -> PortPlan {
    plan.frontends.shrink_to_fit();
    plan.sources.shrink_to_fit();
    plan.endpoints.shrink_to_fit();
    plan
}

/// The members of a set, sorted, so that every node builds the same table.
fn members(plan: &PortPlan, is: fn(&EndpointPlan) -> bool) -> Vec<Endpoint> {
    let members = plan.endpoints.iter().filter(|endpoint| is(endpoint)).map(at);
    members.collect::<BTreeSet<Endpoint>>().into_iter().collect()
}

/// Lines that the sets of a plan take.
fn lines(plan: &PortPlan) -> u32 {
    let cluster = members(plan, |endpoint| endpoint.cluster);
    let local = members(plan, |endpoint| endpoint.local);
    let of = |members: &[Endpoint]| selection::shape(0, members.len() as u32).lines();
    of(&cluster) + if local == cluster { 0 } else { of(&local) }
}

/// The frontends of a plan, each once.
fn claims(plan: &PortPlan) -> BTreeSet<(Frontend, FrontendKind)> {
    let mut first: BTreeMap<Frontend, &FrontendPlan> = BTreeMap::new();
    for frontend in &plan.frontends {
        let place = first.entry(key(frontend, plan.key.protocol)).or_insert(frontend);
        if rank(frontend) < rank(place) {
            *place = frontend;
        }
    }
    first.into_iter().map(|(frontend, plan)| (frontend, plan.kind)).collect()
}

/// Which of two plans for one frontend of one port counts: a `ClusterIP`, else the one that filters sources.
const fn rank(plan: &FrontendPlan) -> (bool, bool, FrontendKind) {
    (!matches!(plan.kind, FrontendKind::ClusterIp), !plan.sources, plan.kind)
}

fn flags(plan: &PortPlan, frontend: &FrontendPlan) -> Flags {
    let kind = match frontend.kind {
        FrontendKind::ClusterIp => Flags(0),
        FrontendKind::ExternalIp | FrontendKind::LoadBalancer => Flags::EXTERNAL,
        FrontendKind::NodePort => Flags::EXTERNAL.with(Flags::NODE_PORT),
    };
    let when = |is: bool, flag: Flags| if is { flag } else { Flags(0) };
    kind.with(when(frontend.local_policy, Flags::LOCAL_POLICY))
        .with(when(frontend.sources && !plan.sources.is_empty(), Flags::SOURCES))
        .with(when(plan.anywhere, Flags::ANYWHERE))
}

const fn at(endpoint: &EndpointPlan) -> Endpoint {
    Endpoint::new(wire(endpoint.ip), WirePort::new(endpoint.port))
}

fn row(endpoint: &EndpointPlan, id: ServiceId) -> Backend {
    let when = |is: bool, flag: u16| if is { flag } else { 0 };
    let at = at(endpoint);
    Backend {
        ip: at.ip,
        port: at.port,
        flags: when(endpoint.on_this_node, Backend::LOCAL)
            | when(endpoint.cluster, Backend::IN_CLUSTER_SET)
            | when(endpoint.local, Backend::IN_LOCAL_SET),
        epoch: 0,
        service: id,
        pad: 0,
    }
}
