//! From plans to map writes, as a pure function: the mirror of the maps, and the operations that change them.
//!
//! A change is written beside what is in use and becomes visible by one write for each frontend, so a packet sees
//! either the old set of a service or the new one. Rows of the old set are reused only after [`GRACE`]. This module
//! knows no map, no kernel and no Kubernetes: operations are data, and time is an argument.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::{NodeSettings, Prefix, Settings};
use lb_common::service::{Frontend, ServiceId};

use crate::plan::{PortKey, PortPlan, ServiceName};

mod actual;
mod capacity;
mod conflict;
mod draining;
mod frontends;
mod kept;
mod names;
mod op;
mod port;
mod ports;
mod ranges;
mod refused;
mod rows;
mod rows_by_endpoint;
mod selection;
mod slot_ranges;
mod sources;
#[cfg(test)]
mod tests;

pub use actual::Actual;
use capacity::Capacity;
pub use capacity::{FullMap, Limits, Usage};
pub use conflict::Conflict;
use frontends::FrontendClaims;
use names::Names;
pub use op::Op;
use port::{MirroredPort, Placement};
use ports::MirroredPorts;
use refused::Refused;
pub(crate) use selection::lines_of;

/// Time for which entries that a packet may have looked up are kept.
///
/// It is much longer than any packet spends in a program. Where the caller has waited for the programs under way, the
/// time may count as passed.
pub const GRACE: Duration = Duration::from_secs(1);

/// The desired state of one Service; without ports if the Service is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub service: ServiceName,
    /// Ports in every family of the Service.
    pub ports: Vec<PortPlan>,
}

impl Change {
    /// Returns the creation time and UID of the Service; `None`, which sorts first, if the Service is gone.
    pub fn age(&self) -> Option<&(i64, String)> {
        self.ports.iter().map(|plan| &plan.age).min()
    }
}

/// The mirror of the maps, with the claims of services on their entries.
#[derive(Debug)]
pub struct Reconciler {
    settings: Settings,
    names: Names,
    ports: MirroredPorts,
    refused: Refused,
    frontends: FrontendClaims,
    capacity: Capacity,
    /// `ClusterIP` frontends that are left to a listening process of this node.
    kept: BTreeSet<Frontend>,
}

/// Operations being collected: those before the visible switch, the frontends to switch, and those after it.
#[derive(Debug, Default)]
struct Transaction {
    before: Vec<Op>,
    dirty: BTreeSet<Frontend>,
    after: Vec<Op>,
    /// Services whose clients are removed from `AFFINITY` once no packet uses them.
    forgotten: BTreeSet<ServiceId>,
}

impl Reconciler {
    /// Makes a mirror of empty maps.
    pub fn new(limits: Limits) -> Self {
        Self::adopt(limits, Actual::default(), Duration::ZERO)
    }

    /// Takes over the settings that do not depend on services: addresses, source ports, modes.
    pub fn set_node(&mut self, node: &NodeSettings) -> Vec<Op> {
        let is_own = |ip: &Ip| node.may_be_own(ip);
        // A prefix that the endpoints contradict must not be used by the programs.
        let confirmed =
            |pods| if self.capacity.rows.confirm(&pods, is_own) { pods } else { Prefix::default() };
        let node = NodeSettings { pods: node.pods.map(confirmed), ..*node };
        let mut ops = Vec::new();
        // Every packet reads the settings, so they are written only when they change.
        if node != self.settings.node {
            self.settings.node = node;
            ops.push(Op::PutSettings(Box::new(self.settings)));
        }
        ops
    }

    /// Counts a frontend that changed its Service later than planned, because the map had refused the change.
    pub fn count_removal(&mut self) -> Vec<Op> {
        let mut ops = Vec::new();
        self.frontends.ranges.count_removal();
        self.frontends.update(&mut self.settings, &mut ops);
        ops
    }

    /// Takes over the prefixes of all `ServiceCIDR`s; empty if they are not known.
    pub fn set_service_cidrs(&mut self, cidrs: &[IpNet]) -> Vec<Op> {
        let mut ops = Vec::new();
        self.frontends.ranges.set_cidrs(cidrs);
        self.frontends.update(&mut self.settings, &mut ops);
        ops
    }

    /// Returns the operations that change the maps to what the changed Services need.
    pub fn plan(&mut self, now: Duration, changes: Vec<Change>) -> Vec<Op> {
        let mut transaction = Transaction::default();
        let mut wanted = Vec::new();
        for Change { service, ports } in changes {
            let keep: BTreeSet<&PortKey> = ports.iter().map(|plan| &plan.key).collect();
            let gone = self.names.of(&service).into_iter().filter(|key| !keep.contains(key));
            // Ports of all Services are removed before any plan is placed: what they free counts as room to come.
            gone.for_each(|key| self.remove(&key, now, &mut transaction));
            self.refused.forget(&service, &keep);
            wanted.extend(ports);
        }
        // If room runs out, the oldest Services have it.
        wanted.sort_by(|left, right| left.age.cmp(&right.age));
        for plan in wanted {
            self.put(plan, now, &mut transaction);
        }
        self.finish(now, transaction)
    }

    /// Ends the first round after a start: ports that no plan has claimed are abandoned.
    pub fn synced(&mut self, now: Duration) -> Vec<Op> {
        let mut transaction = Transaction::default();
        self.abandon_orphans(now, &mut transaction);
        // Every entry is judged again, because those of an earlier run that no plan claims must drain or go.
        transaction.dirty.extend(self.frontends.written().keys().copied());
        self.finish(now, transaction)
    }

    /// Frees rows and ranges whose grace period is over, and retries refused ports if that made room.
    ///
    /// Call it about once a second while [`Reconciler::is_waiting`], and as soon as a grace period has passed while
    /// there are [`Reconciler::delayed`] ports.
    pub fn tick(&mut self, now: Duration) -> Vec<Op> {
        let mut ops = Vec::new();
        self.refused.record(self.capacity.release(now, &mut ops));
        ops.extend(self.retry(now));
        ops
    }

    /// Reports whether rows or ranges wait to become free, or refused ports wait to be retried.
    pub fn is_waiting(&self) -> bool {
        self.capacity.is_waiting() || self.refused.are_due()
    }

    /// Reports whether a plan of a service port is programmed; of a refused one, that is an earlier plan.
    pub fn is_programmed(&self, key: &PortKey) -> bool {
        self.names.get(key).is_some()
    }

    /// Returns the programmed service ports with their ids.
    pub fn names(&self) -> impl Iterator<Item = (ServiceId, &PortKey)> {
        self.ports.iter().map(|(id, port)| (id, &port.plan.key))
    }

    /// Returns the service port of an id.
    pub fn key(&self, id: ServiceId) -> Option<&PortKey> {
        self.ports.get(id).map(|port| &port.plan.key)
    }

    /// Returns the capacity of the maps.
    pub const fn limits(&self) -> Limits {
        self.capacity.limits
    }

    /// Returns the networks of frontends that are not at addresses of this node: `ServiceCIDR`s, and single addresses
    /// outside them.
    pub fn networks(&self, is_own: impl Fn(&Ip) -> bool) -> BTreeSet<IpNet> {
        let ranges = &self.frontends.ranges;
        let single = |frontend: &Frontend| {
            let ip = frontend.ip;
            // NodePorts are at addresses of the node, which need no route.
            let is_single = ip != ip.any_of_family() && !ip.is_loopback() && !ranges.is_given(&ip);
            (is_single && !is_own(&ip)).then(|| IpNet::from(IpAddr::from(ip)))
        };
        let singles = self.frontends.written().keys().filter_map(single);
        ranges.given().chain(singles).collect()
    }

    /// Returns the networks of all `ClusterIP`s.
    pub fn cluster_networks(&self) -> BTreeSet<IpNet> {
        self.frontends.ranges.of_cluster_ips()
    }

    /// Returns a number that changes whenever [`Reconciler::names`] changes.
    pub const fn naming(&self) -> u64 {
        self.names.changes()
    }

    /// Returns the service ports that got their id since the last call.
    pub fn take_named(&mut self) -> Vec<(ServiceId, PortKey)> {
        let named = self.names.take_new().into_iter();
        named.filter_map(|id| Some((id, self.key(id)?.clone()))).collect()
    }

    /// Returns those of the addresses that belong to backends.
    pub fn backends_among(&self, addresses: &BTreeSet<Ip>) -> BTreeSet<Ip> {
        self.capacity.rows.live_among(addresses)
    }

    /// Returns the number of entries in use, by map.
    pub fn usage(&self) -> Usage {
        self.capacity.usage(self.frontends.written().len())
    }

    /// Orders the operations of a transaction: new entries, the visible switch, removals of old entries.
    fn finish(&mut self, now: Duration, transaction: Transaction) -> Vec<Op> {
        let Transaction { before: mut ops, dirty, after, forgotten } = transaction;
        let entries = self.frontends.written().len();
        let (ports, kept) = (&self.ports, &self.kept);
        // In kube-proxy the last write of a claimant with endpoints wins, in random order; here the Service whose
        // ClusterIP it is does, else the oldest claimant with endpoints (contract 1.6).
        let winner = |frontends: &FrontendClaims, frontend: Frontend| {
            let claimants =
                frontends.claimants(frontend).filter_map(|id| Some((id, ports.get(id)?)));
            // A single claimant needs no rank.
            let winner = claimants.min_by(|(_, left), (_, right)| {
                left.claim_rank(frontend).cmp(&right.claim_rank(frontend))
            });
            let service = winner.and_then(|(id, port)| port.service(id, frontend));
            let service = service.or_else(|| frontends.unclaimed(&frontend))?;
            Some(kept::marked(kept, frontend, service))
        };
        self.frontends.write_winners(&dirty, now, &mut self.settings, winner, &mut ops);
        ops.extend(after);
        self.frontends.update(&mut self.settings, &mut ops);
        // Clients are removed last: as long as a frontend still has affinity, a packet may record its client again.
        if !forgotten.is_empty() {
            ops.push(Op::ForgetClients { services: forgotten });
        }
        self.refused.record(self.frontends.written().len() < entries);
        ops
    }
}
