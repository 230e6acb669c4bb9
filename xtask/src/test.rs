//! `cargo xtask test`: set-up, checks, build, and then the tests that need root.
//!
//! Test binaries run one after the other, and by default one test at a time in each of them: every
//! test has its own namespaces and could run beside others, but on two cores a control plane beside
//! a traffic test turns deadlines into luck. `RUST_TEST_THREADS` overrides this.

use std::env;

use anyhow::{Result, ensure};
use clap::Args;

use crate::step::step;
use crate::{check, image, setup, shell, twin};

/// The file of tests that starts the image.
const IMAGE_TEST: &str = "control_plane_image";

/// What to test.
#[derive(Args)]
pub(crate) struct Options {
    /// Passed to cargo test in place of "all root tests", such as `--test control_plane_smoke`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    selection: Vec<String>,
}

/// Runs everything, or with a selection only what the selected root tests need.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        shell::is_root(),
        "the tests make network namespaces and load eBPF programs: they need root\n\
         remedy: sudo -E env \"PATH=$PATH\" cargo xtask test (`cargo xtask check` does not need it)"
    );
    setup::run()?;
    if options.selection.is_empty() {
        check::run()?;
    }
    step("build", "cold 5 min, warm 5 s", || {
        shell::run(shell::cargo().args(["build", "--workspace"]), "mend what cargo names")
    })?;
    if options.selection.is_empty() {
        twin::compare(false)?;
    }
    let tries_image =
        |word: &String| word == IMAGE_TEST || word.ends_with(&format!("={IMAGE_TEST}"));
    if options.selection.is_empty() || options.selection.iter().any(tries_image) {
        step("image", "cold 5 min, warm 10 s", image::run)?;
    }
    step("tests with root", "11 min", || root_tests(&options.selection))
}

fn root_tests(selection: &[String]) -> Result<()> {
    let threads = env::var("RUST_TEST_THREADS").unwrap_or_else(|_| "1".to_owned());
    let everything = ["--test".to_owned(), "*".to_owned()];
    let selection = if selection.is_empty() { &everything } else { selection };
    shell::run(
        shell::cargo()
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(selection)
            .env("RUST_TEST_THREADS", threads),
        "read the failure above; `cargo xtask test --test NAME` runs one file of tests",
    )
}
