//! `cargo xtask check`: the checks that a change must pass before any command runs as root.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result};

use crate::setup::{self, cargo_tools, packages};
use crate::step::step;
use crate::{shell, workspace};

/// Runs every check, and stops at the first that fails.
pub(crate) fn run() -> Result<()> {
    lints()?;
    tests()
}

/// Runs the checks that execute none of our code.
pub(crate) fn lints() -> Result<()> {
    setup::for_building()?;
    cargo_tools::ensure(&cargo_tools::CARGO_DENY)?;
    for check in CHECKS {
        step(check.what, check.expected, || {
            // These lints cover the agent without its eBPF programs, which are linted separately.
            let mut command = shell::cargo();
            shell::run(command.args(check.arguments).env("AYA_BUILD_SKIP", "1"), check.remedy)
        })?;
    }
    step("lints of the eBPF programs", "cold 1 min, warm 1 s", programs)
}

/// Runs the tests without root: those of libraries and binaries, each in its own process.
pub(crate) fn tests() -> Result<()> {
    cargo_tools::ensure(&cargo_tools::CARGO_NEXTEST)?;
    packages::ensure("chromium", &packages::BROWSER)?;
    forget(&junit())?;
    step("tests without root", "cold 2 min, warm 25 s", nextest)
}

/// These tests wait during half of their time, so two of them share a CPU.
fn nextest() -> Result<()> {
    let cpus = thread::available_parallelism().context("number of CPUs")?;
    let mut command = shell::cargo();
    command
        .args(["nextest", "run", "--workspace", "--lib", "--bins", "--test-threads"])
        .arg((2 * cpus.get()).to_string());
    shell::run(&mut command, "cargo nextest run --workspace --lib --bins NAME")
}

/// Returns the path of the `JUnit` report of the tests without root, which `.config/nextest.toml` requests. The file
/// does not exist after a run that ended before its tests.
pub(crate) fn junit() -> PathBuf {
    workspace::root().join(JUNIT)
}

/// Nextest's own directory, which does not depend on cargo's; the name of its profile; the file name in the
/// configuration.
const JUNIT: &str = "target/nextest/default/junit.xml";

fn forget(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

/// Lints the eBPF programs for their own target, because `lb-ebpf` is an empty program for the host. They use a target
/// directory of their own, because `RUSTC_BOOTSTRAP` (ADR 0004) would make cargo rerun all other build scripts.
fn programs() -> Result<()> {
    let mut command = shell::cargo();
    command
        .args(["clippy", "--quiet", "--package", "lb-ebpf", "--features", "reference"])
        .args(["--target", "bpfel-unknown-none", "-Z", "build-std=core", "--target-dir"])
        .arg(workspace::target().join("lints-of-programs"))
        .args(["--", "-D", "warnings"])
        .env("RUSTC_BOOTSTRAP", "1");
    shell::run(&mut command, LINT)
}

/// The remedy for a lint.
const LINT: &str = "fix the code, or explain with #[expect(lint, reason = \"...\")]";

struct Check {
    what: &'static str,
    expected: &'static str,
    arguments: &'static [&'static str],
    remedy: &'static str,
}

/// All of them select the whole workspace, so that cargo builds each dependency once for all of them.
const CHECKS: [Check; 3] = [
    Check {
        what: "format",
        expected: "1 s",
        arguments: &["fmt", "--all", "--check"],
        remedy: "cargo fmt --all",
    },
    Check {
        what: "lints",
        expected: "cold 2 min, warm 5 s",
        arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        remedy: LINT,
    },
    Check {
        what: "licences, sources and bans of dependencies",
        expected: "2 s",
        arguments: &["deny", "--log-level", "error", "check", "bans", "licenses", "sources"],
        remedy: "choose another dependency, or give the reason for an exception in deny.toml",
    },
];
