//! Takes over the maps of an earlier run. They are the only record of it, and are checked before use.
//!
//! Their entries become *orphans*, one for each service id. A plan with the `ClusterIP` of an orphan takes it over with
//! its id, its rows (and thus their epochs) and its sets, as far as they are sound.

use std::collections::BTreeMap;
use std::time::Duration;

use lb_common::addr::Endpoint;
use lb_common::config::Settings;
use lb_common::service::{
    Backend, BackendId, Flags, Frontend, Line, Service, ServiceId, Set, Source,
};

use super::capacity::{Capacity, Limits};
use super::frontends::{FrontendClaims, key};
use super::names::Names;
use super::port::{Members, MirroredPort};
use super::ports::MirroredPorts;
use super::refused::Refused;
use super::rows::Rows;
use super::rows_by_endpoint::RowsByEndpoint;
use super::slot_ranges::{Range, SlotRanges};
use super::sources::Sources;
use super::{Reconciler, Transaction, kept, selection};
use crate::plan::{FrontendKind, PortKey, PortPlan, ServiceName};

/// The content of the maps.
#[derive(Clone, Debug, Default)]
pub struct Actual {
    pub services: Vec<(Frontend, Service)>,
    /// `BACKENDS` from row 0 to the last row that was ever used.
    pub backends: Vec<Backend>,
    /// `MAGLEV` from line 0 to the last line in use.
    pub lines: Vec<Line>,
    /// `SOURCE_RANGES`: prefix length in bits (the service included), and prefix.
    pub sources: Vec<(u32, Source)>,
    /// The slot of `SETTINGS` in use.
    pub settings: Settings,
}

impl Actual {
    /// Returns how many lines of `MAGLEV` the services use, from the first one.
    pub fn lines_in_use(services: &[(Frontend, Service)]) -> u32 {
        let sets = services.iter().flat_map(|(_, service)| [service.cluster, service.local]);
        sets.map(|set| set.line.saturating_add(set.lines())).max().unwrap_or(0)
    }

    fn members(&self, set: Set) -> Option<(Vec<BackendId>, &[Line])> {
        let from = self.lines.get(set.line as usize..)?;
        let lines = from.get(..set.lines() as usize)?;
        Some((selection::members(set, lines), lines))
    }

    /// Returns the rows of a set if it is what the agent would have written for this service; `None` if it is damaged.
    pub(crate) fn sound_members(&self, id: ServiceId, set: Set) -> Option<Vec<BackendId>> {
        self.sound(id, set).map(|members| members.ids)
    }

    /// Returns a set with its rows if it is what the agent would have written for this service.
    fn sound(&self, id: ServiceId, set: Set) -> Option<Members> {
        if set != selection::shape(set.line, set.members) {
            return None;
        }
        let (ids, lines) = self.members(set)?;
        let endpoint = |row: &BackendId| {
            let backend = self.backends.get(*row as usize).filter(|row| row.service == id)?;
            Some((Endpoint::new(backend.ip, backend.port), *row))
        };
        let members: Vec<(Endpoint, BackendId)> =
            ids.iter().map(endpoint).collect::<Option<_>>()?;
        // The lines are recomputed and compared as a whole: an interrupted run may have written only a part of the
        // lines.
        (selection::lines(&members) == lines).then_some(Members { set, ids })
    }
}

impl Reconciler {
    /// Makes a mirror of maps that an earlier run filled. No packet that was under way when that run ended may be under
    /// way any more: entries in their grace period then count as free.
    pub fn adopt(limits: Limits, actual: Actual, now: Duration) -> Self {
        let mut orphans = orphans(&actual);
        let mut owned = BTreeMap::new();
        // Sets that a plan may take over get their lines first, so a stray set that overlaps one of them is dropped.
        own_sets(&mut orphans, &mut owned);
        let stray_sets = stray_sets(&actual, &mut owned);
        let stray_rows = give_rows(&actual, &mut orphans);
        let ranges = owned.into_keys().collect();
        let sources = Sources::new(actual.sources.iter().copied());
        // A service may have source ranges and no other entry left; they too must be freed if no plan claims them.
        for id in sources.services() {
            orphans.entry(id).or_insert_with(MirroredPort::orphan);
        }
        // A new Service must not get a number that any entry still has.
        let services = actual.services.iter().map(|(_, service)| service.id);
        let highest = services.chain(orphans.keys().copied()).max().unwrap_or(0);
        let kept = kept::of(actual.services.iter().map(|(frontend, service)| (frontend, service)));
        let mut reconciler = Self {
            settings: actual.settings,
            names: Names::after(highest),
            ports: MirroredPorts::after(orphans),
            refused: Refused::default(),
            frontends: FrontendClaims::new(
                actual.services.into_iter().collect(),
                &actual.settings,
                now,
            ),
            capacity: Capacity {
                limits,
                rows: Rows::new(limits.backends, actual.backends),
                lines: SlotRanges::new(limits.lines, &ranges),
                sources,
            },
            kept,
        };
        reconciler.keep_strays(stray_rows, stray_sets);
        reconciler
    }

    /// Returns the id that an earlier run gave to the service of this plan.
    pub(super) fn match_orphan(&self, plan: &PortPlan) -> Option<ServiceId> {
        // A ClusterIP belongs to one Service; other addresses can pass from one to another.
        let own = plan.frontends.iter().filter(|plan| plan.kind == FrontendKind::ClusterIp);
        let entry = own.map(|own| key(own, plan.key.protocol));
        let service = entry.filter_map(|frontend| self.frontends.get(&frontend));
        let mine = |service: &&Service| {
            !service.flags.has(Flags::DRAINING) && !service.flags.has(Flags::EXTERNAL)
        };
        service.filter(mine).map(|service| service.id).find(|id| self.ports.has_orphan(*id))
    }

    /// Keeps rows and sets without a service as orphans, so that they are freed with the orphans that no plan claims.
    fn keep_strays(&mut self, rows: Vec<BackendId>, sets: Vec<Set>) {
        let row = |row: BackendId| {
            let backend = self.capacity.rows.get(row);
            let mut port = MirroredPort::orphan();
            let endpoint = Endpoint::new(backend.ip, backend.port);
            port.rows.insert(endpoint, row);
            port
        };
        let set = |set| MirroredPort {
            cluster: Members { set, ids: Vec::new() },
            ..MirroredPort::orphan()
        };
        let ports: Vec<MirroredPort> =
            rows.into_iter().map(row).chain(sets.into_iter().map(set)).collect();
        for port in ports {
            self.ports.add_orphan(self.names.take(), port);
        }
    }

    /// Abandons the orphans that no plan has claimed.
    pub(super) fn abandon_orphans(&mut self, now: Duration, transaction: &mut Transaction) {
        for (id, orphan) in self.ports.take_orphans() {
            self.capacity.abandon(id, &orphan, now, transaction);
        }
    }
}

impl MirroredPort {
    /// Makes an orphan without entries.
    fn orphan() -> Self {
        Self {
            plan: PortPlan {
                key: PortKey::first(&ServiceName::default()),
                age: (0, String::new()),
                frontends: Vec::new(),
                affinity: None,
                sources: Vec::new(),
                endpoints: Vec::new(),
                anywhere: false,
            },
            rows: RowsByEndpoint::default(),
            cluster: Members::default(),
            local: Members::default(),
            generation: 0,
        }
    }
}

/// Returns an orphan for each service id, with the sets of its newest entry.
fn orphans(actual: &Actual) -> BTreeMap<ServiceId, MirroredPort> {
    let mut newest: BTreeMap<ServiceId, &Service> = BTreeMap::new();
    let is_live = |service: &&Service| {
        !service.flags.has(Flags::DRAINING) && !service.flags.has(Flags::ADDRESS)
    };
    for service in actual.services.iter().map(|(_, service)| service).filter(is_live) {
        let place = newest.entry(service.id).or_insert(service);
        // Generations wrap round, so the signed difference tells which is newer.
        if service.generation.wrapping_sub(place.generation).cast_signed() > 0 {
            *place = service;
        }
    }
    let orphan = |(id, service): (ServiceId, &Service)| {
        let cluster = actual.sound(id, service.cluster).unwrap_or_default();
        let local = actual.sound(id, service.local).unwrap_or_default();
        let mut port = MirroredPort {
            generation: service.generation,
            cluster,
            local,
            ..MirroredPort::orphan()
        };
        port.plan.affinity = (service.affinity != 0).then_some(service.affinity);
        (id, port)
    };
    newest.into_iter().map(orphan).collect()
}

/// Ranges of lines in use, with their sets.
type Owned = BTreeMap<Range, Set>;

/// Enters a set, unless it is empty or its lines overlap those of another set.
fn own(owned: &mut Owned, set: Set) -> bool {
    let Some(range) = (Members { set, ids: Vec::new() }).range() else {
        return false;
    };
    // The sets are ordered and do not overlap, so only both neighbours can touch a new one.
    let before = owned.range(..range).next_back().map(|(before, _)| before);
    let after = owned.range(range..).next().map(|(after, _)| after);
    let is_free = before.is_none_or(|before| before.line + before.lines <= range.line)
        && after.is_none_or(|after| range.line + range.lines <= after.line);
    is_free && owned.insert(range, set).is_none()
}

/// Enters the sets of orphans. A set whose lines overlap those of another is dropped, and will be built again.
fn own_sets(orphans: &mut BTreeMap<ServiceId, MirroredPort>, owned: &mut Owned) {
    for port in orphans.values_mut() {
        // Sets with the same members are stored once.
        let is_shared = port.cluster.set == port.local.set;
        if !own(owned, port.cluster.set) {
            port.cluster = Members::default();
        }
        if is_shared {
            port.local = port.cluster.clone();
        } else if !own(owned, port.local.set) {
            port.local = Members::default();
        }
    }
}

/// Returns the sets that an entry still refers to although its service has newer ones: an earlier run ended between two
/// writes.
fn stray_sets(actual: &Actual, owned: &mut Owned) -> Vec<Set> {
    let sets = actual.services.iter().flat_map(|(_, service)| [service.cluster, service.local]);
    sets.filter(|set| own(owned, *set)).collect()
}

/// Assigns each row to the orphan of its service. If two rows have the same endpoint, the one in a set is kept.
fn give_rows(actual: &Actual, orphans: &mut BTreeMap<ServiceId, MirroredPort>) -> Vec<BackendId> {
    let mut strays = Vec::new();
    for (id, row) in (0_u32..).zip(&actual.backends).skip(1).filter(|(_, row)| row.service != 0) {
        let port = orphans.entry(row.service).or_insert_with(MirroredPort::orphan);
        let endpoint = Endpoint::new(row.ip, row.port);
        // An interrupted run can leave two rows for one endpoint. Flows may use either, so neither is freed now.
        if let Some(other) = port.rows.insert(endpoint, id) {
            let in_set = |row| port.cluster.ids.contains(&row) || port.local.ids.contains(&row);
            let stray = if in_set(other) { id } else { other };
            if stray == id {
                port.rows.insert(endpoint, other);
            }
            strays.push(stray);
        }
    }
    strays
}
