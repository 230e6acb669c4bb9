//! The metrics that kube-proxy's dashboards and alerts read (contract 7): same names, labels and buckets.
//!
//! Metrics without a meaning here (iptables, nftables, conntrack) are absent. This module stores numbers and measures
//! nothing.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::plan::{Family, TrafficPolicy};
use crate::tracker::{Changes, NoLocal};
use crate::watch::observe::{ObservedRequest, Observer};

/// The label of an address family.
type FamilyLabel = [(&'static str, &'static str); 1];
type Texts<const N: usize> = [(&'static str, String); N];
type Histograms<L> = Labelled<L, Histogram, fn() -> Histogram>;
type Seconds = Gauge<f64, AtomicU64>;

/// All metrics. Clones share their numbers.
#[derive(Clone, Debug)]
pub struct KubeProxy {
    sync: Histograms<FamilyLabel>,
    full: Histograms<FamilyLabel>,
    partial: Histograms<FamilyLabel>,
    queued: Labelled<FamilyLabel, Seconds>,
    synced: Labelled<FamilyLabel, Seconds>,
    programming: Histograms<FamilyLabel>,
    pending: [Gauge; 2],
    totals: [Counter; 2],
    no_local: Labelled<[(&'static str, &'static str); 2], Gauge>,
    requests: Labelled<Texts<3>, Counter>,
    durations: Histograms<Texts<2>>,
}

impl Default for KubeProxy {
    fn default() -> Self {
        Self {
            sync: Labelled::new_with_constructor(sync_histogram),
            full: Labelled::new_with_constructor(sync_histogram),
            partial: Labelled::new_with_constructor(sync_histogram),
            queued: Labelled::default(),
            synced: Labelled::default(),
            programming: Labelled::new_with_constructor(programming_histogram),
            pending: Default::default(),
            totals: Default::default(),
            no_local: Labelled::default(),
            requests: Labelled::default(),
            durations: Labelled::new_with_constructor(request_histogram),
        }
    }
}

const fn ip(family: Family) -> FamilyLabel {
    [("ip_family", family.name())]
}

fn now() -> f64 {
    Timestamp::now().as_duration().as_secs_f64()
}

fn sync_histogram() -> Histogram {
    // kube-proxy has `ExponentialBuckets(0.001, 2, 15)` (pkg/proxy/metrics/metrics.go).
    Histogram::new((0..15).map(|n| 0.001 * f64::from(1 << n)))
}

fn programming_histogram() -> Histogram {
    // kube-proxy merges four ranges of buckets, and `MergeBuckets` (k8s.io/component-base/metrics) puts a 0 before
    // them.
    let steps = [(1..60, 1), (60..120, 5), (120..301, 30)];
    let steps = steps.into_iter().flat_map(|(range, by)| range.step_by(by).map(f64::from));
    Histogram::new([0.0, 0.25, 0.5].into_iter().chain(steps))
}

/// Returns a histogram with the buckets of client-go.
fn request_histogram() -> Histogram {
    Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
}

impl KubeProxy {
    /// Records that a change arrived.
    pub fn queued(&self) {
        for family in Family::ALL {
            self.queued.get_or_create(&ip(family)).set(now());
        }
    }

    /// Records that everything that arrived is programmed, which took `took`; `is_full` for the first sync.
    pub fn synced(&self, took: Duration, is_full: bool) {
        let part = if is_full { &self.full } else { &self.partial };
        for family in Family::ALL {
            let labels = ip(family);
            self.sync.get_or_create(&labels).observe(took.as_secs_f64());
            part.get_or_create(&labels).observe(took.as_secs_f64());
            self.synced.get_or_create(&labels).set(now());
        }
    }

    /// Records the delay of changes with these trigger times, which are programmed now.
    pub fn programmed(&self, triggers: &[(Family, Timestamp)]) {
        let now = Timestamp::now();
        for (family, made) in triggers {
            // The clock of the API server may be ahead.
            let took = now.duration_since(*made).as_secs_f64().max(0.0);
            self.programming.get_or_create(&ip(*family)).observe(took);
        }
    }

    /// Updates the numbers of changed objects.
    pub fn changes(&self, totals: Changes, pending: Changes) {
        let [services, slices] = &self.pending;
        services.set(pending.services.cast_signed());
        slices.set(pending.slices.cast_signed());
        for (counter, total) in self.totals.iter().zip([totals.services, totals.slices]) {
            // The tracker has totals, a counter of the metric library only increments.
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    /// Updates the numbers of service ports without a local endpoint.
    pub fn no_local(&self, counts: &NoLocal) {
        for family in Family::ALL {
            for policy in [TrafficPolicy::Internal, TrafficPolicy::External] {
                let [ip] = ip(family);
                let labels = [ip, ("traffic_policy", policy.name())];
                let count = i64::from(counts.get(family, policy));
                self.no_local.get_or_create(&labels).set(count);
            }
        }
    }

    /// Registers all metrics, with the names that kube-proxy gives them.
    pub fn register(&self, to: &mut Registry) {
        let name = |name: &str| format!("kubeproxy_{name}");
        let rules = |rest: &str| format!("kubeproxy_sync_proxy_rules_{rest}");
        to.register(rules("duration_seconds"), "Seconds to sync the maps", self.sync.clone());
        let full = name("sync_full_proxy_rules_duration_seconds");
        to.register(full, "Seconds to sync the maps in full", self.full.clone());
        let partial = name("sync_partial_proxy_rules_duration_seconds");
        to.register(partial, "Seconds to sync changes to the maps", self.partial.clone());
        let queued = rules("last_queued_timestamp_seconds");
        to.register(queued, "Unix time of the last queued change", self.queued.clone());
        let synced = rules("last_timestamp_seconds");
        to.register(synced, "Unix time of the last completed sync", self.synced.clone());
        let programming = name("network_programming_duration_seconds");
        to.register(
            programming,
            "Seconds from the change of an endpoint until it is programmed",
            self.programming.clone(),
        );
        let [services, slices] = self.pending.clone();
        to.register(rules("service_changes_pending"), "Pending Service changes", services);
        to.register(rules("endpoint_changes_pending"), "Pending EndpointSlice changes", slices);
        let [services, slices] = self.totals.clone();
        to.register(rules("service_changes"), "Changes of Services", services);
        to.register(rules("endpoint_changes"), "Changes of EndpointSlices", slices);
        // The metric is a gauge, as in kube-proxy, although the name ends in `_total`.
        let help = "Service ports with policy Local and endpoints on other nodes only";
        to.register(rules("no_local_endpoints_total"), help, self.no_local.clone());
        to.register("rest_client_requests", "Requests to the API server", self.requests.clone());
        let help = "Seconds until the API server responds";
        to.register("rest_client_request_duration_seconds", help, self.durations.clone());
        // The metric of every Kubernetes component, with the same labels.
        let build = Labelled::<[(&'static str, &'static str); 9], Gauge>::default();
        let version = env!("CARGO_PKG_VERSION");
        let mut parts = version.split('.');
        let labels = [
            ("major", parts.next().unwrap_or_default()),
            ("minor", parts.next().unwrap_or_default()),
            ("git_version", version),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("build_date", ""),
            ("go_version", ""),
            ("compiler", "rustc"),
            ("platform", PLATFORM),
        ];
        build.get_or_create(&labels).set(1);
        to.register("kubernetes_build_info", "Version of the agent", build);
    }
}

/// The platform in Go's notation.
const PLATFORM: &str = if cfg!(target_arch = "x86_64") {
    "linux/amd64"
} else if cfg!(target_arch = "aarch64") {
    "linux/arm64"
} else {
    "linux"
};

impl Observer for KubeProxy {
    fn request(&self, seen: &ObservedRequest<'_>) {
        let (method, host) = (seen.method.to_string(), seen.host.to_owned());
        // The value that client-go has for requests without a response.
        let code = seen.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = [("code", code), ("method", method.clone()), ("host", host.clone())];
        self.requests.get_or_create(&labels).inc();
        let durations = self.durations.get_or_create(&[("verb", method), ("host", host)]);
        durations.observe(seen.took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_types_and_buckets_are_kube_proxys() {
        let metrics = KubeProxy::default();
        metrics.queued();
        metrics.synced(Duration::from_millis(3), true);
        metrics.programmed(&[(Family::V6, Timestamp::now())]);
        metrics.changes(Changes { services: 2, slices: 5 }, Changes::default());
        metrics.no_local(&NoLocal::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram",
            "# TYPE kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.001\",ip_family=\"IPv4\"} 0",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_bucket{le=\"16.384\",ip_family=\"IPv6\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"59.0\",ip_family=\"IPv6\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"300.0\",ip_family=\"IPv6\"} 1",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 5",
            "kubeproxy_sync_proxy_rules_service_changes_pending 0",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"internal\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        let programming = "kubeproxy_network_programming_duration_seconds_bucket{";
        let buckets = text.lines().filter(|line| line.starts_with(programming)).count();
        assert_eq!(buckets, 3 + 59 + 12 + 7 + 1, "and the one without end");
    }

    #[test]
    fn the_platform_is_named_as_go_names_it() {
        let mut registry = Registry::default();
        KubeProxy::default().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = text.lines().find(|line| line.starts_with("kubernetes_build_info{")).unwrap();
        let names = [("x86_64", "linux/amd64"), ("aarch64", "linux/arm64")];
        let name = names.iter().find(|(arch, _)| *arch == std::env::consts::ARCH);
        let name = name.map_or("linux", |(_, name)| *name);
        assert!(line.contains(&format!("platform=\"{name}\"")), "{line}");
    }
}
