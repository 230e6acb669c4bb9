//! `cargo xtask`: everything one does with this repository, by name.
//!
//! Each command is a function of one module; this file only names them. It knows none of our crates:
//! it drives cargo, apt, go and rustup as a person would, and tells what it does while it does it.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it talks to people")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod check;
mod demo;
#[cfg(test)]
mod documents;
mod image;
mod setup;
mod shell;
mod step;
mod test;
mod twin;
mod workspace;

/// Everything one does with this repository.
///
/// Times are for two cores: "cold" is a fresh machine with empty caches, "warm" any later run.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what building and testing need, and only what is missing (cold 13 min, warm 1 s)
    ///
    /// Debian packages, rust-src for the BPF target, bpf-linker, and a Kubernetes control plane built
    /// from Go modules into a cache outside the clone. Needs root when a Debian package is missing.
    Setup,
    /// Format, lints, licences and the tests without root (cold 6 min, warm 20 s)
    Check,
    /// Everything: setup, check, build, and the tests that need root (cold 36 min, warm 13 min)
    Test(test::Options),
    /// What the verifier says of each program, against tests/budget.toml (cold 6 min, warm 2 s)
    ///
    /// Loads every program; attaches none. Needs root.
    Verify(twin::Verify),
    /// Random packets through the kernel's programs and the same code on this host (cold 6 min, warm 10 s)
    ///
    /// Verdict, bytes and state must be equal; the smallest case that differs is printed as a fixture. Needs root.
    FuzzTwin(twin::Fuzz),
    /// Measure: ours beside plain routing, the real kube-proxy and reference programs (all of it: cold 60 min, warm 40 min)
    ///
    /// In interleaved rounds. Needs root.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Watch Services being answered in a playground of namespaces (cold 5 min, warm 15 s)
    ///
    /// One node, three pods and a client outside; the agent runs on the manifests in deploy/demo. Real
    /// sockets ask in both families, and a backend comes and goes. Needs root.
    Demo(demo::Options),
    /// The agent as an OCI image in target/image, without a container daemon (cold 8 min, warm 10 s)
    Image,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Setup => setup::run(),
        Command::Check => check::run(),
        Command::Test(options) => test::run(&options),
        Command::Verify(options) => twin::verify(&options),
        Command::FuzzTwin(options) => twin::fuzz(&options),
        Command::Bench(bench) => bench::run(&bench),
        Command::Demo(options) => demo::run(&options),
        Command::Image => image::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain of causes, without the backtrace that `Debug` would add for a person.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
