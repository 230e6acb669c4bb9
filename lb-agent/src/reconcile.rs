//! From plans to map writes, purely: the mirror of what the maps hold, and the operations that change it.
//!
//! Every change is made beside what is in use and becomes visible by one write per frontend, so a
//! packet sees the old set of a service or the new one. The rows of the old set are given out again only
//! after [`GRACE`]. Knows no map, no kernel and no Kubernetes: operations are data, time is an argument.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::{Prefix, Settings};
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
use capacity::Room;
pub use capacity::{Limits, Refusal, Usage};
pub use conflict::Conflict;
use frontends::Frontends;
use names::Names;
pub use op::Op;
use port::{Outcome, Port};
use ports::Ports;
use refused::Refused;
pub(crate) use selection::lines_of;

/// How long what a packet may have just looked up is kept: far longer than any packet is under way in a program.
pub const GRACE: Duration = Duration::from_secs(1);

/// Everything one Service asks for now; no ports when it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub service: ServiceName,
    /// Its ports in every family.
    pub ports: Vec<PortPlan>,
}

impl Change {
    /// Since when it asks for something; what is gone is older than anything.
    pub fn age(&self) -> Option<&(i64, String)> {
        self.ports.iter().map(|plan| &plan.age).min()
    }
}

/// The mirror of what the maps hold, and of who asked for it.
#[derive(Debug)]
pub struct Reconciler {
    settings: Settings,
    names: Names,
    ports: Ports,
    refused: Refused,
    frontends: Frontends,
    room: Room,
    /// ClusterIPs and ports at which a process of this node listens itself.
    kept: BTreeSet<Frontend>,
}

/// Operations under way: what comes before the visible switch, what is to be switched, what comes after.
#[derive(Debug, Default)]
struct Transaction {
    before: Vec<Op>,
    dirty: BTreeSet<Frontend>,
    after: Vec<Op>,
    /// Services whose clients are forgotten when no packet finds them any more.
    forgotten: BTreeSet<ServiceId>,
}

impl Reconciler {
    /// A mirror over empty maps.
    pub fn new(limits: Limits) -> Self {
        Self::adopt(limits, Actual::default(), Duration::ZERO)
    }

    /// Takes over the settings that do not follow from services (addresses, source ports, modes).
    pub fn set_node(&mut self, node: &Settings) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut settings = *node;
        self.frontends.ranges.fill(&mut settings);
        let is_own = |ip: &Ip| node.may_be_own(ip);
        settings.pods = node.pods.map(|pods| {
            if self.room.rows.confirm(&pods, is_own) { pods } else { Prefix::default() }
        });
        if settings != self.settings {
            self.settings = settings;
            ops.push(Op::PutSettings(Box::new(settings)));
        }
        ops
    }

    /// Takes over the cluster's `ServiceCIDR`s; empty when they are not known.
    pub fn set_service_cidrs(&mut self, cidrs: &[IpNet]) -> Vec<Op> {
        let mut ops = Vec::new();
        self.frontends.ranges.set_cidrs(cidrs);
        self.frontends.update(&mut self.settings, &mut ops);
        ops
    }

    /// The operations that turn what the maps hold into what the changed Services ask for.
    pub fn plan(&mut self, now: Duration, changes: Vec<Change>) -> Vec<Op> {
        let mut transaction = Transaction::default();
        let mut wanted = Vec::new();
        for Change { service, ports } in changes {
            let keep: BTreeSet<&PortKey> = ports.iter().map(|plan| &plan.key).collect();
            let gone = self.names.of(&service).into_iter().filter(|key| !keep.contains(key));
            gone.for_each(|key| self.remove(&key, now, &mut transaction));
            self.refused.forget(&service);
            wanted.extend(ports);
        }
        // Where room ends, the oldest have it.
        wanted.sort_by(|left, right| left.age.cmp(&right.age));
        for plan in wanted {
            self.put(plan, now, &mut transaction);
        }
        self.finish(now, transaction)
    }

    /// Ends the first round after a start: what nobody asked for by now is leaving.
    pub fn synced(&mut self, now: Duration) -> Vec<Op> {
        let mut transaction = Transaction::default();
        self.abandon_orphans(now, &mut transaction);
        transaction.dirty.extend(self.frontends.written().keys().copied());
        self.finish(now, transaction)
    }

    /// Frees what is due, and tries again what was refused if that made room. Call it about once a second
    /// while [`Reconciler::is_waiting`].
    pub fn tick(&mut self, now: Duration) -> Vec<Op> {
        let mut ops = Vec::new();
        self.refused.note(self.room.release(now, &mut ops));
        ops.extend(self.retry(now));
        ops
    }

    /// Whether something becomes free later (rows, lines), or did and somebody waits for it.
    pub fn is_waiting(&self) -> bool {
        self.room.is_waiting() || self.refused.are_due()
    }

    /// The service ports that found no room, and in which map.
    pub fn refused(&self) -> impl Iterator<Item = (&PortKey, Refusal)> {
        self.refused.iter()
    }

    /// The service ports that are programmed.
    pub fn names(&self) -> impl Iterator<Item = (ServiceId, &PortKey)> {
        self.ports.iter().map(|(id, port)| (id, &port.plan.key))
    }

    /// The service port of an identity.
    pub fn key(&self, id: ServiceId) -> Option<&PortKey> {
        self.ports.get(id).map(|port| &port.plan.key)
    }

    /// Room in the maps.
    pub const fn limits(&self) -> Limits {
        self.room.limits
    }

    /// Where frontends are, but for those at addresses of this node: `ServiceCIDR`s, and single addresses beside them.
    pub fn networks(&self, is_own: impl Fn(&Ip) -> bool) -> BTreeSet<IpNet> {
        let ranges = &self.frontends.ranges;
        let single = |frontend: &Frontend| {
            let ip = frontend.ip;
            let is_single = ip != ip.any_of_family() && !ip.is_loopback() && !ranges.is_given(&ip);
            (is_single && !is_own(&ip)).then(|| IpNet::from(IpAddr::from(ip)))
        };
        let singles = self.frontends.written().keys().filter_map(single);
        ranges.given().chain(singles).collect()
    }

    /// The networks that the addresses of `ClusterIP`s are in.
    pub fn cluster_networks(&self) -> BTreeSet<IpNet> {
        self.frontends.ranges.of_cluster_ips()
    }

    /// Counts the changes of [`Reconciler::names`].
    pub const fn naming(&self) -> u64 {
        self.names.changes()
    }

    /// The service ports that got their identity since this was asked last.
    pub fn take_named(&mut self) -> Vec<(ServiceId, PortKey)> {
        let named = self.names.take_new().into_iter();
        named.filter_map(|id| Some((id, self.key(id)?.clone()))).collect()
    }

    /// The addresses of backends among these.
    pub fn backends_among(&self, addresses: &BTreeSet<Ip>) -> BTreeSet<Ip> {
        self.room.rows.live_among(addresses)
    }

    /// Entries in use.
    pub fn usage(&self) -> Usage {
        self.room.usage(self.frontends.written().len())
    }

    /// Joins a transaction: everything new, the visible switch, everything old.
    fn finish(&mut self, now: Duration, transaction: Transaction) -> Vec<Op> {
        let Transaction { before: mut ops, dirty, after, forgotten } = transaction;
        let entries = self.frontends.written().len();
        let (ports, kept) = (&self.ports, &self.kept);
        let winner = |frontends: &Frontends, frontend: Frontend| {
            let claimants =
                frontends.claimants(frontend).filter_map(|id| Some((id, ports.get(id)?)));
            let winner = claimants.min_by_key(|(_, port)| port.seniority());
            let service = winner.and_then(|(id, port)| port.service(id, frontend));
            let service = service.or_else(|| frontends.unclaimed(&frontend))?;
            Some(kept::marked(kept, frontend, service))
        };
        self.frontends.write_winners((&dirty, now), &mut self.settings, winner, &mut ops);
        ops.extend(after);
        self.frontends.update(&mut self.settings, &mut ops);
        if !forgotten.is_empty() {
            ops.push(Op::ForgetClients { services: forgotten });
        }
        self.refused.note(self.frontends.written().len() < entries);
        ops
    }
}
