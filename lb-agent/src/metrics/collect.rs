//! The `lb_` metrics, from one reading of the maps.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use lb_common::event::{Event, Hook, Verdict, event_counter, verdict_counter};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::MetricSources;
use crate::datapath::Fault;
use crate::maps::Error;
use crate::node::ChangeSource;
use crate::reconcile::Usage;
use crate::snapshot::{KindView, ObjectKind};

/// One reading of the maps, with the sources.
#[derive(Debug)]
pub(super) struct Snapshot {
    sources: MetricSources,
    counters: Vec<u64>,
    fill: Vec<(&'static str, usize, u32)>,
}

impl Snapshot {
    pub(super) fn take(sources: &MetricSources) -> Result<Self, Error> {
        let usage = sources.numbers.usage();
        let (counters, fill) = (sources.maps.counters()?, sources.maps.fill_given(&usage)?);
        Ok(Self { sources: sources.clone(), counters, fill })
    }

    fn counter(&self, index: u32) -> u64 {
        self.counters.get(index as usize).copied().unwrap_or(0)
    }

    fn packets(&self) -> Vec<([(&'static str, &'static str); 3], u64)> {
        let verdicts = |hook: Hook| {
            Verdict::all().map(move |verdict| {
                let labels = [
                    ("hook", hook.name()),
                    ("verdict", verdict.class()),
                    ("reason", verdict.name()),
                ];
                (labels, verdict_counter(hook, verdict))
            })
        };
        let all = Hook::ALL.iter().flat_map(|hook| verdicts(*hook));
        all.map(|(labels, index)| (labels, self.counter(index))).collect()
    }

    fn drops(&self) -> Vec<([(&'static str, &'static str); 1], u64)> {
        let drops = Verdict::all().filter(|verdict| matches!(verdict, Verdict::Drop(_)));
        let sum = |verdict| {
            let hooks = Hook::ALL.iter().map(|hook| verdict_counter(*hook, verdict));
            hooks.map(|index| self.counter(index)).sum()
        };
        drops.map(|verdict| ([("reason", verdict.name())], sum(verdict))).collect()
    }

    fn events(&self) -> Vec<([(&'static str, &'static str); 1], u64)> {
        let value =
            |event: &Event| ([("event", event.name())], self.counter(event_counter(*event)));
        Event::ALL.iter().map(value).collect()
    }
}

impl Snapshot {
    /// Encodes the counters of the programs, and the fill level of the maps.
    fn encode_data_path(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Packets by hook, verdict and reason";
        counters(to, "lb_datapath_packets", help, &self.packets())?;
        counters(to, "lb_drops", "Packets dropped, by reason", &self.drops())?;
        counters(to, "lb_events", "Events during packet processing, by event", &self.events())?;
        let used: Vec<_> =
            self.fill.iter().map(|(map, used, _)| ([("map", *map)], *used as u64)).collect();
        let capacity: Vec<_> = self
            .fill
            .iter()
            .map(|(map, _, capacity)| ([("map", *map)], u64::from(*capacity)))
            .collect();
        gauges(to, "lb_map_entries", "Entries in a map", &used)?;
        gauges(to, "lb_map_capacity", "Capacity of a map, in entries", &capacity)
    }

    /// Encodes the agent's work on maps and interfaces.
    fn encode_work(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let numbers = &self.sources.numbers;
        let done = [
            ("lb_map_operations", "Successful map writes", &numbers.operations),
            ("lb_map_failures", "Failed map writes; each is retried", &numbers.failures),
            (
                "lb_flows_swept",
                "Protected flow entries removed after their idle timeout",
                &numbers.swept,
            ),
        ];
        for (name, help, number) in done {
            single(to, name, help, load(number))?;
        }
        single(to, "lb_log_lines_lost", "Log lines that could not be written", crate::cli::lost())?;
        let [pods, external] = &numbers.devices;
        let devices = [([("role", "pod")], load(pods)), ([("role", "external")], load(external))];
        gauges(to, "lb_devices", "Interfaces with programs attached, by role", &devices)?;
        let repairs = Fault::ALL.iter().zip(&numbers.repairs);
        let repairs: Vec<_> =
            repairs.map(|(fault, number)| ([("fault", fault.name())], load(number))).collect();
        let help = "Attachments that another program undid and the agent repaired, by fault";
        counters(to, "lb_attachment_repairs", help, &repairs)?;
        let attached = ChangeSource::ALL.iter().zip(&numbers.attached);
        let attached: Vec<_> =
            attached.map(|(source, number)| ([("source", source.name())], load(number))).collect();
        let help = "Interfaces to which programs were attached, by the source that reported them";
        counters(to, "lb_devices_attached", help, &attached)
    }

    /// Encodes the Services that are served, and those that are not.
    fn encode_services(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let numbers = &self.sources.numbers;
        let Usage { backends, .. } = numbers.usage();
        // The source counts its own findings.
        let findings = load(&numbers.findings) + self.sources.view.problems().len() as u64;
        let unwritten = "Map entries that the kernel refused and that are retried";
        let refused = "Service ports not served because a map is full";
        let node_problems = "Problems of interfaces, attachments and settings of the node";
        let now = [
            ("lb_backends", "Backends in use", backends as u64),
            ("lb_unwritten_entries", unwritten, load(&numbers.unwritten)),
            ("lb_refused_service_ports", refused, load(&numbers.refused)),
            ("lb_node_problems", node_problems, load(&numbers.node_problems)),
            ("lb_findings", "Invalid fields of objects and manifest files", findings),
            ("lb_conflicts", "Frontends claimed by several Services", load(&numbers.conflicts)),
        ];
        for (name, help, value) in now {
            let gauge = ConstGauge::new(value);
            gauge.encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let stale: Vec<_> = self.sources.view.kinds().into_iter().map(stale_since).collect();
        let help = "Unix time since which the watch of a resource fails; 0 while it works";
        gauges(to, "lb_source_stale_since_seconds", help, &stale)
    }

    fn encode_health(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let answers: Vec<_> = self.sources.health.answers().into_iter().collect();
        for (name, path) in
            [("kubeproxy_proxy_healthz", "healthz"), ("kubeproxy_proxy_livez", "livez")]
        {
            let of = answers.iter().filter(|((answered, _), _)| *answered == path);
            let of: Vec<_> = of.map(|((_, code), n)| ([("code", code.to_string())], *n)).collect();
            counters(to, name, "Responses of the health server, by code", &of)?;
        }
        Ok(())
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        self.encode_data_path(to)?;
        self.encode_work(to)?;
        self.encode_services(to)?;
        self.encode_health(to)?;
        let build = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
        gauges(to, "lb_build_info", "Version of the agent", &build)
    }
}

fn stale_since((kind, view): (ObjectKind, KindView)) -> ([(&'static str, &'static str); 1], u64) {
    let since = view.stale.map_or(0, |stale| stale.since.as_second().max(0).cast_unsigned());
    ([("resource", kind.resource())], since)
}

fn load(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn counters<L: EncodeLabelSet>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: &[(L, u64)],
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    values.iter().try_for_each(|(labels, value)| {
        ConstCounter::new(*value).encode(family.encode_family(labels)?)
    })
}

fn gauges<L: EncodeLabelSet>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: &[(L, u64)],
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    values.iter().try_for_each(|(labels, value)| {
        ConstGauge::new(*value).encode(family.encode_family(labels)?)
    })
}

fn single(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(to.encode_descriptor(name, help, None, MetricType::Counter)?)
}
