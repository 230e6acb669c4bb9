//! What the loop shows to the cluster beside packets: health checks of Services, Events, kube-proxy's metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use lb_common::addr::Ip;
use lb_common::config::address::NODE_PORTS;
use lb_common::service::ServiceId;
use tracing::{info, warn};

use super::devices::address;
use super::name;
use crate::health_check::{Addresses, HealthChecks, Where};
use crate::kube_events::Events;
use crate::metrics::kube_proxy::KubeProxy;
use crate::plan::{Family, PortKey, ServiceName};
use crate::program::Programmer;
use crate::show::words;
use crate::snapshot::{Finding, NodeSpec};
use crate::tracker::Tracker;
use crate::translate::Translated;

/// Services that the log names at a time.
const NAMED: usize = 20;

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) checks: HealthChecks,
    pub(super) events: Events,
    pub(super) metrics: KubeProxy,
    /// Service ports of which it was said that they are refused.
    pub(super) refused: BTreeSet<PortKey>,
    /// Service ports of which it was said that others have a frontend of theirs.
    pub(super) losers: BTreeSet<PortKey>,
    /// What was said to be wrong with our Node.
    pub(super) node: Box<[Finding]>,
}

impl Shown {
    /// Our Node is another, or not there.
    pub(super) fn node(&mut self, node: Option<&NodeSpec>) {
        let problems = node.map(|node| node.problems.clone()).unwrap_or_default();
        for finding in problems.iter().filter(|finding| !self.node.contains(finding)) {
            warn!(%finding, "part of the Node is not used");
        }
        self.node = problems;
    }

    /// What Services ask for now.
    pub(super) fn taken(&mut self, tracker: &Tracker, taken: &[(ServiceName, Option<Translated>)]) {
        for (service, translated) in taken {
            self.checks.set(service, translated.as_ref().and_then(|translated| translated.health));
            let Some(translated) = translated else { continue };
            let uid = tracker.uid(service).unwrap_or_default();
            for finding in &translated.findings {
                let reason = ("ServiceNotFullyServed", "Translate");
                self.events.warn(service, uid, reason, finding.to_string());
            }
        }
    }

    /// All of that is programmed; it took so long.
    pub(super) fn programmed(&self, tracker: &mut Tracker, took: Duration, is_full: bool) {
        self.metrics.synced(took, is_full);
        self.metrics.programmed(&tracker.triggers());
        self.metrics.no_local(tracker.no_local());
        self.changes(tracker);
    }

    /// Numbers of changed objects.
    pub(super) fn changes(&self, tracker: &Tracker) {
        self.metrics.changes(tracker.totals(), tracker.pending());
    }

    /// `NodePorts` are served on these addresses; `all` says in which families on any.
    pub(super) fn addresses(&mut self, own: &BTreeMap<Ip, u32>, all: [bool; 2]) {
        let accepted = own.iter().filter(|(_, bits)| *bits & NODE_PORTS != 0);
        let accepted: Vec<IpAddr> = accepted.filter_map(|(ip, _)| address(*ip)).collect();
        let place = |family: Family, is_all: bool| {
            let own = accepted.iter().copied().filter(|ip| Family::of(*ip) == family);
            // An address of one link cannot be bound without naming the link.
            let own: BTreeSet<IpAddr> = own.filter(|ip| !is_link_local(*ip)).collect();
            if is_all { Where::Everywhere } else { Where::On(own) }
        };
        let [v4, v6] = all;
        let (v4, v6) = (place(Family::V4, v4), place(Family::V6, v6));
        self.checks.set_addresses(Addresses { v4, v6 });
    }

    /// Once a second.
    pub(super) fn tick(&mut self, tracker: &Tracker, is_fresh: bool) {
        self.checks.set_healthy(is_fresh);
        self.checks.retry();
        for failure in self.checks.failures() {
            let reason = ("FailedToStartServiceHealthcheck", "Listen");
            let text = format!("cannot listen on {}: {}", failure.address, failure.reason);
            let uid = tracker.uid(&failure.service).unwrap_or_default();
            self.events.warn(&failure.service, uid, reason, text);
        }
    }

    /// Now and then: who is served only in part.
    pub(super) fn shortcomings(
        &mut self,
        tracker: &Tracker,
        programmer: &Programmer,
        unwritten: Vec<(ServiceId, String)>,
    ) {
        let uid = |service: &ServiceName| tracker.uid(service).unwrap_or_default();
        let mut losers = BTreeSet::new();
        for conflict in programmer.conflicts() {
            for loser in &conflict.losers {
                let (winner, port) = (&conflict.winner.service, conflict.frontend.port.get());
                let is_new = losers.insert(loser.clone()) && !self.losers.contains(loser);
                if is_new && losers.len() <= NAMED {
                    let (loser, winner) = (name(loser), name(&conflict.winner));
                    let frontend = words::frontend(&conflict.frontend);
                    warn!(
                        loser,
                        winner,
                        frontend,
                        "two Services ask for one address and port: the older has it; give the other its own"
                    );
                }
                let text = format!(
                    "port {port} of one of its addresses is served for {winner}, which is older"
                );
                let reason = ("FrontendTaken", "Program");
                self.events.warn(&loser.service, uid(&loser.service), reason, text);
            }
        }
        self.losers = losers;
        let (mut refused, mut told) = (BTreeSet::new(), 0_usize);
        for (key, refusal) in programmer.refused() {
            let (service, map) = (name(key), refusal.map());
            if !self.refused.contains(key) {
                told += 1;
                if told <= NAMED {
                    warn!(service, map, "service port is refused: the map is full");
                }
            }
            let _: bool = refused.insert(key.clone());
            let text = format!(
                "port {:?} ({}) is not served as it should be: the map {map} is full and older \
                 Services go first; raise it with --map-size {map}=N",
                key.port,
                key.family.name()
            );
            let reason = ("ServiceRefused", "Program");
            self.events.warn(&key.service, uid(&key.service), reason, text);
        }
        if told > NAMED {
            warn!(more = told - NAMED, "more service ports are refused; status names them all");
        }
        for key in self.refused.difference(&refused).take(NAMED) {
            info!(service = name(key), "service port is not refused any more");
        }
        self.refused = refused;
        for (id, why) in unwritten {
            let Some(key) = programmer.key(id) else { continue };
            let text = format!("port {:?} ({}) is not served: {why}", key.port, key.family.name());
            let reason = ("ServiceNotWritten", "Program");
            self.events.warn(&key.service, uid(&key.service), reason, text);
        }
    }
}

const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
