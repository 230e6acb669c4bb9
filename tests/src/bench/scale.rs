//! What a large cluster costs the agent that `LB_AGENT` names, on generated manifests.
//!
//! Memory, the time from complete lists to programmed maps, and the time from a change to the map it changes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::Maps;

mod generated;

use generated::{Probe, generate};

use super::figures::{Figure, Spread};
use super::load::Usage;
use super::machine::Machine;
use super::memory;
use super::record::{Results, Row};
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
/// Reading 100,000 objects as YAML takes a while; that is not what is measured.
const PATIENCE: Duration = Duration::from_mins(5);

/// What was measured, and of what.
#[derive(Debug)]
pub struct Options<'a> {
    /// Folder for `results.json` and `report.html`.
    pub folder: &'a Path,
    /// What was measured.
    pub commit: &'a str,
    /// What is measured.
    pub sizes: &'a [Size],
    /// How often.
    pub rounds: u32,
}

/// What was measured at one size, a value each round.
#[derive(Debug, Default)]
struct Figures {
    anonymous: Figure,
    highest: Figure,
    maps: Figure,
    start: Figure,
    changes: Figure,
    disturbed: usize,
}

impl Figures {
    fn rows(&self, (services, endpoints): Size) -> Vec<Row> {
        let (services, endpoints) = (services.to_string(), endpoints.to_string());
        let labels = [("way", "ours"), ("services", &*services), ("endpoints", &endpoints)];
        let row = |measure, of: &Figure| Row::new(&labels, measure, of).judged(true);
        // Other work takes time, not memory.
        let disturbed = self.disturbed > 0;
        let time = |measure, of: &Figure| Row { disturbed, ..row(measure, of) };
        let late = time(("change to map 99 %", "ms"), &self.changes);
        vec![
            row(("anonymous memory", "MB"), &self.anonymous),
            row(("peak memory", "MB"), &self.highest),
            row(("map memory", "MB"), &self.maps),
            time(("lists to programmed", "s"), &self.start),
            time(("change to map 50 %", "ms"), &self.changes),
            Row { spread: self.changes.late(), ..late },
        ]
    }
}

/// Measures each size in turn, and writes what came of it.
pub fn run(options: &Options<'_>, out: &mut impl Write) -> Result<()> {
    let machine = Machine::here(None)?;
    let mut all: Vec<Figures> = options.sizes.iter().map(|_| Figures::default()).collect();
    for round in 1..=options.rounds {
        for (size, figures) in options.sizes.iter().zip(&mut all) {
            let before = Usage::now()?;
            measure(*size, figures)?;
            figures.disturbed += usize::from(!before.was_calm(&Usage::now()?));
            let (services, endpoints) = size;
            writeln!(out, "round {round} of {}: {services} x {endpoints}", options.rounds)?;
        }
    }
    let rows = options.sizes.iter().zip(&all).flat_map(|(size, figures)| figures.rows(*size));
    let rows: Vec<Row> = rows.collect();
    for row in &rows {
        let Row { measure, unit, spread: Spread { median, low, high }, .. } = row;
        writeln!(out, "{}: {measure} {median} ({low} to {high}) {unit}", row.name())?;
    }
    Results::new("scale", options.commit, machine.afterwards()?, rows).write(options.folder, out)
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
    agent.stop_quietly()
}

fn measure((services, endpoints): Size, figures: &mut Figures) -> Result<()> {
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(1).build()?;
    let node = topology.node(0)?;
    let folder = topology.folder("scale")?;
    generate(&folder, 0..services, endpoints)?;
    let probe = Probe::new(&folder, &topology.folder("staged")?)?;
    let mut agent = Agent::spawn(node, Source::Manifests(&folder), &[])?;
    wait_until(PATIENCE, "the agent is ready", || agent.wait_ready().ok())?;
    figures.start.add(from_lists_to_ready(node)?.as_secs_f64());
    let pins = node.bpf().join(LAYOUT).join("maps");
    let maps = Maps::open(&pins)?;
    let entries = maps.services()?.len() as u32;
    ensure!(entries == 2 * (services + 1), "{entries} entries of SERVICES");
    for number in 1..=CHANGES {
        figures.changes.add(probe.change(&maps, number)?.as_secs_f64() * 1_000.0);
    }
    figures.anonymous.add(memory::settled(agent.id())? as f64 / 1e6);
    figures.highest.add(memory::highest(agent.id())? as f64 / 1e6);
    figures.maps.add(memory::of_maps(&pins)? as f64 / 1e6);
    agent.stop_quietly()
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
}
