//! The comparison `bench compare OLD NEW`: changes beyond the noise, and whether a figure of our agent became worse.
//!
//! Two figures differ when their interquartile ranges do not overlap and their medians are further apart than
//! [`FLOOR`]. An absolute rate is shown but not judged where the same run has its ratio to plain routing: another
//! machine, or another hour on the same machine, is not a regression.

use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::results::{Better, Results, Row};

/// Differences below this share do not count, however small the spread.
const FLOOR: f64 = 0.05;

/// The relation of a figure to an older one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// The difference is within the noise, or below [`FLOOR`].
    None,
    /// Better by this share of the old figure.
    Improved(f64),
    /// Worse by this share of the old figure.
    Worsened(f64),
}

/// Prints the changes; returns `false` when a figure of our agent became worse.
pub fn compare(old: &Path, new: &Path, out: &mut impl Write) -> Result<bool> {
    let (old, new) = (Results::read(old)?, Results::read(new)?);
    let benches = (&old.bench, &new.bench);
    ensure!(benches.0 == benches.1, "`{}` and `{}` are different benches", benches.0, benches.1);
    print(&old, &new, out).context("standard output")
}

fn print(old: &Results, new: &Results, out: &mut impl Write) -> Result<bool> {
    writeln!(out, "bench {}: {} against {}", new.bench, new.commit, old.commit)?;
    for (which, results) in [("old", old), ("new", new)] {
        writeln!(out, "  {which}: {}", results.machine.words())?;
    }
    let (mut alike, mut disturbed, mut added, mut regressions) = (0, 0, 0, 0);
    for row in &new.rows {
        let Some(before) = old.rows.iter().find(|other| is_same(row, other)) else {
            added += 1;
            continue;
        };
        if row.disturbed || before.disturbed {
            disturbed += 1;
            continue;
        }
        let (what, share) = match change(before, row) {
            Change::None => {
                alike += 1;
                continue;
            }
            Change::Improved(share) => ("better", share),
            Change::Worsened(share) if row.judged => {
                regressions += 1;
                ("WORSE", share)
            }
            Change::Worsened(share) => ("worse, not judged", share),
        };
        let (was, is) = (spelt(before), spelt(row));
        let (name, measure, percent) = (row.name(), &row.measure, share * 100.0);
        writeln!(out, "  {what} by {percent:.0} %: {measure} ({name}): {was} -> {is}")?;
    }
    let gone = old.rows.iter().filter(|row| !new.rows.iter().any(|other| is_same(row, other)));
    writeln!(
        out,
        "{regressions} regressions; {alike} figures inside the noise, {disturbed} not compared (disturbed), \
         {added} only in the new results, {} only in the old",
        gone.count()
    )?;
    Ok(regressions == 0)
}

fn is_same(one: &Row, other: &Row) -> bool {
    one.measure == other.measure && one.labels == other.labels
}

fn change(old: &Row, new: &Row) -> Change {
    let share = (new.spread.median - old.spread.median) / old.spread.median.abs().max(f64::EPSILON);
    if old.spread.overlaps(&new.spread) || share.abs() < FLOOR {
        Change::None
    } else if (share > 0.0) == (new.better == Better::More) {
        Change::Improved(share.abs())
    } else {
        Change::Worsened(share.abs())
    }
}

fn spelt(row: &Row) -> String {
    let spread = row.spread;
    format!("{} ({} to {}) {}", spread.median, spread.low, spread.high, row.unit)
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figure;
    use super::super::machine::Machine;
    use super::*;

    fn results(values: &[f64], judged: bool) -> Results {
        let figure: Figure = values.iter().copied().collect();
        let labels = [("way", "ours"), ("route", "pod-far")];
        let row = Row::new(&labels, "ratio", "x", &figure).more_is_better().judged(judged);
        Results::new("traffic", "commit", Machine::here(None).unwrap(), vec![row])
    }

    fn said(old: &[f64], new: &[f64], judged: bool) -> (bool, String) {
        let mut out = Vec::new();
        let (old, new) = (results(old, judged), results(new, judged));
        let fine = print(&old, &new, &mut out).unwrap();
        (fine, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_change_inside_the_quarters_is_none() {
        let (fine, text) = said(&[0.8, 0.9, 1.0, 1.1, 1.2], &[0.7, 0.8, 0.9, 1.0, 1.1], true);
        assert!(fine && text.contains("1 figures inside the noise"), "{text}");
    }

    #[test]
    fn worse_figure_of_the_agent_is_a_regression() {
        let (fine, text) = said(&[1.0, 1.01, 1.02], &[0.8, 0.81, 0.82], true);
        assert!(!fine, "{text}");
        assert!(text.contains("WORSE by 20 %: ratio (route pod-far, way ours): 1.01"), "{text}");
    }

    #[test]
    fn figures_of_others_are_shown_but_not_judged() {
        let (fine, text) = said(&[1.0, 1.01, 1.02], &[0.8, 0.81, 0.82], false);
        assert!(fine && text.contains("worse, not judged by 20 %"), "{text}");
    }

    #[test]
    fn more_is_better_where_it_is() {
        let (fine, text) = said(&[1.0, 1.01, 1.02], &[1.2, 1.21, 1.22], true);
        assert!(fine && text.contains("better by 20 %"), "{text}");
    }

    #[test]
    fn disturbed_figures_are_not_compared() {
        let (old, mut new) = (results(&[1.0], true), results(&[0.1], true));
        new.rows[0].disturbed = true;
        assert!(print(&old, &new, &mut Vec::new()).unwrap());
    }
}
