//! Measuring: `packet` here, the others in their modules; see `docs/bench/README.md`.
//!
//! Packet: nanoseconds per packet by `BPF_PROG_TEST_RUN`, ours beside reference programs.
//!
//! Refuses a figure that did not do its work: the verdict counters must say that each repeat was a packet
//! translated, and the packets of the reference programs must end where their ring ends.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

pub mod churn;
pub mod compare;
mod figures;
mod load;
mod machine;
mod memory;
mod ours;
mod record;
mod reference;
pub mod report;
mod results;
mod ring;
pub mod scale;
pub mod traffic;
mod variant;

use figures::Figure;
use machine::Machine;
use ours::Scenes;
use reference::References;
use results::{Packets, Row};
use variant::Variant;

/// What to measure, and what to say of it.
#[derive(Debug)]
pub struct Options<'a> {
    /// The compiled reference programs.
    pub reference: &'a Path,
    /// Folder for `results.json`, `report.html` and `table.md`.
    pub folder: &'a Path,
    /// How often every variant is measured.
    pub rounds: usize,
    /// What was measured.
    pub commit: &'a str,
}

/// Measures every variant in turn, `rounds` times, and writes what came of it.
pub fn packet(options: &Options<'_>, out: &mut impl Write) -> Result<()> {
    let cpu = pin()?;
    let object = fs::read(options.reference)
        .with_context(|| format!("reference programs {}", options.reference.display()))?;
    let references = References::load(&object).context("reference programs")?;
    let mut scenes = Scenes::load().context("our programs")?;
    let mut variants = references.variants();
    variants.extend(scenes.variants());
    let machine = Machine::here(Some(cpu))?;
    let figures = rounds(&mut variants, options.rounds, out)?;
    let rows = variants.iter().map(|variant| Row::of(variant, &variants, &figures)).collect();
    let (commit, machine) = (options.commit.to_owned(), machine.afterwards()?);
    let packets = Packets { commit, rounds: options.rounds, machine, rows };
    packets.results().write(options.folder, out)?;
    let file = options.folder.join("table.md");
    fs::write(&file, packets.table()).with_context(|| format!("write {}", file.display()))?;
    writeln!(out, "{}", packets.table()).context("standard output")
}

/// A B C, A B C: what disturbs one variant disturbs its neighbours as well.
fn rounds(
    variants: &mut [Variant<'_>],
    rounds: usize,
    out: &mut impl Write,
) -> Result<Vec<Figure>> {
    let mut figures = vec![Figure::default(); variants.len()];
    for round in 1..=rounds {
        for (variant, figure) in variants.iter_mut().zip(&mut figures) {
            figure.add(variant.run().with_context(|| variant.label.to_string())?);
        }
        if round % 5 == 0 || round == rounds {
            writeln!(out, "round {round} of {rounds}, {} variants", variants.len())?;
        }
    }
    Ok(figures)
}

/// Stays on the last CPU: interrupts of most machines go to the first.
fn pin() -> Result<usize> {
    let cpu = aya::util::nr_cpus().map_err(|(what, error)| anyhow::anyhow!("{what}: {error}"))?;
    let cpu = cpu.saturating_sub(1);
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("stay on CPU {cpu}"))?;
    Ok(cpu)
}
