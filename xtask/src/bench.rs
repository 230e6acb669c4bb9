//! `cargo xtask bench`: measures, reports and compares. `lb-test-bench` does the work.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};

mod tool;

use crate::shell;

/// The benchmark to run, or the action on existing results.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Nanoseconds per packet in test runs, compared with reference programs (cold 12 min, warm 6 min; --quick: warm 85
    /// s)
    ///
    /// Results go to target/bench/packet; docs/bench/README.md explains them. Attaches nothing.
    Packet(Quick),
    /// Connections, requests and bytes per second through namespaces, with up to 50,000 services: plain routing, the
    /// real kube-proxy, the agent, and a minimal program (cold 32 min, warm 12 min; --quick: with 10, warm 80 s)
    Traffic(Traffic),
    /// Delay from a change in the API to the first packet that follows it, and cold starts, compared with kube-proxy
    /// (cold 35 min, warm 15 min; --quick: warm 80 s)
    Churn(Quick),
    /// Memory, start time, delay from a change to the maps, and growing maps, with up to 50,000
    /// services (cold 14 min, warm 6 min; --quick: with 1,000, warm 40 s)
    ///
    /// Runs a release agent in a namespace of its own on generated manifests.
    Scale(Quick),
    /// All benchmarks, and one report: target/bench/report.html (cold 60 min, warm 40 min;
    /// --quick: warm 5 min)
    All(Quick),
    /// Write one report, target/bench/report.html, from existing results
    Report {
        /// Files named results.json, or their directories
        #[arg(required = true)]
        results: Vec<PathBuf>,
    },
    /// Compare two results beyond noise; exit code 1 if the agent got worse
    Compare {
        /// A results.json, or its directory
        old: PathBuf,
        /// The results.json of a later run, or its directory
        new: PathBuf,
    },
}

/// The amount of work.
#[derive(Args)]
pub(crate) struct Quick {
    /// Few short rounds with few services: a smoke test
    #[arg(long)]
    quick: bool,
}

/// The amount of work, and the connection of pods to their nodes.
#[derive(Args)]
pub(crate) struct Traffic {
    #[command(flatten)]
    quick: Quick,
    /// The network of the nodes: pods behind routed veths, or behind a bridge; or behind a bridge with the netfilter
    /// rules of a CNI plugin
    #[arg(long, value_parser = ["routed", "bridged", "cni"], default_value = "routed")]
    network: String,
    /// Only these routes (pod-far, port-near, port-far, loopback), operations (connect,
    /// connect16, kept, kept16, udp, bulk) and ways (kube-proxy-nftables, kube-proxy-iptables,
    /// ours, ours-stack, ours-sockets, minimal, minimal-stack, ours-xdp)
    only: Vec<String>,
}

/// Runs a benchmark, or works on existing results.
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

/// Runs all benchmarks one after another, and writes a report of the finished ones after each. A benchmark that fails
/// does not stop the others.
fn all(quick: bool) -> Result<()> {
    let network = "routed".to_owned();
    let everything = Traffic { quick: Quick { quick }, network, only: Vec::new() };
    let benches: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("traffic", &|| traffic(&everything)),
        ("churn", &|| churn(quick)),
        ("scale", &|| scale(quick)),
        ("packet", &|| packet(quick)),
    ];
    let (mut directories, mut failed) = (Vec::new(), Vec::new());
    for (name, bench) in benches {
        let results = tool::directory(name).join("results.json");
        // Results of an earlier run do not belong in this report.
        if results.is_file() {
            fs::remove_file(&results)?;
        }
        if let Err(error) = bench() {
            println!("bench {name}: {error:#}");
            failed.push(name);
        }
        // A benchmark that failed may have written figures before.
        if results.is_file() {
            directories.push(tool::directory(name));
            tool::report(&directories)?;
        }
    }
    ensure!(failed.is_empty(), "failed benchmarks: {}", failed.join(", "));
    Ok(())
}

fn packet(quick: bool) -> Result<()> {
    let reference = tool::reference()?.display().to_string();
    let (directory, commit) = (tool::results("packet"), tool::commit()?);
    if quick {
        return tool::measure("packet", "85 s", &[&reference, &directory, "5", &commit, "quick"]);
    }
    tool::measure("packet", "6 min", &[&reference, &directory, "21", &commit])
}

fn traffic(options: &Traffic) -> Result<()> {
    /// Both paths of packets between nodes; without the limit of the generator.
    const FEW: [&str; 4] = ["pod-far", "port-far", "connect", "udp"];
    let (rounds, milliseconds, services, expected) = if options.quick.quick {
        ("5", "100", "10", "80 s")
    } else {
        ("5", "250", "10,1000,10000,50000", "12 min")
    };
    let reference = tool::reference()?.display().to_string();
    let (directory, commit) = (tool::results("traffic"), tool::commit()?);
    let mut arguments =
        vec![&*reference, &directory, rounds, milliseconds, services, &options.network, &commit];
    if options.quick.quick && options.only.is_empty() {
        arguments.extend(FEW);
    }
    arguments.extend(options.only.iter().map(String::as_str));
    tool::measure("traffic", expected, &arguments)
}

fn churn(quick: bool) -> Result<()> {
    let (rounds, changes, services, expected) =
        if quick { ("3", "4", "1000", "80 s") } else { ("5", "6", "10,1000,10000", "15 min") };
    let (directory, commit) = (tool::results("churn"), tool::commit()?);
    tool::measure("churn", expected, &[&directory, rounds, changes, services, &commit])
}

fn scale(quick: bool) -> Result<()> {
    let (directory, commit) = (tool::results("scale"), tool::commit()?);
    if quick {
        return tool::measure("scale", "40 s", &[&directory, "5", &commit, "quick"]);
    }
    tool::measure("scale", "6 min", &[&directory, "5", &commit])
}
