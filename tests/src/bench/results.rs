//! What is written: `results.json`, and the same as a table for people.

use std::fs;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::figures::{Figure, Spread};
use super::variant::{Case, Kind, Label, Variant};

/// Version of the schema of `results.json` (`docs/bench/README.md`).
const SCHEMA: u32 = 1;

/// Where it was measured.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    kernel: String,
    processor: String,
    /// CPUs there are.
    cpus: usize,
    /// The CPU that the programs ran on.
    cpu: usize,
    /// Processes that wanted to run in the last minute, before and after.
    load: [f64; 2],
}

impl Machine {
    /// The machine we run on.
    pub(super) fn here(cpu: usize, load: [f64; 2]) -> Result<Self> {
        let kernel = read("/proc/sys/kernel/osrelease")?.trim().to_owned();
        let text = read("/proc/cpuinfo")?;
        let model = text.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.and_then(|rest| rest.split(": ").nth(1)).unwrap_or("unknown");
        let cpus = text.lines().filter(|line| line.starts_with("processor")).count();
        Ok(Self { kernel, processor: model.to_owned(), cpus, cpu, load })
    }

    /// Where and how busy, in words.
    pub(super) fn words(&self) -> String {
        let Self { kernel, processor, cpus, load: [before, after], .. } = self;
        format!("{processor}, {cpus} CPUs, Linux {kernel}, load {before} to {after}")
    }

    /// Processes that wanted to run in the last minute.
    pub(super) fn load() -> Result<f64> {
        let text = read("/proc/loadavg")?;
        let first = text.split(' ').next().context("/proc/loadavg is empty")?;
        first.parse().context("/proc/loadavg")
    }
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("read {file}"))
}

/// A variant beside a reference program of the same rounds.
#[derive(Debug, Serialize)]
struct Beside {
    program: &'static str,
    /// Ours over theirs.
    ratio: Spread,
    /// The same after the empty program's time is taken from both.
    net: Spread,
}

/// A variant and its figures.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    label: Label,
    bytes: usize,
    nanoseconds: Spread,
    beside: Vec<Beside>,
}

impl Row {
    /// The figures of a variant, with those of the programs it is to be compared with.
    pub(super) fn of(variant: &Variant<'_>, all: &[Variant<'_>], figures: &[Figure]) -> Self {
        let label = variant.label;
        let find = |program: &str, case: Case, flows: usize| {
            let same = |other: &Variant<'_>| {
                let other = other.label;
                (other.program, other.case, other.flows, other.kind)
                    == (program, case, flows, label.kind)
            };
            figures.get(all.iter().position(same)?)
        };
        let own = find(label.program, label.case, label.flows).cloned().unwrap_or_default();
        let suffix = if label.xdp { "_xdp" } else { "_tc" };
        let empty = find(if label.xdp { "empty_xdp" } else { "empty" }, Case::Bare, 0);
        let wanted: &[(&str, Case, usize)] = match label.case {
            Case::Bare => &[],
            Case::NotOurs => &[("parse", Case::Bare, 0), ("look_up", Case::NotOurs, 0)],
            Case::First => &[("translate", Case::First, 0)],
            Case::Established => &[("translate", Case::Established, label.flows)],
        };
        let references = all.iter().map(|variant| variant.label.program);
        let name = |base: &str| references.clone().find(|name| **name == format!("{base}{suffix}"));
        let beside = wanted.iter().filter_map(|(base, case, flows)| {
            let program = name(base)?;
            let other = find(program, *case, *flows)?;
            let (ratio, net) = (own.times(other, None).spread(), own.times(other, empty).spread());
            (program != label.program).then_some(Beside { program, ratio, net })
        });
        Self { label, bytes: variant.bytes, nanoseconds: own.spread(), beside: beside.collect() }
    }
}

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    schema: u32,
    bench: &'static str,
    commit: String,
    rounds: usize,
    machine: Machine,
    rows: Vec<Row>,
}

impl Results {
    /// From its parts.
    pub(super) const fn new(
        commit: String,
        rounds: usize,
        machine: Machine,
        rows: Vec<Row>,
    ) -> Self {
        Self { schema: SCHEMA, bench: "packet", commit, rounds, machine, rows }
    }

    /// For machines.
    pub(super) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// For people: a line a program, case and number of flows; a column a kind of packet.
    pub(super) fn table(&self) -> String {
        let Self { commit, rounds, machine, .. } = self;
        let Machine { kernel, processor, cpus, cpu, load: [before, after] } = machine;
        let mut text = format!(
            "{processor}, {cpus} CPUs (on {cpu}), Linux {kernel}, load {before} to {after}, commit {commit}, \
             {rounds} rounds.\n\
             Nanoseconds per packet (quarter to quarter); x: times the reference, by column; net: both less `empty`.\n\n\
             | program | case | flows | v4 tcp | v4 udp | v6 tcp | v6 udp | x reference |\n\
             | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |\n"
        );
        for row in &self.rows {
            if row.label.kind == Kind::ALL[0] {
                self.line(row, &mut text);
            }
        }
        text
    }

    fn line(&self, first: &Row, text: &mut String) {
        let Label { program, case, flows, .. } = first.label;
        let same = |row: &&Row| {
            (row.label.program, row.label.case, row.label.flows) == (program, case, flows)
        };
        let case = case.name();
        let mut put = |part: String| text.push_str(&part);
        put(format!("| `{program}` | {case} | {flows} |"));
        for kind in Kind::ALL {
            let row = self.rows.iter().filter(same).find(|row| row.label.kind == kind);
            let Some(Row { nanoseconds: Spread { median, low, high }, .. }) = row else {
                put(" |".to_owned());
                continue;
            };
            put(format!(" {median:.0} ({low:.0}-{high:.0}) |"));
        }
        for (index, beside) in first.beside.iter().enumerate() {
            let others = || self.rows.iter().filter(same).filter_map(|row| row.beside.get(index));
            let list = |pick: fn(&Beside) -> f64| {
                others().map(|other| format!("{:.2}", pick(other))).collect::<Vec<_>>().join(" ")
            };
            let (ratios, nets) = (list(|one| one.ratio.median), list(|one| one.net.median));
            put(format!(" `{}`: {ratios}; net {nets} ", beside.program));
        }
        put(" |\n".to_owned());
    }
}
