//! The file format of all benchmark results: `results.json` (`docs/bench/README.md`).
//!
//! A row is one figure: its labels name the subject, its measure names the quantity, its spread gives the uncertainty.
//! Reports and comparisons read nothing else, so a figure without a spread cannot be shown.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::figures::{Figure, Spread};
use super::machine::Machine;
use super::report;

/// The version of the format of `results.json`.
const SCHEMA: u32 = 2;
/// The environment variable with the command line that started the benchmark.
const COMMAND: &str = "LB_BENCH_COMMAND";
/// The name of the results file in the directory of a benchmark.
const FILE: &str = "results.json";

/// The direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    More,
    Less,
}

/// One figure of one subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    /// The labels of the figure, such as `way`, `route`, `services`.
    pub(super) labels: BTreeMap<String, String>,
    pub(super) measure: String,
    pub(super) unit: String,
    pub(super) better: Better,
    /// Whether a change for the worse counts as a regression: true for figures of our agent only.
    pub(super) judged: bool,
    #[serde(flatten)]
    pub(super) spread: Spread,
    /// The number of rounds that it comes from.
    pub(super) rounds: usize,
    /// The number of values in these rounds; 0 in results that are older than this field.
    #[serde(default)]
    pub(super) values: usize,
    /// The number of rounds that were dropped because other processes used the machine.
    pub(super) dropped: usize,
    /// Whether too few rounds were calm: then the figure comes from all rounds and is unreliable.
    pub(super) disturbed: bool,
}

impl Row {
    /// A figure with one value for each round: not disturbed, not judged, and lower is better.
    pub(super) fn new(labels: &[(&str, &str)], measure: &str, unit: &str, of: &Figure) -> Self {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self {
            labels: labels.collect(),
            measure: measure.to_owned(),
            unit: unit.to_owned(),
            better: Better::Less,
            judged: false,
            spread: of.spread(),
            rounds: of.len(),
            values: of.len(),
            dropped: 0,
            disturbed: false,
        }
    }

    /// The slowest hundredth of many values, or the slowest of fewer than a hundred. The latter is never judged.
    pub(super) fn late(
        labels: &[(&str, &str)],
        what: &str,
        unit: &str,
        of: &Figure,
        is_ours: bool,
    ) -> Self {
        let measure = format!("{what} {}", if of.is_many() { "99 %" } else { "slowest" });
        let row = Self::new(labels, &measure, unit, of).judged(is_ours && of.is_many());
        Self { spread: of.late(), ..row }
    }

    /// Sets the number of rounds, for a figure with several values in each round.
    #[must_use]
    pub(super) const fn of_rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds;
        self
    }

    /// Marks the figure as one of which more is better.
    #[must_use]
    pub(super) const fn more_is_better(mut self) -> Self {
        self.better = Better::More;
        self
    }

    /// Marks a change for the worse as a regression if `is_ours`.
    #[must_use]
    pub(super) const fn judged(mut self, is_ours: bool) -> Self {
        self.judged = is_ours;
        self
    }

    /// The value of a label; empty if it is missing.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// All labels as one line of text.
    pub(super) fn name(&self) -> String {
        let labels = self.labels.iter().map(|(name, value)| format!("{name} {value}"));
        labels.collect::<Vec<_>>().join(", ")
    }
}

/// The results of one run of one benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Results {
    schema: u32,
    pub(super) bench: String,
    pub(super) commit: String,
    /// The command line that repeats it.
    pub(super) command: String,
    /// The time of its end, in seconds since 1970.
    pub(super) time: u64,
    pub(super) machine: Machine,
    /// Notes for the reader: settings, and the measurements that were left out, with the reason.
    pub(super) notes: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl Results {
    /// Makes the results of a run that has just ended.
    pub(super) fn new(bench: &str, commit: &str, machine: Machine, rows: Vec<Row>) -> Self {
        let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
        Self {
            schema: SCHEMA,
            bench: bench.to_owned(),
            commit: commit.to_owned(),
            command: env::var(COMMAND).unwrap_or_else(|_| format!("cargo xtask bench {bench}")),
            time,
            machine,
            notes: Vec::new(),
            rows,
        }
    }

    /// Adds notes for the reader.
    pub(super) fn noted(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }

    /// Reads a results file, or the one in a directory.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let file = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let what = || format!("{} holds no results of schema {SCHEMA}", file.display());
        let results: Self = serde_json::from_str(&text).with_context(what)?;
        ensure!(results.schema == SCHEMA, "{}, but of {}", what(), results.schema);
        Ok(results)
    }

    /// Writes `results.json` into a directory: the results so far, in case the benchmark is interrupted.
    pub(super) fn keep(&self, directory: &Path) -> Result<PathBuf> {
        put(directory, FILE, serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes `results.json` and `report.html` into a directory, and prints their paths.
    pub(super) fn write(&self, directory: &Path, out: &mut impl Write) -> Result<()> {
        let json = self.keep(directory)?;
        let page = put(directory, "report.html", report::page(std::slice::from_ref(self)))?;
        writeln!(out, "results: {}\nreport: {}", json.display(), page.display())
            .context("standard output")
    }
}

fn put(directory: &Path, name: &str, text: String) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("directory {}", directory.display()))?;
    let file = directory.join(name);
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_they_were_written() {
        let figure: Figure = [3.0, 1.0, 2.0].into_iter().collect();
        let labels = [("way", "ours"), ("services", "10")];
        let row = Row::new(&labels, "rate", "requests/s", &figure).more_is_better().judged(true);
        let results = Results::new("traffic", "abc", Machine::here(None).unwrap(), vec![row]);
        let directory = tempfile::tempdir().unwrap();
        results.write(directory.path(), &mut Vec::new()).unwrap();
        let read = Results::read(directory.path()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&results).unwrap());
        assert_eq!(read.rows[0].name(), "services 10, way ours");
    }

    #[test]
    fn the_slowest_of_few_is_called_so_and_not_judged() {
        let row = |values: u32| {
            let figure: Figure = (1..=values).map(f64::from).collect();
            Row::late(&[], "latency", "ms", &figure, true).of_rounds(5)
        };
        let (few, many) = (row(50), row(100));
        assert_eq!(
            (&*few.measure, few.judged, few.spread.median),
            ("latency slowest", false, 50.0)
        );
        assert_eq!((&*many.measure, many.judged, many.spread.median), ("latency 99 %", true, 99.0));
        assert_eq!((many.rounds, many.values), (5, 100));
    }

    #[test]
    fn an_older_schema_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), r#"{"schema": 1}"#).unwrap();
        let error = Results::read(directory.path()).unwrap_err();
        assert!(format!("{error:#}").contains("holds no results of schema 2"), "{error:#}");
    }
}
