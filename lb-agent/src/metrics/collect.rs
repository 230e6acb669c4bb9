//! The `lb_` metrics out of one look at the maps.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use lb_common::event::{Event, Hook, Verdict, event_counter, verdict_counter};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Sources;
use crate::datapath::Fault;
use crate::maps::Error;
use crate::node::Told;
use crate::program::Usage;
use crate::snapshot::{Kind, KindView};

/// One look.
#[derive(Debug)]
pub(super) struct Snapshot {
    sources: Sources,
    counters: Vec<u64>,
    fill: Vec<(&'static str, usize, u32)>,
}

impl Snapshot {
    pub(super) fn take(sources: &Sources) -> Result<Self, Error> {
        let usage = sources.numbers.usage();
        let (counters, fill) = (sources.maps.counters()?, sources.maps.fill_beside(&usage)?);
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

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        counters(
            to,
            "lb_datapath_packets",
            "Packets by hook, verdict and its reason",
            &self.packets(),
        )?;
        counters(to, "lb_drops", "Packets dropped, by reason", &self.drops())?;
        counters(to, "lb_events", "Things that happened on the way of packets", &self.events())?;
        let used: Vec<_> =
            self.fill.iter().map(|(map, used, _)| ([("map", *map)], *used as u64)).collect();
        let room: Vec<_> =
            self.fill.iter().map(|(map, _, room)| ([("map", *map)], u64::from(*room))).collect();
        gauges(to, "lb_map_entries", "Entries in a map", &used)?;
        gauges(to, "lb_map_capacity", "Entries a map can hold", &room)?;
        let numbers = &self.sources.numbers;
        let [pods, edges] = &numbers.devices;
        let devices = [([("role", "pod")], load(pods)), ([("role", "edge")], load(edges))];
        gauges(to, "lb_devices", "Devices that carry programs", &devices)?;
        single(to, "lb_map_operations", "Map writes of the agent", load(&numbers.operations))?;
        single(to, "lb_map_failures", "Map writes that failed", load(&numbers.failures))?;
        single(to, "lb_flows_swept", "Halves of flows that were swept", load(&numbers.swept))?;
        let help = "Connected UDP sockets that were ended, their backend left";
        single(to, "lb_sockets_ended", help, load(&numbers.ended))?;
        let repairs = Fault::ALL.iter().zip(&numbers.repairs);
        let repairs: Vec<_> =
            repairs.map(|(fault, number)| ([("fault", fault.name())], load(number))).collect();
        let help = "Attachments that somebody else undid, repaired";
        counters(to, "lb_attachment_repairs", help, &repairs)?;
        let attached = Told::ALL.iter().zip(&numbers.attached);
        let attached: Vec<_> =
            attached.map(|(told, number)| ([("told_by", told.name())], load(number))).collect();
        let help = "Devices that got programs, by what told of them";
        counters(to, "lb_devices_attached", help, &attached)?;
        let Usage { backends, .. } = numbers.usage();
        // Those of the source itself are told by who reads it.
        let findings = load(&numbers.findings) + self.sources.view.problems().len() as u64;
        let now = [
            ("lb_backends", "Backends in use", backends as u64),
            ("lb_unwritten_entries", "Entries that a map refused", load(&numbers.unwritten)),
            ("lb_refused_service_ports", "Service ports without room", load(&numbers.refused)),
            ("lb_findings", "Fields of objects and files that cannot be used", findings),
            ("lb_conflicts", "Frontends several services ask for", load(&numbers.conflicts)),
        ];
        for (name, help, value) in now {
            let gauge = ConstGauge::new(value);
            gauge.encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let stale: Vec<_> = self.sources.view.kinds().into_iter().map(stale_since).collect();
        let help = "Since when changes do not reach us, in seconds since 1970; 0 when they do";
        gauges(to, "lb_source_stale_since_seconds", help, &stale)?;
        let answers: Vec<_> = self.sources.health.answers().into_iter().collect();
        for (name, path) in
            [("kubeproxy_proxy_healthz", "healthz"), ("kubeproxy_proxy_livez", "livez")]
        {
            let of = answers.iter().filter(|((answered, _), _)| *answered == path);
            let of: Vec<_> = of.map(|((_, code), n)| ([("code", code.to_string())], *n)).collect();
            counters(to, name, "Answers of the health server by code", &of)?;
        }
        let build = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
        gauges(to, "lb_build_info", "Version of the agent", &build)
    }
}

fn stale_since((kind, view): (Kind, KindView)) -> ([(&'static str, &'static str); 1], u64) {
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
