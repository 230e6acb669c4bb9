//! The entries of `SERVICES`: who asks for which frontend, who has it, and what is written.
//!
//! One frontend that several services ask for goes to the oldest of them; the others wait. An entry
//! nobody asks for any more stays as a tombstone while TCP flows may still use it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lb_common::addr::{Ip, Port as WirePort, Protocol};
use lb_common::config::Settings;
use lb_common::service::{Flags, Frontend, Service, ServiceId, Set};

use super::Op;
use super::ranges::{Ranges, decrement};
use crate::plan::{FrontendKind, FrontendPlan};

/// Claims, tombstones and a mirror of `SERVICES`.
#[derive(Debug, Default)]
pub(super) struct Frontends {
    written: BTreeMap<Frontend, Service>,
    claims: BTreeSet<(Frontend, ServiceId)>,
    /// Claims of each address as a `ClusterIP`.
    addresses: BTreeMap<Ip, u32>,
    /// When each tombstone was set.
    tombstones: BTreeMap<Frontend, Duration>,
    pub(super) ranges: Ranges,
}

impl Frontends {
    /// From what the map holds.
    pub(super) fn new(written: BTreeMap<Frontend, Service>, now: Duration) -> Self {
        let mut ranges = Ranges::default();
        for (frontend, service) in written.iter().filter(|(_, service)| !is_mark(service)) {
            ranges.add(frontend, service);
        }
        let leaving = written.iter().filter(|(_, service)| service.flags.has(Flags::LEAVING));
        let tombstones = leaving.map(|(frontend, _)| (*frontend, now)).collect();
        Self { written, tombstones, ranges, ..Self::default() }
    }

    /// What is written for a frontend.
    pub(super) fn get(&self, frontend: &Frontend) -> Option<&Service> {
        self.written.get(frontend)
    }

    /// Everything written.
    pub(super) const fn written(&self) -> &BTreeMap<Frontend, Service> {
        &self.written
    }

    /// Entries that are gone for new packets, with their service.
    pub(super) fn tombstones(&self) -> impl Iterator<Item = (&Frontend, ServiceId, Duration)> {
        let id = |frontend| self.written.get(frontend).map_or(0, |service| service.id);
        self.tombstones.iter().map(move |(frontend, since)| (frontend, id(frontend), *since))
    }

    /// Entries that the map will have to hold if `plans` are claimed as well.
    pub(super) fn needed(&self, id: ServiceId, plans: &BTreeMap<Frontend, FrontendPlan>) -> usize {
        let new = plans.iter().filter(|(frontend, _)| !self.written.contains_key(frontend));
        let new = new.filter(|(frontend, _)| !self.claims.contains(&(**frontend, id)));
        self.written.len() + new.count() + 1
    }

    /// Claims a frontend for a service. The entries to settle are added to `dirty`.
    pub(super) fn claim(
        &mut self,
        frontend: Frontend,
        kind: FrontendKind,
        id: ServiceId,
        dirty: &mut BTreeSet<Frontend>,
    ) {
        let _: bool = dirty.insert(frontend);
        if self.claims.insert((frontend, id)) && kind == FrontendKind::ClusterIp {
            *self.addresses.entry(frontend.ip).or_default() += 1;
            let _: bool = dirty.insert(Frontend::cluster_address(frontend.ip));
        }
    }

    /// Takes a claim back.
    pub(super) fn release(
        &mut self,
        frontend: Frontend,
        kind: FrontendKind,
        id: ServiceId,
        dirty: &mut BTreeSet<Frontend>,
    ) {
        let _: bool = dirty.insert(frontend);
        if self.claims.remove(&(frontend, id)) && kind == FrontendKind::ClusterIp {
            let _: bool = dirty.insert(Frontend::cluster_address(frontend.ip));
            decrement(&mut self.addresses, &frontend.ip);
        }
    }

    /// The services that ask for a frontend.
    pub(super) fn claimants(&self, frontend: Frontend) -> impl Iterator<Item = ServiceId> {
        self.claims.range((frontend, 0)..=(frontend, ServiceId::MAX)).map(|(_, id)| *id)
    }

    /// Frontends that more than one service asks for.
    pub(super) fn contested(&self) -> BTreeSet<Frontend> {
        let pairs = self.claims.iter().zip(self.claims.iter().skip(1));
        pairs.filter(|((left, _), (right, _))| left == right).map(|((both, _), _)| *both).collect()
    }

    /// What a frontend without a claim becomes: the mark of an address, a tombstone, or nothing.
    fn unclaimed(&self, frontend: &Frontend) -> Option<Service> {
        if *frontend == Frontend::cluster_address(frontend.ip) {
            let mark = Service { flags: Flags::ADDRESS, ..Service::default() };
            return self.addresses.contains_key(&frontend.ip).then_some(mark);
        }
        let service = self.written.get(frontend).filter(|_| frontend.protocol == Protocol::TCP)?;
        let none = Set::default();
        let kind = service.flags.0 & (Flags::EXTERNAL.0 | Flags::NODE_PORT.0);
        let flags = Flags(kind).with(Flags::LEAVING);
        Some(Service { flags, cluster: none, local: none, ..*service })
    }

    /// Writes what the `dirty` entries should be. `winner` gives the value of a claimed frontend.
    ///
    /// The settings grow before the first entry that needs them and shrink after the last.
    pub(super) fn settle(
        &mut self,
        (dirty, now): (&BTreeSet<Frontend>, Duration),
        settings: &mut Settings,
        winner: impl Fn(&Self, Frontend) -> Option<Service>,
        ops: &mut Vec<Op>,
    ) {
        let wanted =
            |frontend: &Frontend| winner(self, *frontend).or_else(|| self.unclaimed(frontend));
        let changes: Vec<(Frontend, Option<Service>)> =
            dirty.iter().map(|frontend| (*frontend, wanted(frontend))).collect();
        let changes: Vec<_> = changes
            .into_iter()
            .filter(|(frontend, service)| self.written.get(frontend) != service.as_ref())
            .collect();
        for (frontend, service) in &changes {
            if let Some(service) = service.as_ref().filter(|service| !is_mark(service)) {
                self.ranges.add(frontend, service);
            }
        }
        self.update(settings, ops);
        self.write(&changes, now, ops);
    }

    /// Services before marks; marks go first when they go.
    fn write(&mut self, changes: &[(Frontend, Option<Service>)], now: Duration, ops: &mut Vec<Op>) {
        let marks = |mark: bool| {
            changes.iter().filter(move |(frontend, _)| (frontend.port == WirePort::NONE) == mark)
        };
        let gone = marks(true).filter(|(_, service)| service.is_none());
        let come = marks(true).filter(|(_, service)| service.is_some());
        for (frontend, service) in gone.chain(marks(false)).chain(come) {
            let old = if let Some(service) = service {
                ops.push(Op::PutService { frontend: *frontend, service: *service });
                self.written.insert(*frontend, *service)
            } else {
                ops.push(Op::RemoveService { frontend: *frontend });
                self.written.remove(frontend)
            };
            if let Some(old) = old.filter(|old| !is_mark(old)) {
                self.ranges.remove(frontend, &old);
            }
            if service.is_some_and(|service| service.flags.has(Flags::LEAVING)) {
                let _: &mut Duration = self.tombstones.entry(*frontend).or_insert(now);
            } else {
                let _: Option<Duration> = self.tombstones.remove(frontend);
            }
        }
    }

    /// Removes tombstones.
    pub(super) fn bury(&mut self, frontends: &[Frontend], ops: &mut Vec<Op>) {
        let changes: Vec<_> = frontends.iter().map(|frontend| (*frontend, None)).collect();
        self.write(&changes, Duration::ZERO, ops);
    }

    /// Brings the settings up to date with the entries.
    pub(super) fn update(&mut self, settings: &mut Settings, ops: &mut Vec<Op>) {
        let mut wanted = *settings;
        self.ranges.fill(&mut wanted);
        if wanted != *settings {
            *settings = wanted;
            ops.push(Op::PutSettings(Box::new(wanted)));
        }
    }
}

const fn is_mark(service: &Service) -> bool {
    service.flags.has(Flags::ADDRESS)
}

/// The key of a planned frontend.
pub(super) const fn key(plan: &FrontendPlan, protocol: Protocol) -> Frontend {
    let ip = super::wire(plan.ip);
    let port = WirePort::new(plan.port);
    match plan.kind {
        FrontendKind::NodePort => Frontend::node_port(ip, port, protocol),
        FrontendKind::ClusterIp | FrontendKind::ExternalIp | FrontendKind::LoadBalancer => {
            Frontend::new(ip, port, protocol)
        }
    }
}
