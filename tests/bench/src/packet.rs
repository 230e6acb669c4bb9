//! The benchmark `packet`: nanoseconds per packet by `BPF_PROG_TEST_RUN`, for our programs and for reference programs.
//!
//! A measurement whose work was not done is an error: the verdict counters must show that every repeat translated a
//! packet, and a packet of a reference program must end where its ring ends.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use lb_tests::cpus;

mod measured;
mod ours;
mod pair;
mod reference;
mod ring;
mod single;
mod variant;

use measured::{Kept, Measured, Packets};
use ours::Scenes;
use reference::References;
use single::Singles;
use variant::Variant;

use super::figures::Figure;
use super::load::{self, Usage};
use super::machine::Machine;

/// The choices for a measurement and its report.
#[derive(Debug)]
pub struct Options<'a> {
    /// The compiled reference programs.
    pub reference: &'a Path,
    /// Directory for `results.json`, `report.html` and `table.md`.
    pub directory: &'a Path,
    /// The number of measurements of each variant.
    pub rounds: usize,
    /// Whether a million flows are measured as well.
    pub many: bool,
    pub commit: &'a str,
}

/// Measures every variant in turn, `rounds` times, and writes the results.
pub fn packet(options: &Options<'_>, out: &mut impl Write) -> Result<()> {
    let cpu = pin()?;
    let object = fs::read(options.reference)
        .with_context(|| format!("reference programs {}", options.reference.display()))?;
    let references = References::load(&object, options.many).context("reference programs")?;
    let mut scenes = Scenes::load(options.many).context("our programs")?;
    let singles = Singles::load().context("our programs, for single packets")?;
    let mut variants = references.variants();
    variants.extend(scenes.variants());
    variants.extend(singles.variants());
    let machine = Machine::here(Some(cpu))?;
    let packets = |variants: &[Variant<'_>], (figures, kept): (Vec<Figure>, Kept)| -> Result<_> {
        let rows = variants.iter().map(|it| Measured::of(it, variants, &figures)).collect();
        let (commit, machine) = (options.commit.to_owned(), machine.clone().afterwards()?);
        Ok(Packets { commit, kept, machine, notes: notes(options.many), rows })
    };
    let all = rounds(&mut variants, options.rounds, |variants, found, round| {
        if round % 5 == 0 || round == options.rounds {
            writeln!(out, "round {round} of {}, {} variants", options.rounds, variants.len())?;
            drop(packets(variants, found)?.results().keep(options.directory)?);
        }
        Ok(())
    })?;
    let packets = packets(&variants, all)?;
    packets.results().write(options.directory, out)?;
    let file = options.directory.join("table.md");
    fs::write(&file, packets.table()).with_context(|| format!("write {}", file.display()))?;
    writeln!(out, "{}", packets.table()).context("standard output")
}

/// The notes for the reader of the results.
fn notes(many: bool) -> Vec<String> {
    let many = if many {
        "1,048,576 flows are measured over IPv4 and TCP alone, in tables with four times as many entries."
    } else {
        "1,048,576 flows are not measured: --quick."
    };
    let others = [
        "First packets are measured at the ingress of a pod's interface and of an external interface.",
        "A rejection is not a packet of a ring, and a packet that XDP or tc redirects has a lower hop limit and other link \
         addresses: both are measured one at a time, and so is the empty program that they are compared with. Each rejection \
         checks the rate limit, which is reset before it.",
    ];
    [many].into_iter().chain(others).map(str::to_owned).collect()
}

/// The values of one round, one for each variant.
struct Round {
    values: Vec<f64>,
    is_calm: bool,
}

/// Interleaves the variants (A B C, A B C), so that a disturbance affects neighbouring variants alike. A round that
/// other work disturbed is repeated, and dropped as long as most rounds are calm. `keep` gets the figures so far after
/// each round.
fn rounds(
    variants: &mut [Variant<'_>],
    rounds: usize,
    mut keep: impl FnMut(&[Variant<'_>], (Vec<Figure>, Kept), usize) -> Result<()>,
) -> Result<(Vec<Figure>, Kept)> {
    let mut all: Vec<Round> = Vec::new();
    for round in 1..=rounds {
        loop {
            let before = Usage::now()?;
            let run = |variant: &mut Variant<'_>| {
                variant.run().with_context(|| variant.label.to_string())
            };
            let values = variants.iter_mut().map(run).collect::<Result<_>>()?;
            let is_calm = before.was_calm(&Usage::now()?);
            all.push(Round { values, is_calm });
            let disturbed = all.iter().filter(|round| !round.is_calm).count();
            if is_calm || !load::is_repeated(disturbed, all.len()) {
                break;
            }
        }
        keep(variants, kept(&all, variants.len()), round)?;
    }
    Ok(kept(&all, variants.len()))
}

/// The figures of all variants: of the calm rounds if there are enough of them, else of all rounds.
fn kept(all: &[Round], variants: usize) -> (Vec<Figure>, Kept) {
    let calm = all.iter().filter(|round| round.is_calm).count();
    let is_enough = load::are_enough(calm, all.len());
    let counted: Vec<&Round> = all.iter().filter(|round| round.is_calm || !is_enough).collect();
    let figure = |index: usize| {
        counted.iter().filter_map(|round| round.values.get(index).copied()).collect::<Figure>()
    };
    let figures = (0..variants).map(figure).collect();
    let (rounds, disturbed) = (counted.len(), !is_enough);
    (figures, Kept { rounds, dropped: all.len() - rounds, disturbed })
}

/// Pins this thread to the last CPU: on most machines interrupts go to the first.
fn pin() -> Result<usize> {
    let cpu = aya::util::nr_cpus().map_err(|(what, error)| anyhow::anyhow!("{what}: {error}"))?;
    let cpu = cpu.saturating_sub(1);
    cpus::stay_on(cpu)?;
    Ok(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(calm: &[bool]) -> (Vec<Figure>, Kept) {
        let round = |is_calm: &bool| {
            let value = if *is_calm { 10.0 } else { 90.0 };
            Round { values: vec![value, 2.0 * value], is_calm: *is_calm }
        };
        kept(&calm.iter().map(round).collect::<Vec<_>>(), 2)
    }

    #[test]
    fn disturbed_rounds_are_dropped_of_every_variant() {
        let (figures, kept) = rounds(&[true, false, true, true, true, true]);
        let medians: Vec<f64> = figures.iter().map(|figure| figure.spread().high).collect();
        assert_eq!((medians, kept.rounds, kept.dropped), (vec![10.0, 20.0], 5, 1));
        assert!(!kept.disturbed);
    }

    #[test]
    fn without_five_calm_rounds_all_count() {
        let (figures, kept) = rounds(&[true, false, true, true, false, true]);
        assert_eq!((kept.rounds, kept.dropped, kept.disturbed), (6, 0, true));
        assert!(figures.iter().all(|figure| figure.len() == 6));
    }
}
