//! What came of a measurement of traffic: `results.json`, and the same as a table for people.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::super::figures::{Figure, Spread};
use super::super::results::Machine;
use super::Options;
use super::generator::{Count, Operation};
use super::site::{Route, Way};

/// Version of the schema of `results.json` (`docs/bench/README.md`).
const SCHEMA: u32 = 1;

/// One way on one route, round by round.
pub(super) struct Row {
    route: Route,
    operation: Operation,
    pub(super) way: Way,
    rate: Figure,
    ratio: Figure,
    middle: Figure,
    late: Figure,
    disturbed: usize,
}

impl Row {
    pub(super) fn new(route: Route, operation: Operation, way: Way) -> Self {
        let none = Figure::default;
        Self {
            route,
            operation,
            way,
            rate: none(),
            ratio: none(),
            middle: none(),
            late: none(),
            disturbed: 0,
        }
    }

    pub(super) fn is(&self, route: Route, operation: Operation) -> bool {
        (self.route, self.operation) == (route, operation)
    }

    /// A turn was done again.
    pub(super) const fn disturbed(&mut self) {
        self.disturbed += 1;
    }

    /// Takes a turn; `plain` is the rate of plain routing around it. Plain routing itself is beside itself: its
    /// ratio is how far it drifted.
    pub(super) fn add(&mut self, count: &Count, plain: f64, drift: f64) {
        self.rate.add(count.rate);
        self.ratio.add(if self.way == Way::Plain { drift } else { count.rate / plain });
        self.middle.add(count.middle);
        self.late.add(count.late);
    }

    fn shown(&self) -> Shown {
        Shown {
            route: self.route,
            operation: self.operation,
            way: self.way,
            unit: self.operation.unit(),
            rate: self.rate.spread(),
            ratio: self.ratio.spread(),
            microseconds: self.middle.spread(),
            microseconds_99: self.late.spread(),
            disturbed: self.disturbed,
        }
    }
}

#[derive(Debug, Serialize)]
struct Shown {
    route: Route,
    operation: Operation,
    way: Way,
    unit: &'static str,
    rate: Spread,
    ratio: Spread,
    microseconds: Spread,
    microseconds_99: Spread,
    disturbed: usize,
}

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Traffic {
    schema: u32,
    bench: &'static str,
    commit: String,
    shape: String,
    rounds: usize,
    milliseconds: u128,
    machine: Machine,
    rows: Vec<Shown>,
}

impl Traffic {
    pub(super) fn new(options: &Options<'_>, machine: Machine, rows: &[Row]) -> Self {
        Self {
            schema: SCHEMA,
            bench: "traffic",
            commit: options.commit.to_owned(),
            shape: format!("{:?}", options.shape).to_lowercase(),
            rounds: options.rounds,
            milliseconds: options.time.as_millis(),
            machine,
            rows: rows.iter().map(Row::shown).collect(),
        }
    }

    /// For machines.
    pub(super) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// For people: a line a route and operation and way.
    pub(super) fn table(&self) -> String {
        let Self { commit, rounds, milliseconds, shape, machine, .. } = self;
        let mut text = format!(
            "{}, commit {commit}, {shape} pods, {rounds} rounds of {milliseconds} ms each.\n\n\
             | route | operation | way | a second | x plain (quarters) | middle us | 99 % us | done again |\n\
             | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |\n",
            machine.words()
        );
        for row in &self.rows {
            let (rate, unit) = match row.operation {
                Operation::Bulk => (row.rate.median * 8.0 / 1e9, " Gbit"),
                Operation::Connect | Operation::Kept | Operation::Kept16 | Operation::Udp => {
                    (row.rate.median, "")
                }
            };
            let Spread { median, low, high } = row.ratio;
            let (route, operation, way) = (row.route.name(), row.operation.name(), row.way.name());
            let (middle, late) = (row.microseconds.median, row.microseconds_99.median);
            let digits = usize::from(!unit.is_empty());
            let line = writeln!(
                text,
                "| {route} | {operation} | {way} | {rate:.digits$}{unit} | {median:.3} ({low:.3}-{high:.3}) \
                 | {middle:.0} | {late:.0} | {} |",
                row.disturbed
            );
            if line.is_err() {
                // Writing to a string cannot fail.
            }
        }
        text
    }
}
