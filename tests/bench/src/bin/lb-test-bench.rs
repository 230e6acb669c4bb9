//! The program that `cargo xtask bench` drives: it measures, writes results and reports, and compares results.

use std::io::{self, Write as _, stdout};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use lb_bench::traffic::{self, generator, server};
use lb_bench::{api_relay, churn, compare, packet, report, scale};

const USAGE: &str = "usage (results and report go to DIRECTORY, SERVICES is a comma-separated list):
  lb-test-bench packet REFERENCE DIRECTORY ROUNDS COMMIT [quick]  nanoseconds per packet; without quick also for a million flows
  lb-test-bench traffic REFERENCE DIRECTORY ROUNDS MILLISECONDS SERVICES routed|bridged|cni COMMIT [NAME ...]
                         plain routing, kube-proxy and lb-agent
  lb-test-bench churn DIRECTORY ROUNDS CHANGES SERVICES COMMIT
                         from a change in the API to a packet, for kube-proxy and the agent that LB_AGENT names
  lb-test-bench scale DIRECTORY ROUNDS COMMIT [quick]  memory, start and changes of the agent that LB_AGENT names,
                         and without quick the growth of maps
  lb-test-bench report FILE RESULTS ...  one report of several results
  lb-test-bench compare OLD NEW      exit code 1 when the agent became worse
for the harness: traffic-serve ADDRESS:PORT ..., traffic-ask OPERATION ADDRESS:PORT MILLISECONDS,
  relay ADDRESS:PORT NETNS";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(code) => code,
        Err(error) => {
            drop(writeln!(io::stderr(), "lb-test-bench: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["compare", old, new] => {
            let is_fine = compare::compare(Path::new(old), Path::new(new), &mut stdout())?;
            Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        ["report", to, from @ ..] => {
            let from: Vec<PathBuf> = from.iter().map(PathBuf::from).collect();
            report::write(&from, Path::new(to)).map(|()| ExitCode::SUCCESS)
        }
        words => measure(words).map(|()| ExitCode::SUCCESS),
    }
}

fn measure(words: &[&str]) -> Result<()> {
    match words {
        ["packet", reference, directory, rounds, commit, quick @ ..] => {
            let (reference, directory) = (reference.as_ref(), directory.as_ref());
            let (rounds, many) = (number(rounds)?, quick.is_empty());
            let options = packet::Options { reference, directory, rounds, many, commit };
            packet::packet(&options, &mut stdout())
        }
        [
            "traffic",
            reference,
            directory,
            rounds,
            milliseconds,
            services,
            network,
            commit,
            only @ ..,
        ] => {
            let options = traffic::Options {
                reference: reference.as_ref(),
                directory: directory.as_ref(),
                rounds: number(rounds)?,
                time: time(milliseconds)?,
                services: &list(services)?,
                network: network.parse()?,
                only,
                commit,
            };
            traffic::traffic(&options, &mut stdout())
        }
        ["churn", directory, rounds, changes, services, commit] => {
            let (directory, services) = (directory.as_ref(), &list(services)?);
            let (rounds, changes) = (number(rounds)?, number(changes)?);
            let options = churn::Options { directory, commit, services, rounds, changes };
            churn::churn(&options, &mut stdout())
        }
        ["scale", directory, rounds, commit, quick @ ..] => {
            let grows = quick.is_empty();
            let sizes: &[scale::Size] = if grows { &scale::SIZES } else { &scale::QUICK };
            let (directory, rounds) = (directory.as_ref(), number(rounds)?);
            scale::run(&scale::Options { directory, commit, sizes, rounds, grows }, &mut stdout())
        }
        ["traffic-serve", at @ ..] => {
            let at = at.iter().map(|at| address(at));
            server::serve(&at.collect::<Result<Vec<SocketAddr>>>()?)
        }
        ["traffic-ask", operation, to, milliseconds] => {
            let count = generator::ask(operation.parse()?, address(to)?, time(milliseconds)?)?;
            Ok(writeln!(stdout(), "{}", serde_json::to_string(&count)?)?)
        }
        ["relay", to, netns] => api_relay::run(address(to)?, netns),
        _ => bail!("{USAGE}"),
    }
}

fn address(text: &str) -> Result<SocketAddr> {
    text.parse().with_context(|| format!("{text} is no address and port"))
}

fn number<T: std::str::FromStr<Err = std::num::ParseIntError>>(text: &str) -> Result<T> {
    text.parse().with_context(|| format!("{text} is no number"))
}

fn list(text: &str) -> Result<Vec<u32>> {
    text.split(',').map(number).collect()
}

fn time(milliseconds: &str) -> Result<Duration> {
    Ok(Duration::from_millis(number(milliseconds)?))
}
