//! Maps, the mirror over them, and the expected content.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lb_common::addr::{Endpoint, Ip, Port};
use lb_common::service::{Flags, Frontend, Service};

use super::super::frontends::key;
use super::super::{Change, GRACE, Limits, Op, Reconciler};
use super::maps::{Maps, Seen};
use crate::plan::{EndpointPlan, FrontendKind, PortKey, PortPlan, ServiceName};

/// Maps, the mirror over them, and what should be in them.
pub(super) struct World {
    pub(super) maps: Maps,
    pub(super) reconciler: Reconciler,
    pub(super) wanted: BTreeMap<ServiceName, Vec<PortPlan>>,
    pub(super) now: Duration,
    /// Entries that a packet may still hold, and their backends.
    pub(super) in_hand: Vec<(Duration, Service, Seen)>,
}

impl World {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            maps: Maps::new(limits),
            reconciler: Reconciler::new(limits),
            wanted: BTreeMap::new(),
            now: Duration::from_secs(100),
            in_hand: Vec::new(),
        }
    }

    /// Applies operations one by one. After each, every frontend leads to the old set or to the new one.
    pub(super) fn apply(&mut self, ops: &[Op]) {
        let mut after = self.maps.clone();
        for op in ops {
            after.apply(op);
        }
        let before = self.maps.clone();
        let frontends: BTreeSet<Frontend> =
            before.services.keys().chain(after.services.keys()).copied().collect();
        for op in ops {
            for service in self.maps.services.values() {
                self.in_hand.push((self.now, *service, self.maps.see(service)));
            }
            self.maps.apply(op);
            self.maps.check_settings();
            for frontend in &frontends {
                let seen = self.maps.look_up(frontend);
                let fine = [before.look_up(frontend), after.look_up(frontend)].contains(&seen);
                assert!(fine, "{frontend:?} leads to neither set after {op:?}");
            }
        }
        let is_moved = |(frontend, service): (&Frontend, &Service)| {
            let now = after.services.get(frontend);
            !service.flags.has(Flags::ADDRESS) && now.is_none_or(|now| now.id != service.id)
        };
        if before.services.iter().any(is_moved) {
            let settings = &self.maps.settings;
            assert_ne!(
                before.settings.services.frontends_epoch, settings.services.frontends_epoch,
                "flows must look again"
            );
        }
        self.in_hand.retain(|(since, _, _)| *since + GRACE > self.now);
        self.in_hand.dedup();
        for (_, service, seen) in &self.in_hand {
            assert_eq!(self.maps.see(service), *seen, "a packet under way lost its set");
        }
    }

    pub(super) fn plan(&mut self, changes: Vec<Change>) {
        for Change { service, ports } in &changes {
            drop(self.wanted.insert(service.clone(), ports.clone()));
        }
        let ops = self.reconciler.plan(self.now, changes.clone());
        self.apply(&ops);
        assert_eq!(self.reconciler.plan(self.now, changes), [], "equal plans are no work");
    }

    pub(super) fn everything(&self) -> Vec<Change> {
        let change = |(service, ports): (&ServiceName, &Vec<PortPlan>)| Change {
            service: service.clone(),
            ports: ports.clone(),
        };
        self.wanted.iter().map(change).collect()
    }

    /// Starts a new agent over the same maps. It waits for the packets that were under way when the old one ended.
    pub(super) fn restart(&mut self, limits: Limits) {
        self.in_hand.clear();
        self.reconciler = Reconciler::adopt(limits, self.maps.actual(), self.now);
        let changes = self.everything();
        self.plan(changes);
        let ops = self.reconciler.synced(self.now);
        self.apply(&ops);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        let ops = self.reconciler.tick(self.now);
        self.apply(&ops);
    }

    /// Checks the maps against the plans: each frontend belongs to the plan whose `ClusterIP` it is, else to the oldest
    /// plan with endpoints that claims it, else to the oldest one.
    pub(super) fn check(&self) {
        let plans: Vec<&PortPlan> = self.wanted.values().flatten().collect();
        let mut expected: BTreeMap<Frontend, &PortPlan> = BTreeMap::new();
        for plan in &plans {
            for frontend in &plan.frontends {
                let at = key(frontend, plan.key.protocol);
                let place = expected.entry(at).or_insert(plan);
                *place = std::cmp::min_by_key(place, plan, |plan| {
                    (!has_cluster_ip(plan, at), !plan.anywhere, &plan.age, &plan.key)
                });
            }
        }
        for (frontend, plan) in &expected {
            let seen = self.maps.look_up(frontend).expect("a frontend is served");
            assert_eq!(seen.cluster, endpoints(plan, |endpoint| endpoint.cluster));
            assert_eq!(seen.local, endpoints(plan, |endpoint| endpoint.local));
            assert_eq!(seen.affinity, plan.affinity.unwrap_or(0));
        }
        for (frontend, service) in &self.maps.services {
            let flags = [Flags::ADDRESS, Flags::DRAINING];
            let stands = flags.iter().any(|flag| service.flags.has(*flag));
            assert!(stands || expected.contains_key(frontend), "{frontend:?} is not expected");
        }
    }

    pub(super) fn ids(&self) -> BTreeMap<PortKey, u32> {
        self.reconciler.names().map(|(id, key)| (key.clone(), id)).collect()
    }
}

fn has_cluster_ip(plan: &PortPlan, at: Frontend) -> bool {
    let own = plan.frontends.iter().filter(|plan| plan.kind == FrontendKind::ClusterIp);
    own.map(|own| key(own, plan.key.protocol)).any(|own| own == at)
}

fn endpoints(plan: &PortPlan, is: fn(&EndpointPlan) -> bool) -> Vec<Endpoint> {
    let members = plan.endpoints.iter().filter(|endpoint| is(endpoint));
    let at = |endpoint: &EndpointPlan| {
        let port = Port::new(endpoint.port);
        Endpoint::new(Ip::from(endpoint.ip), port)
    };
    members.map(at).collect::<BTreeSet<_>>().into_iter().collect()
}
