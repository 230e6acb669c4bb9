//! What `cargo xtask bench` drives: it loads the programs into the kernel and measures.

use std::io::{self, Write as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use lb_tests::bench::traffic::{self, generator};
use lb_tests::bench::{self, Options, scale};
use lb_tests::topology::Shape;

const USAGE: &str = "usage:
  lb-test-bench packet REFERENCE FOLDER ROUNDS COMMIT  nanoseconds per packet, results into FOLDER
  lb-test-bench traffic FOLDER ROUNDS MILLISECONDS routed|bridged COMMIT [NAME ...]
                         plain routing, kube-proxy and ours, results into FOLDER
  lb-test-bench scale [quick|grow]  memory, start and changes of the agent that LB_AGENT names
for the harness: traffic-serve ADDRESS:PORT, traffic-ask OPERATION ADDRESS:PORT MILLISECONDS";

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
        ["traffic", folder, rounds, milliseconds, shape, commit, only @ ..] => {
            let options = traffic::Options {
                folder: folder.as_ref(),
                rounds: rounds.parse().context("number of rounds")?,
                time: time(milliseconds)?,
                shape: if *shape == "bridged" { Shape::Bridged } else { Shape::Routed },
                only,
                commit,
            };
            traffic::traffic(&options, &mut stdout())
        }
        ["scale"] => {
            scale::run(&scale::SIZES, &mut stdout())?;
            scale::grow(&mut stdout())
        }
        ["scale", "grow"] => scale::grow(&mut stdout()),
        ["scale", "quick"] => scale::run(&scale::QUICK, &mut stdout()),
        ["traffic-serve", at] => generator::serve(at.parse().context("address and port")?),
        ["traffic-ask", operation, to, milliseconds] => {
            let to = to.parse().context("address and port")?;
            let count = generator::ask(operation.parse()?, to, time(milliseconds)?)?;
            Ok(writeln!(stdout(), "{}", serde_json::to_string(&count)?)?)
        }
        _ => bail!("{USAGE}"),
    }
}

fn time(milliseconds: &str) -> Result<Duration> {
    Ok(Duration::from_millis(milliseconds.parse().context("milliseconds")?))
}
