//! `cargo xtask verify` and `cargo xtask fuzz-differential`: run `lb-test-differential`, which loads the programs into
//! the kernel.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::step::step;
use crate::{setup, shell, workspace};

/// The options of `verify`.
#[derive(Args)]
pub(crate) struct Verify {
    /// Write the figures to tests/budget.toml instead of comparing
    #[arg(long)]
    bless: bool,
}

/// The options of `fuzz-differential`.
#[derive(Args)]
pub(crate) struct Fuzz {
    /// Number of packets
    #[arg(long, default_value_t = 100_000)]
    packets: u64,
    /// Seed of the random packets
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Compares the cost of the programs in the kernel with `tests/budget.toml`, or writes it there.
pub(crate) fn verify(options: &Verify) -> Result<()> {
    prepare("verify")?;
    compare(options.bless)
}

/// Runs random packets through host and kernel, and compares the results.
pub(crate) fn fuzz(options: &Fuzz) -> Result<()> {
    prepare("fuzz-differential")?;
    let Fuzz { packets, seed } = options;
    step(format!("{packets} packets"), "10 s for 100 000", || {
        let arguments = ["fuzz".to_owned(), packets.to_string(), seed.to_string()];
        run(
            &arguments,
            "add the printed case as a fixture in lb-common/src/fake/fixtures, then fix lb-common",
        )
    })
}

/// As [`verify`], with everything built.
pub(crate) fn compare(bless: bool) -> Result<()> {
    let file = workspace::root().join("tests/budget.toml");
    let mut arguments = vec!["verify".to_owned(), file.display().to_string()];
    arguments.extend(bless.then(|| "bless".to_owned()));
    step("verify", "1 s", || {
        run(
            &arguments,
            "make the program smaller, or, below the ceilings, accept the figures: \
             cargo xtask verify --bless",
        )
    })
}

fn prepare(command: &str) -> Result<()> {
    shell::need_root(&format!("{command} loads eBPF programs"), command)?;
    setup::for_running()?;
    shell::build(&["--workspace", "--bin", "lb-test-differential"])
}

fn run(arguments: &[String], remedy: &str) -> Result<()> {
    let program = workspace::target().join("debug/lb-test-differential");
    shell::run(Command::new(program).args(arguments), remedy)
}
