//! `cargo xtask mutants`: changes of the data path, one small change at a time, and whether a host test detects each of
//! them.
//!
//! cargo-mutants lists the changes. All of them are woven into one copy of lb-common, and an environment variable
//! selects one when the tests run, so 1,500 mutants cost one build; those in constants cost one each.
//! `.cargo/mutants.toml` names the mutants that no test can detect, with the reasons; figures are in `docs/proofs.md`.

mod copy;
mod listed;
mod trial;
mod weave;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::Args;

use self::copy::Copy;
use self::listed::{Genre, Mutant};
use self::trial::Outcome;
use crate::setup::cargo_tools;
use crate::step::step;

/// The selection of mutants.
#[derive(Args)]
pub(crate) struct Options {
    /// Try only every N-th mutant
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// Try only mutants whose name, such as `lb-common/src/maglev.rs:19:16:
    /// replace < with <= in size`, matches this regex
    #[arg(long)]
    only: Option<String>,
    /// Number of mutants that are tried in parallel
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
}

/// Tries the mutants; fails if no test detects one of them.
pub(crate) fn run(options: &Options) -> Result<()> {
    cargo_tools::ensure(&cargo_tools::CARGO_MUTANTS)?;
    let mutants: BTreeMap<u32, Mutant> = (1..).zip(listed::list(&arguments(options))?).collect();
    let copy = Copy::new()?;
    let built =
        step(format!("build of {} mutants", mutants.len()), "cold 3 min", || copy.build(&mutants))?;
    step("tests without a mutant", "2 s", || trial::without(&copy, &built.tests))?;
    let missed = |number| {
        if let Some(mutant) = mutants.get(&number) {
            println!("    missed: {}", mutant.name);
        }
    };
    let mut outcomes = step(format!("tests with each of {}", built.woven.len()), "5 min", || {
        Ok(trial::all(&copy, &built, options.jobs.into(), missed))
    })?;
    // The compiler refuses the other values of functions: their types have no such value.
    let alone: Vec<(&u32, &Mutant)> = mutants
        .iter()
        .filter(|(number, it)| !built.woven.contains(*number) && it.genre != Genre::FnValue)
        .collect();
    outcomes.extend(step(format!("builds of {} mutants alone", alone.len()), "4 min", || {
        let plain = copy.build_plain(&mutants)?;
        trial::without(&copy, &plain)?;
        trial::alone(&copy, &alone, missed)
    })?);
    report(&mutants, &outcomes)
}

fn report(mutants: &BTreeMap<u32, Mutant>, outcomes: &BTreeMap<u32, Outcome>) -> Result<()> {
    let mut counts: BTreeMap<Outcome, u32> = BTreeMap::new();
    for number in mutants.keys() {
        let outcome = outcomes.get(number).copied().unwrap_or(Outcome::Refused);
        *counts.entry(outcome).or_default() += 1;
    }
    let counts_said: Vec<String> =
        counts.iter().map(|(outcome, count)| format!("{count} {}", outcome.word())).collect();
    println!("{} mutants: {}", mutants.len(), counts_said.join(", "));
    for (outcome, count) in &counts {
        // `cargo xtask prove` reads these lines.
        println!("figure: mutants that are {} {count} mutants", outcome.word());
    }
    ensure!(
        !counts.contains_key(&Outcome::Missed),
        "some mutants were missed\nremedy: write a fixture, or list them with a reason in \
         .cargo/mutants.toml"
    );
    Ok(())
}

/// The arguments for `cargo mutants`.
fn arguments(options: &Options) -> Vec<String> {
    let mut all = Vec::new();
    if options.sample > 1 {
        // The first of N shards, to which mutants are dealt in turn.
        all.extend(["--shard".to_owned(), format!("0/{}", options.sample)]);
        all.extend(["--sharding".to_owned(), "round-robin".to_owned()]);
    }
    if let Some(only) = &options.only {
        all.extend(["--re".to_owned(), only.clone()]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Options, arguments};

    #[test]
    fn sample_is_one_share_of_as_many() {
        let all = arguments(&Options { sample: 1, only: None, jobs: 2 });
        assert!(all.is_empty(), "{all:?}");
        let some = arguments(&Options { sample: 20, only: None, jobs: 2 });
        assert!(some.windows(2).any(|pair| pair == ["--shard", "0/20"]), "{some:?}");
    }
}
