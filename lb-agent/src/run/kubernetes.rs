//! Reports to the cluster: health checks of Services, Events, and kube-proxy's metrics.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use lb_common::service::ServiceId;
use tracing::{info, warn};

use super::checks::Checks;
use crate::health_check::{ListenAddresses, Where};
use crate::kube_events::{EventContent, Events};
use crate::metrics::kube_proxy::KubeProxy;
use crate::plan::{Family, PortKey, ServiceName};
use crate::reconcile::Reconciler;
use crate::snapshot::{Finding, NodeSpec, ObjectKind};
use crate::tracker::Tracker;
use crate::translate::Translated;
use crate::words;

/// Largest number of Services that are logged at a time.
const NAMED: usize = 20;

/// Everything that is reported.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) checks: Checks,
    pub(super) events: Events,
    pub(super) metrics: KubeProxy,
    /// Service ports that were reported as refused.
    refused: BTreeSet<PortKey>,
    /// Service ports that were reported as having lost a frontend.
    losers: BTreeSet<PortKey>,
    /// Faults of the Node object that were reported.
    node: Box<[Finding]>,
    /// A sync that was not reported yet, because a write holds up the queue: its duration, and whether it is the first.
    pub(super) sync_due: Option<(Duration, bool)>,
}

impl Reporter {
    /// Makes a reporter that has reported nothing yet.
    pub(super) fn new(checks: Checks, events: Events, metrics: KubeProxy) -> Self {
        Self {
            checks,
            events,
            metrics,
            refused: BTreeSet::new(),
            losers: BTreeSet::new(),
            node: Box::default(),
            sync_due: None,
        }
    }

    /// Takes in the Node object, and logs its new faults.
    pub(super) fn node(&mut self, node: Option<&NodeSpec>) {
        let problems = node.map(|node| node.problems.clone()).unwrap_or_default();
        for finding in problems.iter().filter(|finding| !self.node.contains(finding)) {
            warn!(%finding, "Node has a problem");
        }
        self.node = problems;
    }

    /// Takes in the plans of Services that changed.
    pub(super) fn taken(&mut self, tracker: &Tracker, taken: &[(ServiceName, Option<Translated>)]) {
        self.checks.take(taken);
        for (service, translated) in taken {
            let Some(translated) = translated else { continue };
            let uid = tracker.uid(service).unwrap_or_default();
            for finding in &translated.findings {
                let (reason, action) = ("ServiceNotFullyServed", "Translate");
                self.events.warn(service, uid, reason, action, finding.to_string());
            }
        }
    }

    /// Reports that the plans are programmed, and that this took `took`. `is_full` is true for the first time.
    pub(super) fn programmed(&mut self, tracker: &mut Tracker, took: Duration, is_full: bool) {
        self.sync_due = None;
        self.metrics.synced(took, is_full);
        self.metrics.programmed(&tracker.triggers());
        self.metrics.no_local(tracker.no_local());
        self.changes(tracker);
    }

    /// Reports a sync, which took `took`, of changes that altered no plan: kube-proxy ends every change with one. It is
    /// reported once the maps have all operations (`is_done`), and returns whether that is now.
    pub(super) fn unchanged(
        &mut self,
        tracker: &mut Tracker,
        has_changes: bool,
        is_done: bool,
        took: Duration,
    ) -> bool {
        self.sync_due = self.sync_due.or_else(|| has_changes.then_some((took, false)));
        let Some((took, is_full)) = self.sync_due.filter(|_| is_done) else { return false };
        self.programmed(tracker, took, is_full);
        true
    }

    /// Updates the numbers of changed objects.
    pub(super) fn changes(&self, tracker: &Tracker) {
        self.metrics.changes(tracker.totals(), tracker.pending());
    }

    /// Sets the addresses for health checks. For families where `all` is true, the listeners use any address.
    pub(super) fn addresses(&mut self, own: &[IpAddr], all: [bool; 2]) {
        let place = |family: Family, is_all: bool| {
            let own = own.iter().copied().filter(|ip| Family::of(*ip) == family);
            // A link-local address cannot be bound without the scope of its interface.
            let own: BTreeSet<IpAddr> = own.filter(|ip| !is_link_local(*ip)).collect();
            if is_all { Where::Everywhere } else { Where::On(own) }
        };
        let [v4, v6] = all;
        let (v4, v6) = (place(Family::V4, v4), place(Family::V6, v6));
        self.checks.listeners.set_addresses(ListenAddresses { v4, v6 });
    }

    /// Retries listeners and reports their failures, once a second.
    pub(super) fn tick(&mut self, tracker: &Tracker) {
        self.checks.listeners.retry();
        for failure in self.checks.listeners.failures() {
            let (reason, action) = ("FailedToStartServiceHealthcheck", "Listen");
            let text = format!("cannot listen on {}: {}", failure.address, failure.reason);
            let uid = tracker.uid(&failure.service).unwrap_or_default();
            self.events.warn(&failure.service, uid, reason, action, text);
        }
    }

    /// Returns the problem of health check listeners for operators.
    pub(super) fn problem(&self) -> Option<String> {
        self.checks.listeners.problem()
    }

    /// Reports an object that could not be decoded: on the Service itself, else on the Node.
    fn unread(&self, tracker: &Tracker, finding: &Finding) {
        let (reason, action) = UNREAD;
        let object = &finding.object;
        let is_service = object.kind == ObjectKind::Service.name();
        let service = is_service.then(|| ServiceName {
            namespace: object.namespace.clone(),
            name: object.name.clone(),
        });
        let uid = service.as_ref().and_then(|service| tracker.uid(service)).unwrap_or_default();
        let (uid, text) = (uid.to_owned(), finding.to_string());
        self.events.record(EventContent { service, uid, is_warning: true, reason, action, text });
    }

    /// Reports Services that are served only in part.
    pub(super) fn shortcomings(
        &mut self,
        tracker: &Tracker,
        reconciler: &Reconciler,
        unwritten: Vec<(ServiceId, String)>,
        of_source: &[Finding],
    ) {
        for finding in of_source {
            self.unread(tracker, finding);
        }
        self.lost_frontends(tracker, reconciler);
        self.refused_ports(tracker, reconciler);
        for (id, why) in unwritten {
            let Some(key) = reconciler.key(id) else { continue };
            let (port, family) = (&key.port, key.family.name());
            let text = format!("port {port:?} ({family}): latest change is not in the maps: {why}");
            let (reason, action) = ("ServiceNotWritten", "Program");
            let uid = tracker.uid(&key.service).unwrap_or_default();
            self.events.warn(&key.service, uid, reason, action, text);
        }
    }

    /// Reports Services whose frontend another Service has.
    fn lost_frontends(&mut self, tracker: &Tracker, reconciler: &Reconciler) {
        let uid = |service: &ServiceName| tracker.uid(service).unwrap_or_default();
        let mut losers = BTreeSet::new();
        for conflict in reconciler.conflicts() {
            for loser in &conflict.losers {
                let (winner, port) = (&conflict.winner.service, conflict.frontend.port.get());
                // The log names a loser once. Events are queued each time; their sender limits them.
                let is_new = losers.insert(loser.clone()) && !self.losers.contains(loser);
                if is_new && losers.len() <= NAMED {
                    let (loser, winner) = (loser.to_string(), conflict.winner.to_string());
                    let frontend = words::frontend(&conflict.frontend);
                    warn!(
                        loser,
                        winner,
                        frontend,
                        "two Services claim one frontend; the one with the ClusterIP has it, else the oldest with endpoints"
                    );
                }
                let text = format!(
                    "port {port} of one of its addresses belongs to {winner}, by its ClusterIP or as the \
                     oldest with endpoints"
                );
                let (reason, action) = ("FrontendTaken", "Program");
                self.events.warn(&loser.service, uid(&loser.service), reason, action, text);
            }
        }
        // The set is replaced, so that a conflict that ends and returns is logged again.
        self.losers = losers;
    }

    /// Reports ports of Services that are not served because a map is full.
    fn refused_ports(&mut self, tracker: &Tracker, reconciler: &Reconciler) {
        let uid = |service: &ServiceName| tracker.uid(service).unwrap_or_default();
        let (mut refused, mut count) = (BTreeSet::new(), 0_usize);
        for (key, full) in reconciler.refused() {
            let (service, map) = (key.to_string(), full.name());
            if !self.refused.contains(key) {
                count += 1;
                // The number of log lines is limited: a full map can refuse thousands of ports.
                if count <= NAMED {
                    warn!(service, map, "Service port not served: map is full");
                }
            }
            refused.insert(key.clone());
            let text = format!(
                "port {:?} ({}) is not fully served: map {map} is full and older Services take \
                 precedence; raise the agent's memory limit, or the map with --map-size {map}=N",
                key.port,
                key.family.name()
            );
            let (reason, action) = ("ServiceRefused", "Program");
            self.events.warn(&key.service, uid(&key.service), reason, action, text);
        }
        if count > NAMED {
            warn!(more = count - NAMED, "more Service ports are not served; see `lb-agent status`");
        }
        for key in self.refused.difference(&refused).take(NAMED) {
            info!(service = key.to_string(), "Service port is served again");
        }
        self.refused = refused;
    }
}

/// Reason and action of an Event about an object that could not be decoded.
const UNREAD: (&str, &str) = ("ObjectNotRead", "Decode");

const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use prometheus_client::registry::Registry;
    use serde_json::json;

    use super::*;
    use crate::health::Health;
    use crate::health_check::HealthChecks;
    use crate::snapshot::fixtures::{here, slice, web};
    use crate::snapshot::{Event, SliceSpec};

    fn observed(metrics: &KubeProxy, line: &str) -> Option<String> {
        let (mut registry, mut text) = (Registry::default(), String::new());
        metrics.register(&mut registry);
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("metrics");
        text.lines().find_map(|found| found.strip_prefix(line)).map(str::to_owned)
    }

    #[test]
    fn change_that_alters_no_plan_is_a_sync_of_its_own() {
        let checks = Checks::new(HealthChecks::new(Health::new(Duration::ZERO)));
        let mut reporter = Reporter::new(checks, Events::default(), KubeProxy::default());
        let mut tracker = Tracker::new(here());
        for kind in [ObjectKind::Service, ObjectKind::Slice, ObjectKind::Node] {
            tracker.apply(Event::ListBegan(kind));
            tracker.apply(Event::Synced(kind));
        }
        let endpoints = |words: &[&str], triggered| {
            Event::SliceApplied(Box::new(SliceSpec { triggered, ..slice("web-1", words) }))
        };
        let spec = web(json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }));
        tracker.apply(Event::ServiceApplied(Box::new(spec)));
        tracker.apply(endpoints(&["10.1.0.1"], None));
        assert_eq!(tracker.take().len(), 1);
        reporter.programmed(&mut tracker, Duration::ZERO, true);
        let triggered = Timestamp::now() + SignedDuration::from_secs(1);
        tracker.apply(endpoints(&["10.1.0.1", "10.1.0.2 unready"], Some(triggered)));
        assert!(tracker.dirty_since().is_some() && tracker.take().is_empty());
        let label = "_count{ip_family=\"IPv4\"} ";
        let syncs = format!("kubeproxy_sync_partial_proxy_rules_duration_seconds{label}");
        let changes = format!("kubeproxy_network_programming_duration_seconds{label}");
        let mut turn = |has_changes, is_done| {
            let is_now = reporter.unchanged(&mut tracker, has_changes, is_done, Duration::ZERO);
            let counts = [&syncs, &changes].map(|line| observed(&reporter.metrics, line));
            (is_now, counts.map(|count| count.unwrap_or_else(|| "0".to_owned())))
        };
        let (none, one) = (["0", "0"].map(str::to_owned), ["1", "1"].map(str::to_owned));
        assert_eq!(turn(true, false), (false, none), "an operation still waits");
        assert_eq!(turn(false, true), (true, one.clone()));
        assert_eq!(turn(false, true), (false, one), "once");
    }
}
