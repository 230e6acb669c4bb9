//! The build of `lb-test-bench`, and the commands that run it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

use anyhow::{Context as _, Result};

use crate::step::step;
use crate::{setup, shell, workspace};

/// The directory of a benchmark's results.
pub(super) fn directory(bench: &str) -> PathBuf {
    workspace::target().join("bench").join(bench)
}

/// The directory of a benchmark's results, as an argument.
pub(super) fn results(bench: &str) -> String {
    directory(bench).display().to_string()
}

/// Builds everything that a benchmark needs, and runs it.
pub(super) fn measure(bench: &str, expected: &str, arguments: &[&str]) -> Result<()> {
    // Only these two benchmarks use an API server.
    if ["traffic", "churn"].contains(&bench) {
        setup::run()?;
    } else {
        setup::for_running()?;
    }
    let release = build()?;
    step(format!("measure {bench}"), expected, || {
        let written: Vec<String> = env::args().skip(1).collect();
        let mut command = Command::new(release.join("lb-test-bench"));
        command
            .arg(bench)
            .args(arguments)
            .env("LB_AGENT", release.join("lb-agent"))
            .env("LB_BENCH_COMMAND", format!("cargo xtask {}", written.join(" ")));
        shell::run(&mut command, "see the message above")
    })
}

/// Writes one report of several results.
pub(super) fn report(results: &[PathBuf]) -> Result<()> {
    let file = workspace::target().join("bench/report.html");
    let mut command = Command::new(build()?.join("lb-test-bench"));
    command.arg("report").arg(&file).args(results);
    shell::run(&mut command, "measure with the same version of this command")?;
    println!("report: {}", file.display());
    Ok(())
}

/// Prints the comparison, and exits with its exit code.
pub(super) fn compare(old: &Path, new: &Path) -> Result<()> {
    let mut command = Command::new(build()?.join("lb-test-bench"));
    let status = command.arg("compare").args([old, new]).status().context("lb-test-bench")?;
    if !status.success() {
        #[expect(
            clippy::exit,
            reason = "the exit code is the answer, and a worse figure no error"
        )]
        exit(status.code().unwrap_or(2));
    }
    Ok(())
}

/// Builds for release. The benchmark program itself is optimised as well, because its own time would otherwise hide
/// that of the kernel.
fn build() -> Result<PathBuf> {
    step("build for release", "cold 8 min, warm 1 s", || {
        let mut command = shell::cargo();
        // The harness starts `lb-test-peer`, a program of lb-tests, from the directory of the bench.
        let packages = ["lb-agent", "lb-tests", "lb-bench"];
        command.args(["build", "--release", "--bins"]);
        command.args(packages.iter().flat_map(|package| ["--package", package]));
        shell::run(&mut command, "fix what cargo reports")
    })?;
    Ok(workspace::target().join("release"))
}

/// Compiles the reference programs for the kernel, with the same flags as aya-build uses for our programs.
pub(super) fn reference() -> Result<PathBuf> {
    const TARGET: &str =
        if cfg!(target_endian = "big") { "bpfeb-unknown-none" } else { "bpfel-unknown-none" };
    const BINARY: &str = "lb-ebpf-reference";
    setup::for_building()?;
    let directory = workspace::target().join("bench/ebpf");
    let mut command = shell::cargo();
    command
        .args(["build", "--quiet", "--release", "--package", "lb-ebpf", "--bin", BINARY])
        .args(["--features", "reference", "--target", TARGET, "-Z", "build-std=core"])
        .arg("--target-dir")
        .arg(&directory)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", "-Cdebuginfo=2\x1f-Clink-arg=--btf");
    step("build the reference programs", "cold 1 min, warm 1 s", || {
        shell::run(&mut command, "cargo xtask setup installs bpf-linker and rust-src")
    })?;
    Ok(directory.join(TARGET).join("release").join(BINARY))
}

/// The measured commit, with a mark if a file differs from it.
pub(super) fn commit() -> Result<String> {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=10"]).current_dir(workspace::root());
    Ok(shell::output(&mut git, "run it in a clone, with git installed")?.trim().to_owned())
}
