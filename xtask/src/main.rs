//! `cargo xtask`: all tasks of this repository, by name.
//!
//! Each command is a function of one module; this file only names them. xtask depends on none of our crates: it drives
//! cargo, apt, go and rustup as a person would, and reports its progress.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it talks to people")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod check;
mod demo;
mod differential;
#[cfg(test)]
mod documents;
mod image;
mod kernels;
#[cfg(test)]
mod module_order;
mod mutants;
mod prove;
mod schema;
mod setup;
mod shell;
mod step;
mod test;
mod workspace;

/// Development commands of this repository.
///
/// Times are for two cores: "cold" means a fresh machine with empty caches, "warm" any later run.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install missing tools for building and testing (cold 13 min, warm 1 s)
    ///
    /// Debian packages, rust-src for the BPF target, bpf-linker, and a Kubernetes control plane built
    /// from Go modules into a cache outside the clone. Needs root when a Debian package is missing.
    Setup,
    /// Run format check, lints, licence check and tests without root (cold 5 min, warm 30 s)
    Check,
    /// Run setup, check, build and all tests, with root (cold 20 to 47 min, warm 11 to 15 min)
    Test(test::Options),
    /// Run campaigns, the long forms of tests, and write their figures to docs/proof.md (all: hours)
    ///
    /// A campaign that fails is named, and the others continue. Most need root.
    Prove(prove::Options),
    /// Compare verifier cost and size of each program with tests/budget.toml (cold 6 min, warm 2 s)
    ///
    /// Loads every program, attaches none. Needs root.
    Verify(differential::Verify),
    /// Run random packets through the programs in the kernel and through the same code on the host (cold 6 min, warm 10
    /// s)
    ///
    /// Verdict, bytes and state must be equal; the smallest difference is printed as a fixture. Needs root.
    FuzzDifferential(differential::Fuzz),
    /// Mutation test of the data path: does a host test detect each small change? (cold 12 min, warm 8 min)
    ///
    /// Mutants that no test can detect are listed with a reason in .cargo/mutants.toml; figures are in docs/proofs.md.
    Mutants(mutants::Options),
    /// Benchmark the agent against plain routing, kube-proxy and reference programs (all: cold 60 min, warm 40 min)
    ///
    /// Rounds are interleaved. Needs root.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Show Services at work in network namespaces (cold 5 min, warm 15 s)
    ///
    /// One node, three pods and an external client; the agent reads the manifests in deploy/demo. Real
    /// sockets connect in both families while a backend is added and removed. Needs root.
    Demo(demo::Options),
    /// Boot Debian's kernels from 6.1 to the newest in emulation (cold 20 min, warm 15 min)
    ///
    /// Each verifies every program; those with tcx links also run the fixtures and the tests of pods that use a
    /// ClusterIP, of network cards and of netkit interfaces. Needs root.
    Kernels(kernels::Options),
    /// Build the agent as an OCI image in target/image, without a container daemon (cold 8 min, warm 10 s)
    Image(image::Options),
    /// Read the fields of the served objects from the Go modules of Kubernetes again (cold 1 min, warm 2 s)
    Schema,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Setup => setup::run(),
        Command::Check => check::run(),
        Command::Test(options) => test::run(&options),
        Command::Prove(options) => prove::run(&options),
        Command::Verify(options) => differential::verify(&options),
        Command::FuzzDifferential(options) => differential::fuzz(&options),
        Command::Mutants(options) => mutants::run(&options),
        Command::Bench(bench) => bench::run(&bench),
        Command::Demo(options) => demo::run(&options),
        Command::Kernels(options) => kernels::run(&options),
        Command::Image(options) => image::run(&options),
        Command::Schema => schema::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain of causes, without the backtrace that `Debug` would add.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
