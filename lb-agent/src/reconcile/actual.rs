//! Taking over from an earlier run: the maps are the only record, and they are not trusted blindly.
//!
//! Their entries become *orphans*, one per service identity. A plan that asks for the `ClusterIP` of an orphan takes
//! it over with its identity, its rows (and so their epochs) and its sets, where those are sound.

use std::collections::BTreeMap;
use std::time::Duration;

use lb_common::addr::Endpoint;
use lb_common::config::Settings;
use lb_common::service::{
    Backend, BackendId, Flags, Frontend, Line, Service, ServiceId, Set, Source,
};

use super::capacity::{Limits, Room};
use super::frontends::{Frontends, key};
use super::names::Names;
use super::port::{Members, Port};
use super::ports::Ports;
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
    /// `BACKENDS` from row 0 to the last that was ever used.
    pub backends: Vec<Backend>,
    /// `MAGLEV` from line 0 to the last in use.
    pub lines: Vec<Line>,
    /// `SOURCE_RANGES`: length in bits, and prefix.
    pub sources: Vec<(u32, Source)>,
    /// Element 0 of `SETTINGS`.
    pub settings: Settings,
}

impl Actual {
    /// Lines of `MAGLEV` that the services use: how far to read.
    pub fn lines_in_use(services: &[(Frontend, Service)]) -> u32 {
        let sets = services.iter().flat_map(|(_, service)| [service.cluster, service.local]);
        sets.map(|set| set.line.saturating_add(set.lines())).max().unwrap_or(0)
    }

    fn members(&self, set: Set) -> Option<(Vec<BackendId>, &[Line])> {
        let from = self.lines.get(set.line as usize..)?;
        let lines = from.get(..set.lines() as usize)?;
        Some((selection::members(set, lines), lines))
    }

    /// The rows of a set as the agent would have written it for this service; nothing if it is damaged.
    pub(crate) fn sound_members(&self, id: ServiceId, set: Set) -> Option<Vec<BackendId>> {
        self.sound(id, set).map(|members| members.ids)
    }

    /// The set as the agent would have written it for this service, or nothing.
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
        (selection::lines(&members) == lines).then_some(Members { set, ids })
    }
}

impl Reconciler {
    /// A mirror over maps that an earlier run filled, where no packet is under way any more that was when that run
    /// ended: what it had just given up is free.
    pub fn adopt(limits: Limits, actual: Actual, now: Duration) -> Self {
        let mut orphans = orphans(&actual);
        let mut owned = BTreeMap::new();
        own_sets(&mut orphans, &mut owned);
        let stray_sets = stray_sets(&actual, &mut owned);
        let stray_rows = give_rows(&actual, &mut orphans);
        let ranges = owned.into_keys().collect();
        let sources = Sources::new(actual.sources.iter().copied());
        for id in sources.services() {
            orphans.entry(id).or_insert_with(Port::orphan);
        }
        let services = actual.services.iter().map(|(_, service)| service.id);
        let highest = services.chain(orphans.keys().copied()).max().unwrap_or(0);
        let kept = kept::of(actual.services.iter().map(|(frontend, service)| (frontend, service)));
        let mut reconciler = Self {
            settings: actual.settings,
            names: Names::after(highest),
            ports: Ports::after(orphans),
            refused: Refused::default(),
            frontends: Frontends::new(actual.services.into_iter().collect(), &actual.settings, now),
            room: Room {
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

    /// The identity that an earlier run gave to the service of this plan.
    pub(super) fn match_orphan(&self, plan: &PortPlan) -> Option<ServiceId> {
        let own = plan.frontends.iter().filter(|plan| plan.kind == FrontendKind::ClusterIp);
        let entry = own.map(|own| key(own, plan.key.protocol));
        let service = entry.filter_map(|frontend| self.frontends.get(&frontend));
        let mine = |service: &&Service| {
            !service.flags.has(Flags::LEAVING) && !service.flags.has(Flags::EXTERNAL)
        };
        service.filter(mine).map(|service| service.id).find(|id| self.ports.has_orphan(*id))
    }

    /// Rows and sets that are left over: they go with the orphans nobody asks for.
    fn keep_strays(&mut self, rows: Vec<BackendId>, sets: Vec<Set>) {
        let row = |row: BackendId| {
            let backend = self.room.rows.get(row);
            let mut port = Port::orphan();
            let endpoint = Endpoint::new(backend.ip, backend.port);
            port.rows.insert(endpoint, row);
            port
        };
        let set = |set| Port { cluster: Members { set, ids: Vec::new() }, ..Port::orphan() };
        let ports: Vec<Port> = rows.into_iter().map(row).chain(sets.into_iter().map(set)).collect();
        for port in ports {
            self.ports.add_orphan(self.names.take(), port);
        }
    }

    /// Ends what nobody asked for.
    pub(super) fn abandon_orphans(&mut self, now: Duration, transaction: &mut Transaction) {
        for (id, orphan) in self.ports.take_orphans() {
            self.room.abandon(id, &orphan, now, transaction);
        }
    }
}

impl Port {
    /// The port of a service before somebody asks for it.
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

/// One orphan per identity, with the sets of its newest entry.
fn orphans(actual: &Actual) -> BTreeMap<ServiceId, Port> {
    let mut newest: BTreeMap<ServiceId, &Service> = BTreeMap::new();
    let is_live = |service: &&Service| {
        !service.flags.has(Flags::LEAVING) && !service.flags.has(Flags::ADDRESS)
    };
    for service in actual.services.iter().map(|(_, service)| service).filter(is_live) {
        let place = newest.entry(service.id).or_insert(service);
        if service.generation.wrapping_sub(place.generation).cast_signed() > 0 {
            *place = service;
        }
    }
    let orphan = |(id, service): (ServiceId, &Service)| {
        let cluster = actual.sound(id, service.cluster).unwrap_or_default();
        let local = actual.sound(id, service.local).unwrap_or_default();
        let mut port = Port { generation: service.generation, cluster, local, ..Port::orphan() };
        port.plan.affinity = (service.affinity != 0).then_some(service.affinity);
        (id, port)
    };
    newest.into_iter().map(orphan).collect()
}

/// Lines in use, and by which set.
type Owned = BTreeMap<Range, Set>;

/// Enters a set, unless it is empty or its lines overlap those of another.
fn own(owned: &mut Owned, set: Set) -> bool {
    let Some(range) = (Members { set, ids: Vec::new() }).range() else {
        return false;
    };
    let before = owned.range(..range).next_back().map(|(before, _)| before);
    let after = owned.range(range..).next().map(|(after, _)| after);
    let is_free = before.is_none_or(|before| before.line + before.lines <= range.line)
        && after.is_none_or(|after| range.line + range.lines <= after.line);
    is_free && owned.insert(range, set).is_none()
}

/// Enters the sets of orphans. One whose lines overlap another's is given up: it will be built anew.
fn own_sets(orphans: &mut BTreeMap<ServiceId, Port>, owned: &mut Owned) {
    for port in orphans.values_mut() {
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

/// Sets that some entry still names though its service has newer ones: an earlier run ended between two writes.
fn stray_sets(actual: &Actual, owned: &mut Owned) -> Vec<Set> {
    let sets = actual.services.iter().flat_map(|(_, service)| [service.cluster, service.local]);
    sets.filter(|set| own(owned, *set)).collect()
}

/// Hands each row to the orphan of its service. If two rows have one endpoint, the one in a set is kept.
fn give_rows(actual: &Actual, orphans: &mut BTreeMap<ServiceId, Port>) -> Vec<BackendId> {
    let mut strays = Vec::new();
    for (id, row) in (0_u32..).zip(&actual.backends).skip(1).filter(|(_, row)| row.service != 0) {
        let port = orphans.entry(row.service).or_insert_with(Port::orphan);
        let endpoint = Endpoint::new(row.ip, row.port);
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
