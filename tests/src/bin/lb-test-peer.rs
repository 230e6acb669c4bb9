//! The program that runs in every member of a topology: it sends and answers questions, on orders of a test or a
//! person.

use std::io::{self, Write as _, stdin, stdout};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use lb_tests::playground;
use lb_tests::topology::{Shape, Topology, leftovers};
use lb_tests::traffic::{command, session};

const USAGE: &str = "usage:
  lb-test-peer ask tcp|udp ADDRESS:PORT [TIMES | until SERVER | without SERVER]
  lb-test-peer serve NAME PORT         answer with NAME and the client's address; also to curl
  lb-test-peer at MEMBER ask|serve ... the same as a member of the demo: client, node-a, pod-a1
  lb-test-peer at MEMBER PROGRAM ...   any program as a member of the demo
  lb-test-peer playground remove       remove what `cargo xtask demo --keep` left running
for the harness: session, janitor PID, topology hold, playground hold, ready ADDRESS:PORT";

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
    match words.as_slice() {
        ["session"] => Ok(session::run(stdin().lock(), stdout().lock())?),
        ["janitor", pid] => {
            leftovers::sweep_after(pid.parse().context("process id")?);
            Ok(())
        }
        ["topology", "hold"] => hold(),
        ["playground", "hold"] => playground::hold(),
        ["playground", "remove"] => playground::remove(),
        ["at", member, rest @ ..] => {
            playground::enter(member)?;
            speak(rest).unwrap_or_else(|| playground::become_program(rest))
        }
        words => speak(words).unwrap_or_else(|| bail!("{USAGE}")),
    }
}

/// Builds a small topology, prints its traces on the machine, and keeps it until the input ends.
fn hold() -> Result<()> {
    let topology = Topology::builder(Shape::Bridged).nodes(1).pods(1).build()?;
    for trace in topology.node(0)?.traces() {
        writeln!(stdout(), "{}", trace.display())?;
    }
    drop(io::read_to_string(stdin())?);
    Ok(())
}

/// Runs a command that works in any namespace; `None` for any other command.
fn speak(words: &[&str]) -> Option<Result<()>> {
    Some(match *words {
        ["serve", name, port] => command::serve(name, port),
        ["ask", protocol, to] => command::ask(protocol, to, None),
        ["ask", protocol, to, times] => command::ask(protocol, to, Some(times)),
        ["ask", protocol, to, "until", server] => command::ask_until(protocol, to, server, false),
        ["ask", protocol, to, "without", server] => command::ask_until(protocol, to, server, true),
        ["ready", server] => command::ready(server),
        _ => return None,
    })
}
