//! The program in every member of a topology: asks and answers, as the test or a person says.

use std::io::{self, Write as _, stdin, stdout};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use lb_tests::topology::leftovers;
use lb_tests::traffic::session;

const USAGE: &str = "usage: lb-test-peer session | janitor PID";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "lb-test-peer: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["session"] => Ok(session::run(stdin().lock(), stdout().lock())?),
        ["janitor", pid] => {
            leftovers::sweep_after(pid.parse().context("process id")?);
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}
