//! Connections, requests and bytes a second through namespaces: plain routing, the real kube-proxy and ours, in turn.
//!
//! Refuses a figure of a path that does not answer: every generator ends with an error when an answer is missing.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

pub mod generator;
mod results;
mod site;

use generator::Operation;
use results::{Row, Traffic};
use site::{Route, Site, Way};

use super::results::Machine;
use crate::topology::Shape;

/// A round counts when plain routing at its end is within this of plain routing at its beginning.
const CALM: f64 = 0.15;

/// What to measure, and what to say of it.
#[derive(Debug)]
pub struct Options<'a> {
    /// Folder for `results.json` and `table.md`.
    pub folder: &'a Path,
    /// Rounds that shall count; as many again may be dropped.
    pub rounds: usize,
    /// How long one generator runs.
    pub time: Duration,
    /// How pods hang on their nodes.
    pub shape: Shape,
    /// Names of routes, operations and ways; what none of them names is measured whole.
    pub only: &'a [&'a str],
    /// What was measured.
    pub commit: &'a str,
}

impl Options<'_> {
    /// Whether something is wanted: it is named, or nothing of its kind is.
    fn wants(&self, name: &str, all: &[&str]) -> bool {
        self.only.contains(&name) || !all.iter().any(|other| self.only.contains(other))
    }

    fn ways(&self) -> Vec<Way> {
        let all = Way::ALL.map(Way::name);
        let wanted = |way: &Way| *way == Way::Plain || self.wants(way.name(), &all);
        Way::ALL.into_iter().filter(wanted).collect()
    }

    fn pairs(&self) -> Vec<(Route, Operation)> {
        let (routes, operations) =
            (Route::ALL.map(Route::name), Operation::ALL.map(Operation::name));
        let routes = Route::ALL.into_iter().filter(|it| self.wants(it.name(), &routes));
        let wanted = |it: &Operation| self.wants(it.name(), &operations);
        let pair = |route| Operation::ALL.into_iter().filter(wanted).map(move |it| (route, it));
        routes.flat_map(pair).collect()
    }
}

/// Builds a cluster for each way, measures them in turn, and writes what came of it.
pub fn traffic(options: &Options<'_>, out: &mut impl Write) -> Result<()> {
    let load = Machine::load()?;
    let mut sites = Vec::new();
    for way in options.ways() {
        writeln!(out, "build the cluster of {}", way.name())?;
        sites.push(Site::build(way, options.shape).with_context(|| way.name())?);
    }
    let mut rows = Vec::new();
    for (route, operation) in options.pairs() {
        let ways = sites.iter().filter(|site| site.way.serves(route));
        rows.extend(ways.map(|site| Row::new(route, operation, site.way)));
    }
    for round in 1..=options.rounds {
        for (route, operation) in options.pairs() {
            measure(options, &sites, (route, operation), &mut rows)?;
        }
        writeln!(out, "round {round} of {}", options.rounds)?;
    }
    let machine = Machine::here(0, [load, Machine::load()?])?;
    let traffic = Traffic::new(options, machine, &rows);
    fs::create_dir_all(options.folder)
        .with_context(|| format!("folder {}", options.folder.display()))?;
    for (name, text) in [("results.json", traffic.json()?), ("table.md", traffic.table())] {
        let file = options.folder.join(name);
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    }
    writeln!(out, "{}", traffic.table()).context("standard output")
}

/// Every way once, and plain routing again at the end: a disturbed turn is done again once, then kept as disturbed.
fn measure(
    options: &Options<'_>,
    sites: &[Site],
    (route, operation): (Route, Operation),
    rows: &mut [Row],
) -> Result<()> {
    for is_last in [false, true] {
        let mut counts = Vec::new();
        for site in sites.iter().filter(|site| site.way.serves(route)) {
            counts.push((site.way, site.measure(route, operation, options.time)?));
        }
        let (Some(plain), Some((_, first))) = (sites.first(), counts.first()) else {
            return Ok(());
        };
        let again = plain.measure(route, operation, options.time)?;
        let is_calm = (again.rate / first.rate - 1.0).abs() <= CALM;
        let drift = again.rate / first.rate;
        if !is_calm && !is_last {
            rows.iter_mut().filter(|row| row.is(route, operation)).for_each(Row::disturbed);
            continue;
        }
        // Both ends of the turn: what drifts through it is met in the middle.
        let plain = f64::midpoint(first.rate, again.rate);
        for (way, count) in &counts {
            let row = rows.iter_mut().find(|row| row.is(route, operation) && row.way == *way);
            if let Some(row) = row {
                row.add(count, plain, drift);
            }
        }
        return Ok(());
    }
    Ok(())
}
