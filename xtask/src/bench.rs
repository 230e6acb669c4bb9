//! `cargo xtask bench`: builds what is measured and what it is measured against, then runs `lb-test-bench`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};

use crate::step::step;
use crate::{setup, shell, workspace};

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Nanoseconds per packet by test runs, ours beside reference programs (cold 7 min, warm 3 min)
    ///
    /// Results go to target/bench/packet; docs/bench/README.md says what they mean. Attaches nothing.
    Packet(Packet),
    /// Connections, requests and bytes a second through namespaces, ours beside plain routing and the real
    /// kube-proxy (cold 20 min, warm 14 min; --quick: warm 3 min)
    ///
    /// Results go to target/bench/traffic; docs/bench/README.md says what they mean.
    Traffic(Traffic),
    /// Memory of the agent, its start and how fast a change reaches the maps, at 10,000 and 50,000 services
    /// (cold 8 min, warm 3 min)
    ///
    /// Runs a release agent in a namespace of its own on generated manifests.
    Scale(Scale),
}

/// How much to measure.
#[derive(Args)]
pub(crate) struct Scale {
    /// Few services only: does it run
    #[arg(long)]
    quick: bool,
}

/// How long to measure, and how pods hang on their nodes.
#[derive(Args)]
pub(crate) struct Traffic {
    /// Few short rounds
    #[arg(long)]
    quick: bool,
    /// Pods as ports of a bridge, in place of routed veths
    #[arg(long)]
    bridged: bool,
    /// Only these routes (pod-far, port-near, port-far), operations (connect, kept, kept16, udp, bulk) and ways
    only: Vec<String>,
}

/// How long to measure.
#[derive(Args)]
pub(crate) struct Packet {
    /// Few rounds: under a minute, and a wider spread
    #[arg(long)]
    quick: bool,
}

/// Rounds of a measurement that shall stand.
const ROUNDS: u32 = 41;
/// Rounds that show whether something is far off.
const QUICK: u32 = 7;

/// Measures.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    ensure!(
        shell::is_root(),
        "loading eBPF programs needs root\n\
         remedy: sudo -E env \"PATH=$PATH\" cargo xtask bench with the same arguments"
    );
    match bench {
        Bench::Packet(options) => packet(options),
        Bench::Traffic(options) => traffic(options),
        Bench::Scale(options) => scale(options),
    }
}

fn packet(options: &Packet) -> Result<()> {
    setup::for_running()?;
    step("build", "cold 5 min, warm 5 s", || {
        // The kernel takes the time: how user space is compiled does not show.
        let arguments = ["build", "--package", "lb-tests", "--bin", "lb-test-bench"];
        shell::run(shell::cargo().args(arguments), "mend what cargo names")
    })?;
    let object = step("build the reference programs", "cold 1 min, warm 1 s", reference)?;
    let rounds = if options.quick { QUICK } else { ROUNDS };
    step(format!("measure, {rounds} rounds"), "4 s a round", || {
        let cargo = [
            "run",
            "--quiet",
            "--release",
            "--package",
            "lb-tests",
            "--bin",
            "lb-test-bench",
            "--",
        ];
        let mut command = shell::cargo();
        let _: &mut _ = command.args(cargo).arg("packet").arg(object);
        let _: &mut _ = command.arg(workspace::target().join("bench/packet"));
        let _: &mut _ = command.args([rounds.to_string(), commit()?]);
        shell::run(&mut command, "the message names the program and what it did not do")
    })
}

fn scale(options: &Scale) -> Result<()> {
    setup::for_running()?;
    step("build for release", "cold 6 min, warm 5 s", || {
        let arguments =
            ["build", "--release", "--package", "lb-agent", "--package", "lb-tests", "--bins"];
        shell::run(shell::cargo().args(arguments), "mend what cargo names")
    })?;
    let release = workspace::target().join("release");
    step("measure", "2 min", || {
        let mut command = std::process::Command::new(release.join("lb-test-bench"));
        let _: &mut _ = command.arg("scale").args(options.quick.then_some("quick"));
        let _: &mut _ = command.env("LB_AGENT", release.join("lb-agent"));
        shell::run(&mut command, "the message says what was not measured")
    })
}

fn traffic(options: &Traffic) -> Result<()> {
    setup::run()?;
    step("build", "cold 5 min, warm 5 s", || {
        let arguments = ["build", "--package", "lb-agent", "--package", "lb-tests", "--bins"];
        shell::run(shell::cargo().args(arguments), "mend what cargo names")
    })?;
    let (rounds, milliseconds) = if options.quick { ("15", "100") } else { ("41", "250") };
    step(format!("measure, {rounds} rounds"), "8 s a round, --quick, else 18 s", || {
        let cargo = ["run", "--quiet", "--package", "lb-tests", "--bin", "lb-test-bench", "--"];
        let shape = if options.bridged { "bridged" } else { "routed" };
        let mut command = shell::cargo();
        let _: &mut _ = command.args(cargo).arg("traffic");
        let _: &mut _ = command.arg(workspace::target().join("bench/traffic"));
        let _: &mut _ = command.args([rounds, milliseconds, shape, &commit()?]);
        let _: &mut _ = command.args(&options.only);
        shell::run(&mut command, "the message names the way and the route that does not answer")
    })
}

/// Compiles the reference programs for the kernel, with the flags that aya-build gives ours.
fn reference() -> Result<PathBuf> {
    const TARGET: &str =
        if cfg!(target_endian = "big") { "bpfeb-unknown-none" } else { "bpfel-unknown-none" };
    const BINARY: &str = "lb-ebpf-reference";
    let folder = workspace::target().join("bench/ebpf");
    let mut command = shell::cargo();
    let _: &mut _ = command
        .args(["build", "--quiet", "--release", "--package", "lb-ebpf", "--bin", BINARY])
        .args(["--features", "reference", "--target", TARGET, "-Z", "build-std=core"])
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", "-Cdebuginfo=2\x1f-Clink-arg=--btf");
    shell::run(&mut command, "cargo xtask setup installs bpf-linker and rust-src")?;
    Ok(folder.join(TARGET).join("release").join(BINARY))
}

/// The commit that is measured, marked when something differs from it.
fn commit() -> Result<String> {
    let mut git = std::process::Command::new("git");
    let _: &mut _ =
        git.args(["describe", "--always", "--dirty", "--abbrev=10"]).current_dir(workspace::root());
    Ok(shell::output(&mut git, "run it in a clone, with git installed")?.trim().to_owned())
}
