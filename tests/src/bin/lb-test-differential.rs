//! The program behind `cargo xtask verify` and `cargo xtask fuzz-differential`: it loads the eBPF programs into the
//! kernel.

use std::io::{self, Write as _, stdout};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use lb_tests::budget;
use lb_tests::campaign;
use lb_tests::differential::random;

const USAGE: &str = "usage:
  lb-test-differential verify BUDGET [bless]  what the verifier says of each program, against a file
  lb-test-differential survey                 the same on a kernel without figures of its own, against the bounds of all
  lb-test-differential fuzz PACKETS SEED      random packets through host and kernel";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "lb-test-differential: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["verify", file] => budget::verify(file.as_ref(), false, &mut stdout()),
        ["verify", file, "bless"] => budget::verify(file.as_ref(), true, &mut stdout()),
        ["survey"] => budget::survey(&mut stdout()),
        ["fuzz", packets, seed] => fuzz(
            packets.parse().context("number of packets")?,
            seed.parse().context("seed")?,
            &mut stdout(),
        ),
        _ => bail!("{USAGE}"),
    }
}

fn fuzz(packets: u64, seed: u64, out: &mut impl io::Write) -> Result<()> {
    let began = Instant::now();
    let summary = random::run(packets, seed)?;
    for (verdict, count) in summary.verdicts() {
        writeln!(out, "{count:>12}  {} {}", verdict.class(), verdict.name())?;
    }
    for (event, count) in summary.events() {
        writeln!(out, "{count:>12}  event {}", event.name())?;
    }
    let seconds = began.elapsed().as_secs_f64();
    writeln!(out, "{} packets equal in {seconds:.1} s, seed {seed}", summary.equal)?;
    campaign::figure("random packets, equal in kernel and host", summary.equal, "packets");
    writeln!(out, "{} skipped: the kernel runs no program on them", summary.skipped)?;
    Ok(())
}
