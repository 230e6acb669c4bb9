//! The entries of `SERVICES`: which services claim a frontend, which one has it, and what is written.
//!
//! A frontend that several services claim goes to the one whose `ClusterIP` it is, else to the oldest of those with
//! endpoints (`MirroredPort::claim_rank`). An entry that no service claims any more stays as a draining one while TCP
//! or SCTP flows may still use it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lb_common::addr::{Ip, Port, Protocol};
use lb_common::config::Settings;
use lb_common::service::{Flags, Frontend, Service, ServiceId, Set};

use super::Op;
use super::ranges::{Ranges, decrement};
use crate::plan::{FrontendKind, FrontendPlan};

/// The claims of services on frontends, the draining frontends, and a mirror of `SERVICES`.
#[derive(Debug, Default)]
pub(super) struct FrontendClaims {
    written: BTreeMap<Frontend, Service>,
    claims: BTreeSet<(Frontend, ServiceId)>,
    /// Frontends that more than one service claims.
    contested: BTreeSet<Frontend>,
    /// Entries that are claimed, or markers that are needed, and not written yet.
    unwritten: BTreeSet<Frontend>,
    /// Number of claims on each address as a `ClusterIP`.
    addresses: BTreeMap<Ip, u32>,
    /// Time when each frontend began to drain.
    draining: BTreeMap<Frontend, Duration>,
    pub(super) ranges: Ranges,
}

impl FrontendClaims {
    /// Makes the mirror from the content of the map, and the settings.
    pub(super) fn new(
        written: BTreeMap<Frontend, Service>,
        settings: &Settings,
        now: Duration,
    ) -> Self {
        let mut ranges = Ranges::default();
        ranges.count_from(settings.services.frontends_epoch);
        for (frontend, service) in written.iter().filter(|(_, service)| !is_marker(service)) {
            ranges.add(frontend, service);
        }
        // The time of an earlier run is not known, so their grace period starts again.
        let draining = written.iter().filter(|(_, service)| service.flags.has(Flags::DRAINING));
        let draining = draining.map(|(frontend, _)| (*frontend, now)).collect();
        Self { written, draining, ranges, ..Self::default() }
    }

    /// Returns the written entry of a frontend.
    pub(super) fn get(&self, frontend: &Frontend) -> Option<&Service> {
        self.written.get(frontend)
    }

    /// Returns all written entries.
    pub(super) const fn written(&self) -> &BTreeMap<Frontend, Service> {
        &self.written
    }

    /// Returns the draining frontends, with the time when each began to drain.
    pub(super) fn draining(&self) -> impl Iterator<Item = (&Frontend, Duration)> {
        self.draining.iter().map(|(frontend, since)| (frontend, *since))
    }

    /// Returns the number of entries that the map must hold: written and claimed ones.
    pub(super) fn used(&self) -> usize {
        self.written.len() + self.unwritten.len()
    }

    /// Returns how many entries `plans` would add.
    pub(super) fn missing(&self, id: ServiceId, plans: &BTreeMap<Frontend, FrontendPlan>) -> usize {
        let is_there = |it: &Frontend| self.written.contains_key(it) || self.unwritten.contains(it);
        let is_mine = |it: &Frontend| self.claims.contains(&(*it, id));
        let new = plans.keys().filter(|it| !is_there(it) && !is_mine(it)).count();
        let own = plans.iter().filter(|(_, plan)| plan.kind == FrontendKind::ClusterIp);
        let markers: BTreeSet<Frontend> =
            own.map(|(frontend, _)| Frontend::cluster_address(frontend.ip)).collect();
        new + markers.iter().filter(|marker| !is_there(marker)).count()
    }

    /// Reports whether an entry will be removed because no service claims it.
    pub(super) fn is_going(&self, frontend: &Frontend) -> bool {
        self.written.contains_key(frontend)
            && self.claimants(*frontend).next().is_none()
            && self.unclaimed(frontend).is_none()
    }

    /// Claims a frontend for a service. Entries to be written are added to `dirty`.
    pub(super) fn claim(
        &mut self,
        frontend: Frontend,
        kind: FrontendKind,
        id: ServiceId,
        dirty: &mut BTreeSet<Frontend>,
    ) {
        self.touch(frontend, dirty);
        let is_new = self.claims.insert((frontend, id));
        self.count(frontend);
        // The marker of the address, which refuses its other ports, stays while a port claims the address.
        if is_new && kind == FrontendKind::ClusterIp {
            *self.addresses.entry(frontend.ip).or_default() += 1;
            self.touch(Frontend::cluster_address(frontend.ip), dirty);
        }
    }

    fn touch(&mut self, frontend: Frontend, dirty: &mut BTreeSet<Frontend>) {
        dirty.insert(frontend);
        if !self.written.contains_key(&frontend) {
            self.unwritten.insert(frontend);
        }
    }

    /// Withdraws a service's claim. Entries to be written are added to `dirty`.
    pub(super) fn release(
        &mut self,
        frontend: Frontend,
        kind: FrontendKind,
        id: ServiceId,
        dirty: &mut BTreeSet<Frontend>,
    ) {
        dirty.insert(frontend);
        let was_there = self.claims.remove(&(frontend, id));
        self.count(frontend);
        // The marker of the address goes with its last port.
        if was_there && kind == FrontendKind::ClusterIp {
            dirty.insert(Frontend::cluster_address(frontend.ip));
            decrement(&mut self.addresses, &frontend.ip);
        }
    }

    /// Returns the services that claim a frontend.
    pub(super) fn claimants(&self, frontend: Frontend) -> impl Iterator<Item = ServiceId> {
        self.claims.range((frontend, 0)..=(frontend, ServiceId::MAX)).map(|(_, id)| *id)
    }

    /// Returns the frontends that more than one service claims.
    pub(super) const fn contested(&self) -> &BTreeSet<Frontend> {
        &self.contested
    }

    fn count(&mut self, frontend: Frontend) {
        if self.claimants(frontend).nth(1).is_some() {
            self.contested.insert(frontend);
        } else {
            self.contested.remove(&frontend);
        }
    }

    /// Returns the entry of a frontend without a claim: the marker of a `ClusterIP`, a draining frontend, or none.
    pub(super) fn unclaimed(&self, frontend: &Frontend) -> Option<Service> {
        if *frontend == Frontend::cluster_address(frontend.ip) {
            let marker = Service { flags: Flags::ADDRESS, ..Service::default() };
            return self.addresses.contains_key(&frontend.ip).then_some(marker);
        }
        // TCP and SCTP flows continue after the removal; datagrams look up their frontend again (contract 5).
        let service = self.written.get(frontend).filter(|_| frontend.protocol != Protocol::UDP)?;
        let none = Set::default();
        // The kind stays, because it decides which range of the settings must cover the entry (`Ranges::add`).
        let kind = service.flags.0 & (Flags::EXTERNAL.0 | Flags::NODE_PORT.0);
        let flags = Flags(kind).with(Flags::DRAINING);
        Some(Service { flags, affinity: 0, cluster: none, local: none, ..*service })
    }

    /// Writes the `dirty` entries, as `winner` returns them.
    ///
    /// The settings grow before the first entry that needs them and shrink after the last one, so a packet never finds
    /// an entry that the settings exclude.
    pub(super) fn write_winners(
        &mut self,
        dirty: &BTreeSet<Frontend>,
        now: Duration,
        settings: &mut Settings,
        winner: impl Fn(&Self, Frontend) -> Option<Service>,
        ops: &mut Vec<Op>,
    ) {
        let changes: Vec<(Frontend, Option<Service>)> =
            dirty.iter().map(|frontend| (*frontend, winner(self, *frontend))).collect();
        let changes: Vec<_> = changes
            .into_iter()
            // An entry that is already as it should be costs no system call.
            .filter(|(frontend, service)| self.written.get(frontend) != service.as_ref())
            .collect();
        for (frontend, service) in &changes {
            if let Some(service) = service.as_ref().filter(|service| !is_marker(service)) {
                self.ranges.add(frontend, service);
            }
        }
        self.update(settings, ops);
        self.write(&changes, now, ops);
        self.unwritten.retain(|frontend| !dirty.contains(frontend));
    }

    /// Writes changes in an order that is safe for packets: a marker of a `ClusterIP` refuses its unknown ports, so it
    /// is written after the services and removed before them.
    fn write(&mut self, changes: &[(Frontend, Option<Service>)], now: Duration, ops: &mut Vec<Op>) {
        let markers = |marker: bool| {
            changes.iter().filter(move |(frontend, _)| (frontend.port == Port::NONE) == marker)
        };
        let gone = markers(true).filter(|(_, service)| service.is_none());
        let come = markers(true).filter(|(_, service)| service.is_some());
        for (frontend, service) in gone.chain(markers(false)).chain(come) {
            let old = if let Some(service) = service {
                ops.push(Op::PutService { frontend: *frontend, service: *service });
                self.written.insert(*frontend, *service)
            } else {
                ops.push(Op::RemoveService { frontend: *frontend });
                self.written.remove(frontend)
            };
            let node_port =
                Frontend::new(frontend.ip.any_of_family(), frontend.port, frontend.protocol);
            let hides = service.is_some_and(|service| service.hides_node_port());
            let hides_now = old.is_none_or(|old| hides && !old.hides_node_port());
            if hides_now && node_port != *frontend && self.written.contains_key(&node_port) {
                // At this address the port belonged to the NodePort.
                self.ranges.count_removal();
            }
            if let Some(old) = old.filter(|old| !is_marker(old)) {
                self.ranges.remove(frontend, &old);
                if service.is_none_or(|service| service.id != old.id) {
                    // The count tells packets that the frontend of their flow may belong to another Service now.
                    self.ranges.count_removal();
                }
            }
            if service.is_some_and(|service| service.flags.has(Flags::DRAINING)) {
                // The first time counts: an entry that is written again keeps its deadline.
                self.draining.entry(*frontend).or_insert(now);
            } else {
                self.draining.remove(frontend);
            }
        }
    }

    /// Removes these draining frontends from the map.
    pub(super) fn remove_drained(&mut self, frontends: &[Frontend], ops: &mut Vec<Op>) {
        let changes: Vec<_> = frontends.iter().map(|frontend| (*frontend, None)).collect();
        // No frontend begins to drain here, so the time does not matter.
        self.write(&changes, Duration::ZERO, ops);
    }

    /// Updates the settings that depend on the entries.
    pub(super) fn update(&mut self, settings: &mut Settings, ops: &mut Vec<Op>) {
        let services = self.ranges.derive();
        if services != settings.services {
            settings.services = services;
            ops.push(Op::PutSettings(Box::new(*settings)));
        }
    }
}

const fn is_marker(service: &Service) -> bool {
    service.flags.has(Flags::ADDRESS)
}

/// Returns the key of a planned frontend.
pub(super) fn key(plan: &FrontendPlan, protocol: Protocol) -> Frontend {
    let ip = Ip::from(plan.ip);
    let port = Port::new(plan.port);
    match plan.kind {
        FrontendKind::NodePort => Frontend::node_port(ip, port, protocol),
        FrontendKind::ClusterIp | FrontendKind::ExternalIp | FrontendKind::LoadBalancer => {
            Frontend::new(ip, port, protocol)
        }
    }
}
