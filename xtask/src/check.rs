//! `cargo xtask check`: what a change must pass before anything is run as root.

use anyhow::Result;

use crate::setup::{self, cargo_tools};
use crate::step::step;
use crate::{shell, workspace};

/// Runs every check; the first that fails ends it.
pub(crate) fn run() -> Result<()> {
    setup::for_building()?;
    cargo_tools::ensure(&cargo_tools::CARGO_DENY)?;
    for check in CHECKS {
        step(check.what, check.expected, || {
            shell::run(shell::cargo().args(check.arguments), check.remedy)
        })?;
    }
    step("lints of the eBPF programs", "cold 1 min, warm 1 s", programs)
}

/// For the host, `lb-ebpf` is an empty program: what it holds is linted for its own target, in a directory
/// of its own, since `RUSTC_BOOTSTRAP` (ADR 0004) would have build scripts of everything else run again.
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

/// All of them select the whole workspace, so that cargo builds each dependency once for all.
const CHECKS: [Check; 4] = [
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
    Check {
        what: "tests without root",
        expected: "cold 3 min, warm 10 s",
        arguments: &["test", "--workspace", "--lib", "--bins"],
        remedy: "cargo test --workspace --lib --bins",
    },
];
