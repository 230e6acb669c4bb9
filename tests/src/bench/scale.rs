//! What a large cluster costs the agent that `LB_AGENT` names, on generated manifests.
//!
//! Memory, the time from complete lists to programmed maps, and the time from a change to the map it changes.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::Maps;
use lb_common::addr::{Ip, Port, Protocol};
use lb_common::service::Frontend;

use crate::agent::{Agent, Source};
use crate::topology::{Node, Shape, Topology};
use crate::wait::{wait_until, wait_until_ok};

/// Services, and endpoints of each.
pub type Size = (u32, u32);
/// What is measured.
pub const SIZES: [Size; 4] = [(0, 0), (1_000, 3), (10_000, 3), (50_000, 5)];
/// What shows whether it runs.
pub const QUICK: [Size; 2] = [(0, 0), (1_000, 3)];

/// Changes of which the slowest hundredth counts.
const CHANGES: u32 = 400;
/// Services of one file.
const PER_FILE: u32 = 500;
/// Reading 100,000 objects as YAML takes a while; that is not what is measured.
const PATIENCE: Duration = Duration::from_mins(5);
const SECOND: Duration = Duration::from_secs(1);

/// What was measured at one size.
#[derive(Debug)]
struct Figures {
    anonymous: u64,
    highest: u64,
    start: Duration,
    median: Duration,
    slowest: Duration,
}

/// Measures each size, and prints a row for each.
pub fn run(sizes: &[Size], to: &mut impl Write) -> Result<()> {
    writeln!(to, "load {}", fs::read_to_string("/proc/loadavg")?.trim())?;
    writeln!(
        to,
        "| services x endpoints | anonymous memory, MB | peak, MB | lists to programmed, s | change to map, median / p99, ms |"
    )?;
    writeln!(to, "| --- | --- | --- | --- | --- |")?;
    for (services, endpoints) in sizes {
        let Figures { anonymous, highest, start, median, slowest } =
            measure(*services, *endpoints)?;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1_000.0;
        writeln!(
            to,
            "| {services} x {endpoints} | {:.1} | {:.1} | {:.2} | {:.1} / {:.1} |",
            anonymous as f64 / 1e6,
            highest as f64 / 1e6,
            start.as_secs_f64(),
            milliseconds(median),
            milliseconds(slowest),
        )?;
    }
    Ok(())
}

/// A cluster that outgrows its maps while the agent runs: it gets larger ones, and serves everybody.
pub fn grow(to: &mut impl Write) -> Result<()> {
    const BEFORE: u32 = 1_000;
    const AFTER: u32 = 40_000;
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(1).build()?;
    let node = topology.node(0)?;
    let folder = topology.folder("scale")?;
    generate(&folder, 0..BEFORE, 1)?;
    let mut agent = Agent::spawn(node, Source::Manifests(&folder), &[])?;
    wait_until(PATIENCE, "the agent is ready", || agent.wait_ready().ok())?;
    let began = Instant::now();
    generate(&folder, BEFORE..AFTER, 1)?;
    let pins = node.bpf().join(LAYOUT).join("maps");
    wait_until_ok(PATIENCE, "everybody is served out of larger maps", || {
        agent.ensure_running()?;
        let entries = Maps::open(&pins)?.services()?.len();
        ensure!(entries == 2 * AFTER as usize, "{entries} entries of SERVICES");
        Ok(())
    })?;
    writeln!(
        to,
        "From {BEFORE} to {AFTER} services while it runs, SERVICES outgrown: {:.1} s.",
        began.elapsed().as_secs_f64()
    )?;
    agent.stop()
}

fn measure(services: u32, endpoints: u32) -> Result<Figures> {
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(1).build()?;
    let node = topology.node(0)?;
    let folder = topology.folder("scale")?;
    generate(&folder, 0..services, endpoints)?;
    let probe =
        Probe { file: folder.join("probe.yaml"), staged: topology.folder("staged")?.join("probe") };
    probe.write(0)?;
    let mut agent = Agent::spawn(node, Source::Manifests(&folder), &[])?;
    wait_until(PATIENCE, "the agent is ready", || agent.wait_ready().ok())?;
    let start = from_lists_to_ready(node)?;
    let maps = Maps::open(&node.bpf().join(LAYOUT).join("maps"))?;
    let entries = maps.services()?.len() as u32;
    ensure!(entries == 2 * (services + 1), "{entries} entries of SERVICES");
    let mut times: Vec<Duration> =
        (1..=CHANGES).map(|number| probe.change(&maps, number)).collect::<Result<_>>()?;
    times.sort();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    let anonymous = settled(agent.id())?;
    let highest = memory(agent.id(), "VmHWM:")?;
    agent.stop()?;
    Ok(Figures { anonymous, highest, start, median: at(50), slowest: at(99) })
}

/// A service that changes.
struct Probe {
    file: PathBuf,
    staged: PathBuf,
}

const PROBE: Ipv4Addr = Ipv4Addr::new(10, 111, 255, 254);

impl Probe {
    fn write(&self, number: u32) -> Result<()> {
        let text = documents("probe", PROBE, number, 3);
        fs::write(&self.staged, text)?;
        fs::rename(&self.staged, &self.file).context("probe")
    }

    /// From the file's new content to another set in the map.
    fn change(&self, maps: &Maps, number: u32) -> Result<Duration> {
        let frontend = Frontend::new(Ip::v4(PROBE.octets()), Port::new(80), Protocol::TCP);
        let generation = || -> Result<u32> {
            Ok(maps.service(&frontend)?.context("the probe is not there")?.generation)
        };
        let before = generation()?;
        let began = Instant::now();
        self.write(number)?;
        // Without a pause: one would be measured too.
        while generation()? == before {
            ensure!(began.elapsed() < SECOND * 10, "change {number} does not reach the map");
            std::thread::yield_now();
        }
        Ok(began.elapsed())
    }
}

fn generate(folder: &Path, services: Range<u32>, endpoints: u32) -> Result<()> {
    for first in services.clone().step_by(PER_FILE as usize) {
        let mut text = String::new();
        for number in first..services.end.min(first + PER_FILE) {
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number);
            let name = format!("service-{number}");
            text.push_str(&documents(&name, address, number * endpoints, endpoints));
            text.push_str("\n---\n");
        }
        fs::write(folder.join(format!("{first}.yaml")), text)?;
    }
    Ok(())
}

/// A Service and its slice, as an API server would have them where it matters.
fn documents(name: &str, address: Ipv4Addr, first: u32, endpoints: u32) -> String {
    let endpoint = |number: u32| {
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 1)) + first + number);
        let node = (first + number) % 100;
        format!(
            r#"{{"addresses":["{ip}"],"conditions":{{"ready":true,"serving":true,"terminating":false}},"nodeName":"node-{node}"}}"#
        )
    };
    let slice: Vec<String> = (0..endpoints).map(endpoint).collect();
    let slice = slice.join(",");
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"scale"}},"spec":{{"type":"ClusterIP","clusterIP":"{address}","clusterIPs":["{address}"],"ipFamilies":["IPv4"],"ports":[{{"name":"http","protocol":"TCP","port":80,"targetPort":8080}}]}}}}
---
{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"{name}-abcde","namespace":"scale","labels":{{"kubernetes.io/service-name":"{name}"}}}},"addressType":"IPv4","ports":[{{"name":"http","protocol":"TCP","port":8080}}],"endpoints":[{slice}]}}"#
    )
}

/// Its anonymous memory once that stays as it is, in bytes.
fn settled(process: u32) -> Result<u64> {
    let mut before = (Instant::now(), 0);
    wait_until_ok(SECOND * 60, "the memory stays as it is", || {
        let now = memory(process, "RssAnon:")?;
        if now.abs_diff(before.1) > now / 100 {
            before = (Instant::now(), now);
        }
        ensure!(before.0.elapsed() > SECOND * 3, "it was {} bytes", before.1);
        Ok(now)
    })
}

fn memory(process: u32, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1_024)
}

/// From complete lists to everything programmed, by the agent's log.
fn from_lists_to_ready(node: &Node) -> Result<Duration> {
    let log = fs::read_to_string(node.folder().join("lb-agent.log"))?;
    let time = |what: &str| {
        let line = log.lines().find(|line| line.contains(what)).context("no such line")?;
        time_of_day(line).with_context(|| format!("no time in {line:?}"))
    };
    let (lists, ready) = (time("the first lists are complete")?, time("everything is programmed")?);
    // Over midnight.
    let day = Duration::from_hours(24);
    Ok(ready.checked_sub(lists).unwrap_or_else(|| (ready + day).saturating_sub(lists)))
}

/// `2026-11-21T16:20:00.123456Z` without its date.
fn time_of_day(line: &str) -> Option<Duration> {
    let (_, time) = line.split_once('T')?;
    let (time, _) = time.split_once('Z')?;
    let mut parts = time.split(':');
    let hours: u64 = parts.next()?.parse().ok()?;
    let minutes: u64 = parts.next()?.parse().ok()?;
    let seconds: f64 = parts.next()?.parse().ok()?;
    Some(Duration::from_secs(hours * 3_600 + minutes * 60) + Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_log_are_read() {
        let line = "2026-11-21T16:20:00.250000Z  INFO the first lists are complete";
        assert_eq!(time_of_day(line).unwrap().as_millis(), (16 * 3_600 + 20 * 60) * 1_000 + 250);
    }

    #[test]
    fn what_is_generated_is_json() {
        let text = documents("a", PROBE, 7, 2);
        let [service, slice] = text.split("---").collect::<Vec<_>>().try_into().unwrap();
        drop(serde_json::from_str::<serde_json::Value>(service).unwrap());
        let slice: serde_json::Value = serde_json::from_str(slice).unwrap();
        assert_eq!(slice["endpoints"].as_array().unwrap().len(), 2);
    }
}
