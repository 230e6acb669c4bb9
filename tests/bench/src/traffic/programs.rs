//! The cost of eBPF programs per operation, by the kernel's own statistics (`BPF_ENABLE_STATS`): the number of runs of
//! each program, and the time of a run.
//!
//! The statistics slow every run by some 25 ns, so no other figure is measured meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use lb_tests::topology::Family;

use super::super::figures::Figure;
use super::super::results::Row;
use super::generator::Operation;
use super::proxy_kind::{Agent, Question, Route};
use super::site::{Services, Site};

/// The number of measurements of each mode.
const TURNS: usize = 5;
const COUNTED: [(Route, Operation); 6] = [
    (Route::PodFar, Operation::Connect),
    (Route::PodFar, Operation::Kept),
    (Route::PodFar, Operation::Udp),
    (Route::PortNear, Operation::Connect),
    (Route::PortFar, Operation::Connect),
    (Route::PortFar, Operation::Udp),
];

/// The work of a program: the number of runs, and the nanoseconds of all runs.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    runs: u64,
    time: u64,
}

/// The figures of one program, or of all programs together.
#[derive(Default)]
struct Figures {
    runs: Figure,
    time: Figure,
    cost: Figure,
}

/// The work of all loaded programs so far, by program id.
fn work() -> BTreeMap<u32, (String, Work)> {
    let mut all = BTreeMap::new();
    // A program that is unloaded while this loop runs is not one of those that are measured.
    for program in loaded_programs().filter_map(Result::ok) {
        let name = program.name_as_str().unwrap_or("unnamed").to_owned();
        let time = program.run_time().as_nanos() as u64;
        let work = Work { runs: program.run_count(), time };
        drop(all.insert(program.id(), (name, work)));
    }
    all
}

/// Measures the programs of every mode that has some, for the questions that `wants` accepts.
pub(super) fn count(
    sites: &[Site],
    services: &Services,
    number: u32,
    time: Duration,
    wants: impl Fn(Question) -> bool,
) -> Result<Vec<Row>> {
    let _counting = enable_stats(Stats::RunTime)?;
    let mut rows = Vec::new();
    for (route, operation) in COUNTED {
        let question = Question { route, operation, family: Family::V4 };
        let has_programs = |site: &&Site| {
            matches!(site.kind.agent(), Agent::Ours(_) | Agent::Minimal { .. })
                && site.kind.serves(route)
                && number <= site.kind.most_services()
        };
        for site in sites.iter().filter(has_programs).filter(|_| wants(question)) {
            let mut figures: BTreeMap<String, Figures> = BTreeMap::new();
            for _ in 0..TURNS {
                for (name, work) in turn(site, question, services, time)? {
                    figures.entry(name).or_default().add(work);
                }
            }
            rows.extend(rows_of(site, question, number, &figures));
        }
    }
    Ok(rows)
}

/// The work of each program per operation, and of all of them together (under the empty name): runs and nanoseconds.
fn turn(
    site: &Site,
    question: Question,
    services: &Services,
    time: Duration,
) -> Result<BTreeMap<String, [f64; 2]>> {
    let before = work();
    let count = site.measure(question, services, time)?;
    let operations = count.operations.max(1) as f64;
    let mut all: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for (id, (name, after)) in work() {
        let earlier = before.get(&id).map_or_else(Work::default, |(_, work)| *work);
        let [runs, time] = [after.runs - earlier.runs, after.time - earlier.time];
        let each = [runs as f64 / operations, time as f64 / operations];
        // A program with so few runs does not belong to the measured path.
        if each[0] < 0.05 {
            continue;
        }
        for name in [name, String::new()] {
            let sum = all.entry(name).or_default();
            sum[0] += each[0];
            sum[1] += each[1];
        }
    }
    Ok(all)
}

impl Figures {
    fn add(&mut self, [runs, time]: [f64; 2]) {
        self.runs.add(runs);
        self.time.add(time / runs);
        self.cost.add(time / 1_000.0);
    }
}

fn rows_of(
    site: &Site,
    Question { route, operation, family }: Question,
    services: u32,
    figures: &BTreeMap<String, Figures>,
) -> Vec<Row> {
    let services = services.to_string();
    let mut rows = Vec::new();
    for (name, figures) in figures {
        let mut labels = vec![
            ("way", site.kind.name()),
            ("route", route.name()),
            ("operation", operation.name()),
            ("family", family.name()),
            ("services", &services),
        ];
        let program = if name.is_empty() { "all" } else { name };
        labels.push(("program", program));
        rows.push(Row::new(&labels, "runs", "an operation", &figures.runs));
        rows.push(Row::new(&labels, "time of a run", "ns", &figures.time));
        rows.push(Row::new(&labels, "time of programs", "us an operation", &figures.cost));
    }
    rows
}
