//! What `cargo xtask bench` drives: it loads the programs into the kernel and measures.

use std::io::{self, Write as _, stdout};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use lb_tests::bench::{self, Options};

const USAGE: &str = "usage:
  lb-test-bench packet REFERENCE FOLDER ROUNDS COMMIT  nanoseconds per packet, results into FOLDER";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "lb-test-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["packet", reference, folder, rounds, commit] => {
            let options = Options {
                reference: reference.as_ref(),
                folder: folder.as_ref(),
                rounds: rounds.parse().context("number of rounds")?,
                commit,
            };
            bench::packet(&options, &mut stdout())
        }
        _ => bail!("{USAGE}"),
    }
}
