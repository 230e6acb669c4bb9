//! The results of `bench packet`, as rows for `results.json` and as a table for people.

use super::super::figures::{Figure, Spread};
use super::super::machine::Machine;
use super::super::results::{Results, Row};
use super::variant::{Case, Kind, Label, Variant};

/// The reference programs. A change of their cost is not a regression of ours.
const REFERENCES: [&str; 4] = ["empty", "parse", "look_up", "translate"];

/// A variant compared with a reference program of the same rounds.
#[derive(Debug)]
struct Comparison {
    program: &'static str,
    /// The time of our program divided by that of the reference.
    ratio: Figure,
    /// The same ratio after the empty program's time is subtracted from both.
    net: Figure,
}

/// A variant and its figures.
#[derive(Debug)]
pub(super) struct Measured {
    label: Label,
    bytes: usize,
    nanoseconds: Figure,
    comparisons: Vec<Comparison>,
}

impl Measured {
    /// The figures of a variant, compared with those of its reference programs.
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
            Case::Established | Case::Remote => &[("translate", Case::Established, label.flows)],
            Case::Reject | Case::Redirected | Case::Bypass | Case::Alone => {
                &[("empty", label.case, 0)]
            }
        };
        let references = all.iter().map(|variant| variant.label.program);
        let is_it = |name: &str, base: &str| match name.strip_prefix(base) {
            Some("") => !label.xdp,
            rest => rest == Some(suffix),
        };
        let name = |base: &str| references.clone().find(|name| is_it(name, base));
        let comparisons = wanted.iter().filter_map(|(base, case, flows)| {
            let program = name(base)?;
            let other = find(program, *case, *flows)?;
            // A case that is measured one packet at a time has its own empty program to compare with.
            let empty = if label.case.is_alone() { None } else { empty };
            let (ratio, net) = (own.times(other, None), own.times(other, empty));
            (program != label.program).then_some(Comparison { program, ratio, net })
        });
        let comparisons = comparisons.collect();
        Self { label, bytes: variant.bytes, nanoseconds: own, comparisons }
    }

    /// The rows for `results.json`. Only ratios to a reference of the same rounds are judged.
    fn rows(&self, kept: &Kept) -> Vec<Row> {
        let Label { program, xdp, case, flows, kind } = self.label;
        let (flows, bytes) = (flows.to_string(), self.bytes.to_string());
        let [family, transport] = kind.words();
        let labels = [
            ("program", program),
            ("hook", if xdp { "xdp" } else { "tc" }),
            ("case", case.name()),
            ("flows", &flows),
            ("family", family),
            ("transport", transport),
            ("bytes", &bytes),
        ];
        let is_ours = !REFERENCES.iter().any(|name| program.starts_with(name));
        let mut rows = vec![Row::new(&labels, "time", "ns", &self.nanoseconds)];
        for Comparison { program, ratio, net } in &self.comparisons {
            let ratio_to = format!("ratio to {program}");
            rows.push(Row::new(&labels, &ratio_to, "x", ratio).judged(is_ours));
            let net_to = format!("net ratio to {program}");
            rows.push(Row::new(&labels, &net_to, "x", net));
        }
        let (dropped, disturbed) = (kept.dropped, kept.disturbed);
        rows.into_iter().map(|row| Row { dropped, disturbed, ..row }).collect()
    }
}

/// The rounds that the figures come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// The number of rounds that count.
    pub(super) rounds: usize,
    /// The number of rounds that were left out because other work disturbed them.
    pub(super) dropped: usize,
    /// Whether too few rounds were calm, so that all of them count.
    pub(super) disturbed: bool,
}

#[derive(Debug)]
pub(super) struct Packets {
    pub(super) commit: String,
    pub(super) kept: Kept,
    pub(super) machine: Machine,
    /// Notes for the reader: the measurements that were left out, and why.
    pub(super) notes: Vec<String>,
    pub(super) rows: Vec<Measured>,
}

impl Packets {
    /// The results for `results.json` and the report.
    pub(super) fn results(&self) -> Results {
        let rows = self.rows.iter().flat_map(|row| row.rows(&self.kept)).collect();
        let mut results = Results::new("packet", &self.commit, self.machine.clone(), rows);
        results.notes.clone_from(&self.notes);
        results
    }

    /// A Markdown table: one line for each program, case and number of flows; one column for each kind of packet.
    pub(super) fn table(&self) -> String {
        let Self { commit, kept: Kept { rounds, dropped, disturbed }, machine, .. } = self;
        let calm = if *disturbed { "too few of them calm" } else { "all calm" };
        let mut text = format!(
            "{}, on CPU {}, commit {commit}, {rounds} rounds, {calm}, {dropped} dropped.\n\
             Nanoseconds per packet (first to third quartile); x: multiple of the reference, by column; net: both minus `empty`.\n\n\
             | program | case | flows | v4 tcp | v4 udp | v6 tcp | v6 udp | x reference |\n\
             | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |\n",
            machine.words(),
            machine.cpu.unwrap_or_default(),
        );
        for row in &self.rows {
            if row.label.kind == Kind::ALL[0] {
                self.line(row, &mut text);
            }
        }
        text
    }

    fn line(&self, first: &Measured, text: &mut String) {
        let Label { program, case, flows, .. } = first.label;
        let same = |row: &&Measured| {
            (row.label.program, row.label.case, row.label.flows) == (program, case, flows)
        };
        let case = case.name();
        let mut put = |part: String| text.push_str(&part);
        put(format!("| `{program}` | {case} | {flows} |"));
        for kind in Kind::ALL {
            let row = self.rows.iter().filter(same).find(|row| row.label.kind == kind);
            let Some(Measured { nanoseconds, .. }) = row else {
                put(" |".to_owned());
                continue;
            };
            let Spread { median, low, high } = nanoseconds.spread();
            put(format!(" {median:.0} ({low:.0}-{high:.0}) |"));
        }
        for (index, comparison) in first.comparisons.iter().enumerate() {
            let others =
                || self.rows.iter().filter(same).filter_map(|row| row.comparisons.get(index));
            let list = |pick: fn(&Comparison) -> f64| {
                others().map(|other| format!("{:.2}", pick(other))).collect::<Vec<_>>().join(" ")
            };
            let (ratios, nets) =
                (list(|one| one.ratio.spread().median), list(|one| one.net.spread().median));
            put(format!(" `{}`: {ratios}; net {nets} ", comparison.program));
        }
        put(" |\n".to_owned());
    }
}
