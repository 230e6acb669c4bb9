//! The benchmark `scale`: the cost of a large cluster for the agent that `LB_AGENT` names, with generated manifests.
//!
//! It measures memory, the time from complete lists to programmed maps, and the time from a change to the changed map.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::Maps;
use lb_tests::agent::{Agent, Source};
use lb_tests::campaign;
use lb_tests::topology::{Node, Shape, Topology};
use lb_tests::wait::{wait_until, wait_until_ok};

mod generated;

use generated::{Probe, generate};

use super::figures::{Figure, Spread};
use super::load::Usage;
use super::machine::Machine;
use super::memory;
use super::results::{Results, Row};

/// The number of services, and of endpoints of each.
pub type Size = (u32, u32);
pub const SIZES: [Size; 4] = [(0, 0), (1_000, 3), (10_000, 3), (50_000, 5)];
/// The sizes of a quick run, which only shows that the benchmark works.
pub const QUICK: [Size; 1] = [(1_000, 3)];
/// The number of services of a cluster that outgrows its maps, before and after: `SERVICES` has 65,536 entries by
/// default, and each service needs two.
const GROWTH: (u32, u32) = (1_000, 40_000);

/// The number of changes, of which the slowest hundredth is a figure.
const CHANGES: u32 = 400;
/// The deadline for a start. Reading 100,000 objects as YAML takes a while, and is not part of the figures.
const PATIENCE: Duration = Duration::from_mins(5);

/// The choices for the measurement.
#[derive(Debug)]
pub struct Options<'a> {
    /// Directory for `results.json` and `report.html`.
    pub directory: &'a Path,
    pub commit: &'a str,
    pub sizes: &'a [Size],
    /// The number of rounds at each size.
    pub rounds: usize,
    /// Whether the growth of maps is measured as well.
    pub grows: bool,
}

/// The figures at one size, one value for each round.
#[derive(Debug, Default)]
struct Figures {
    anonymous: Figure,
    highest: Figure,
    maps: Figure,
    start: Figure,
    changes: Figure,
    rounds: usize,
    disturbed: usize,
}

impl Figures {
    /// Counts a round, disturbed or not. No round is dropped, because a change that other work delays is late all the
    /// same.
    fn count(&mut self, before: &Usage) -> Result<()> {
        self.rounds += 1;
        self.disturbed += usize::from(!before.was_calm(&Usage::now()?));
        Ok(())
    }

    fn rows(&self, (services, endpoints): Size) -> Vec<Row> {
        let (services, endpoints) = (services.to_string(), endpoints.to_string());
        let labels = [("way", "ours"), ("services", &*services), ("endpoints", &endpoints)];
        let row = |measure, unit, of: &Figure| Row::new(&labels, measure, unit, of).judged(true);
        // Other work changes times, but not memory.
        let disturbed = self.disturbed > 0;
        let mark = |row: Row| Row { disturbed, ..row.of_rounds(self.rounds) };
        let time = |measure, unit, of: &Figure| mark(row(measure, unit, of));
        vec![
            row("anonymous memory", "MB", &self.anonymous),
            row("peak memory", "MB", &self.highest),
            row("map memory", "MB", &self.maps),
            time("lists to programmed", "s", &self.start),
            time("change to map 50 %", "ms", &self.changes),
            mark(Row::late(&labels, "change to map", "ms", &self.changes, true)),
        ]
    }

    /// The row for the cluster that outgrew its maps.
    fn growth(&self) -> Row {
        let (before, after) = GROWTH;
        let services = format!("{before} to {after}");
        let labels = [("way", "ours"), ("services", &*services), ("endpoints", "1")];
        let row = Row::new(&labels, "growth", "s", &self.start).judged(true);
        Row { disturbed: self.disturbed > 0, ..row }
    }
}

/// Measures each size in turn, and writes the results.
pub fn run(options: &Options<'_>, out: &mut impl Write) -> Result<()> {
    let machine = Machine::here(None)?;
    let mut all: Vec<Figures> = options.sizes.iter().map(|_| Figures::default()).collect();
    let mut growth = Figures::default();
    let results = |all: &[Figures], growth: &Figures| -> Result<Results> {
        let rows = options.sizes.iter().zip(all).flat_map(|(size, figures)| figures.rows(*size));
        let rows = rows.chain(options.grows.then(|| growth.growth())).collect();
        let results = Results::new("scale", options.commit, machine.clone().afterwards()?, rows);
        let mut notes = vec![format!(
            "{} rounds, each with a start and {CHANGES} changes at every size. No round is dropped: times of \
             disturbed rounds are marked.",
            options.rounds
        )];
        if !options.grows {
            notes.push("The growth of maps is not measured: --quick.".to_owned());
        }
        Ok(results.noted(notes))
    };
    for round in 1..=options.rounds {
        for (size, figures) in options.sizes.iter().zip(&mut all) {
            let before = Usage::now()?;
            measure(*size, figures)?;
            figures.count(&before)?;
            let (services, endpoints) = size;
            writeln!(out, "round {round} of {}: {services} x {endpoints}", options.rounds)?;
        }
        if options.grows {
            let before = Usage::now()?;
            growth.start.add(grow()?.as_secs_f64());
            growth.count(&before)?;
            writeln!(out, "round {round} of {}: growth of maps", options.rounds)?;
        }
        drop(results(&all, &growth)?.keep(options.directory)?);
    }
    let results = results(&all, &growth)?;
    for row in &results.rows {
        let Row { measure, unit, spread: Spread { median, low, high }, .. } = row;
        writeln!(out, "{}: {measure} {median} ({low} to {high}) {unit}", row.name())?;
        campaign::figure(&format!("{}: {measure}", row.name()), format!("{median:.2}"), unit);
    }
    results.write(options.directory, out)
}

/// Lets a cluster outgrow its maps while the agent runs. The agent must replace them by larger ones and serve every
/// Service; returns the time that this took.
fn grow() -> Result<Duration> {
    let (few, many) = GROWTH;
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(1).build()?;
    let node = topology.node(0)?;
    let directory = topology.directory("scale")?;
    generate(&directory, 0..few, 1)?;
    let mut agent = Agent::spawn(node, Source::Manifests(&directory), &[])?;
    wait_until(PATIENCE, "the agent is ready", || agent.wait_ready().ok())?;
    let began = Instant::now();
    generate(&directory, few..many, 1)?;
    let pins = node.bpf().join(LAYOUT).join("maps");
    wait_until_ok(PATIENCE, "every Service is in the larger maps", || {
        agent.ensure_running()?;
        let entries = Maps::open(&pins)?.services()?.len();
        ensure!(entries == 2 * many as usize, "{entries} entries of SERVICES");
        Ok(())
    })?;
    let took = began.elapsed();
    agent.stop_quietly()?;
    Ok(took)
}

fn measure((services, endpoints): Size, figures: &mut Figures) -> Result<()> {
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(1).build()?;
    let node = topology.node(0)?;
    let directory = topology.directory("scale")?;
    generate(&directory, 0..services, endpoints)?;
    let probe = Probe::new(&directory, &topology.directory("staged")?)?;
    let mut agent = Agent::spawn(node, Source::Manifests(&directory), &[])?;
    wait_until(PATIENCE, "the agent is ready", || agent.wait_ready().ok())?;
    figures.start.add(from_lists_to_ready(node)?.as_secs_f64());
    let pins = node.bpf().join(LAYOUT).join("maps");
    let maps = Maps::open(&pins)?;
    let entries = maps.services()?.len() as u32;
    ensure!(entries == 2 * (services + 1), "{entries} entries of SERVICES");
    for number in 1..=CHANGES {
        figures.changes.add(probe.change(&maps, number)?.as_secs_f64() * 1_000.0);
    }
    figures.anonymous.add(memory::stable(agent.id())? as f64 / 1e6);
    figures.highest.add(memory::highest(agent.id())? as f64 / 1e6);
    figures.maps.add(memory::of_maps(&pins)? as f64 / 1e6);
    agent.stop_quietly()
}

/// The time from complete lists to all Services programmed, by the agent's log.
fn from_lists_to_ready(node: &Node) -> Result<Duration> {
    let log = fs::read_to_string(node.directory().join("lb-agent.log"))?;
    let time = |what: &str| {
        let line = log.lines().find(|line| line.contains(what));
        let line = line.with_context(|| format!("the agent's log does not contain {what:?}"))?;
        time_of_day(line).with_context(|| format!("no time in {line:?}"))
    };
    let (lists, ready) = (time("initial sync complete")?, time("everything programmed")?);
    // Midnight may lie between the two lines, which have only a time of day here.
    let day = Duration::from_hours(24);
    Ok(ready.checked_sub(lists).unwrap_or_else(|| (ready + day).saturating_sub(lists)))
}

/// The time of day of a log line that begins like `2026-11-21T16:20:00.123456Z`.
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
        let line = "2026-11-21T16:20:00.250000Z  INFO initial sync complete";
        assert_eq!(time_of_day(line).unwrap().as_millis(), (16 * 3_600 + 20 * 60) * 1_000 + 250);
    }
}
