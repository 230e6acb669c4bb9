//! `cargo xtask bench`: measures, reports and compares. What is measured with, `lb-test-bench`, does the work.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};

mod tool;

use crate::shell;

/// What to measure, or to do with what was measured.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Nanoseconds per packet by test runs, ours beside reference programs (cold 12 min, warm 6 min; --quick: warm 85 s)
    ///
    /// Results go to target/bench/packet; docs/bench/README.md says what they mean. Attaches nothing.
    Packet(Quick),
    /// Connections, requests and bytes a second through namespaces, with up to 50,000 services: plain routing, the
    /// real kube-proxy, ours, and the least that a program can do (cold 32 min, warm 12 min; --quick: with 10, warm 80 s)
    Traffic(Traffic),
    /// From a change in the API to the first packet that obeys it, and cold starts: ours and the real kube-proxy
    /// (cold 35 min, warm 15 min; --quick: warm 80 s)
    Churn(Quick),
    /// Memory of the agent, its start, how fast a change reaches the maps and maps that are outgrown, with up to 50,000
    /// services (cold 14 min, warm 6 min; --quick: with 1,000, warm 40 s)
    ///
    /// Runs a release agent in a namespace of its own on generated manifests.
    Scale(Quick),
    /// All of these one after the other, and one report of all: target/bench/report.html (cold 60 min, warm 40 min;
    /// --quick: warm 5 min)
    All(Quick),
    /// One report, target/bench/report.html, of results that are there
    Report {
        /// Files, or folders that hold results.json
        #[arg(required = true)]
        results: Vec<PathBuf>,
    },
    /// What changed beyond noise; exit code 1 when ours became worse
    Compare {
        /// A file, or a folder that holds results.json
        old: PathBuf,
        /// The same of a later run
        new: PathBuf,
    },
}

/// How much to measure.
#[derive(Args)]
pub(crate) struct Quick {
    /// Few short rounds and few services: does it run, is something far off
    #[arg(long)]
    quick: bool,
}

/// How much to measure, and how pods hang on their nodes.
#[derive(Args)]
pub(crate) struct Traffic {
    #[command(flatten)]
    quick: Quick,
    /// Pods as ports of a bridge, in place of routed veths
    #[arg(long)]
    bridged: bool,
    /// Only these routes (pod-far, port-near, port-far, loopback), operations (connect, kept, kept16, udp, bulk) and
    /// ways (kube-proxy-nftables, kube-proxy-iptables, ours, ours-stack, ours-sockets, minimal, minimal-stack, ours-xdp)
    only: Vec<String>,
}

/// Does it.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    if !matches!(bench, Bench::Report { .. } | Bench::Compare { .. }) {
        shell::need_root("measuring loads eBPF programs", "bench ... with the same arguments")?;
    }
    match bench {
        Bench::Packet(options) => packet(options.quick),
        Bench::Traffic(options) => traffic(options),
        Bench::Churn(options) => churn(options.quick),
        Bench::Scale(options) => scale(options.quick),
        Bench::All(options) => all(options.quick),
        Bench::Report { results } => tool::report(results),
        Bench::Compare { old, new } => tool::compare(old, new),
    }
}

/// One after the other; after each there is a report of those that are done, and one that fails keeps none from running.
fn all(quick: bool) -> Result<()> {
    let everything = Traffic { quick: Quick { quick }, bridged: false, only: Vec::new() };
    let benches: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("traffic", &|| traffic(&everything)),
        ("churn", &|| churn(quick)),
        ("scale", &|| scale(quick)),
        ("packet", &|| packet(quick)),
    ];
    let (mut folders, mut failed) = (Vec::new(), Vec::new());
    for (name, bench) in benches {
        let results = tool::folder(name).join("results.json");
        // Those of an earlier run are no part of this report.
        if results.is_file() {
            fs::remove_file(&results)?;
        }
        if let Err(error) = bench() {
            println!("bench {name}: {error:#}");
            failed.push(name);
        }
        // What was found before it failed counts, too.
        if results.is_file() {
            folders.push(tool::folder(name));
            tool::report(&folders)?;
        }
    }
    ensure!(failed.is_empty(), "not measured to their end: {}", failed.join(", "));
    Ok(())
}

fn packet(quick: bool) -> Result<()> {
    let reference = tool::reference()?.display().to_string();
    let (folder, commit) = (tool::results("packet"), tool::commit()?);
    if quick {
        return tool::measure("packet", "85 s", &[&reference, &folder, "5", &commit, "quick"]);
    }
    tool::measure("packet", "6 min", &[&reference, &folder, "21", &commit])
}

fn traffic(options: &Traffic) -> Result<()> {
    /// With each, both ways that packets take between nodes; no figure of the generator alone.
    const FEW: [&str; 4] = ["pod-far", "port-far", "connect", "udp"];
    let (rounds, milliseconds, services, expected) = if options.quick.quick {
        ("5", "100", "10", "80 s")
    } else {
        ("5", "250", "10,1000,10000,50000", "12 min")
    };
    let shape = if options.bridged { "bridged" } else { "routed" };
    let reference = tool::reference()?.display().to_string();
    let (folder, commit) = (tool::results("traffic"), tool::commit()?);
    let mut arguments = vec![&*reference, &folder, rounds, milliseconds, services, shape, &commit];
    if options.quick.quick && options.only.is_empty() {
        arguments.extend(FEW);
    }
    arguments.extend(options.only.iter().map(String::as_str));
    tool::measure("traffic", expected, &arguments)
}

fn churn(quick: bool) -> Result<()> {
    let (rounds, changes, services, expected) =
        if quick { ("3", "4", "1000", "80 s") } else { ("5", "6", "10,1000,10000", "15 min") };
    let (folder, commit) = (tool::results("churn"), tool::commit()?);
    tool::measure("churn", expected, &[&folder, rounds, changes, services, &commit])
}

fn scale(quick: bool) -> Result<()> {
    let (folder, commit) = (tool::results("scale"), tool::commit()?);
    if quick {
        return tool::measure("scale", "40 s", &[&folder, "5", &commit, "quick"]);
    }
    tool::measure("scale", "6 min", &[&folder, "5", &commit])
}
