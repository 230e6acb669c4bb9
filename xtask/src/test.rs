//! `cargo xtask test`: set-up, checks, build, and then the tests that need root.
//!
//! The files of root tests run in three parallel lanes, and by default one test at a time in each lane (a few files
//! whose tests all wait for a clock run several): every test has its own namespaces, and mostly waits for a kernel, an
//! agent or a control plane. With more at once on two cores, deadlines would depend on luck. `--lanes` and
//! `RUST_TEST_THREADS` override this. No test can stop the run: see `docs/testing.md`.

use std::env;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::step::step;
use crate::{check, differential, image, setup, shell, workspace};

mod attempt;
pub(crate) mod binaries;
mod budget;
mod events;
mod junit;
mod limit;
mod machine;
mod parallel;
mod picture;
mod report;
#[cfg(test)]
mod tests;
mod tree;

/// The prefix of the line that a test prints if its kernel lacks what it needs (`lb_tests::kinds`).
pub(crate) const SKIPPED: &str = "skipped: ";
/// The test file that runs the image.
const IMAGE_TEST: &str = "control_plane_image";

/// The selection of tests.
#[derive(Args)]
pub(crate) struct Options {
    /// Number of files of root tests that run in parallel
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    lanes: u8,
    /// Time limit of the run, such as 70m: files that do not fit are named, and the run fails
    #[arg(long, value_parser = budget::duration)]
    within: Option<Duration>,
    /// Passed to cargo test in place of "all root tests", such as `--test control_plane_smoke`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    selection: Vec<String>,
}

/// Runs everything, or with a selection only the selected root tests and what they need.
pub(crate) fn run(options: &Options) -> Result<()> {
    shell::need_root(
        "tests create network namespaces and load eBPF programs",
        "test (`cargo xtask check` does not need it)",
    )?;
    let budget = budget::Budget::new(options.within);
    let watch = budget.watch();
    setup::run()?;
    if !options.selection.is_empty() {
        let files = files(&options.selection);
        if files.is_empty() {
            shell::build(&[&workspace::ALL_BUT_BENCH[..], &["--all-targets"]].concat())?;
        } else {
            binaries::build(&files)?;
        }
        if files.contains(&IMAGE_TEST) {
            image()?;
        }
        return step("selected tests with root", "depends", || selected(&options.selection));
    }
    check::lints()?;
    // Built together: while one crate is compiled that others wait for, the other CPU has work.
    shell::build(&["--workspace", "--all-targets"])?;
    check::tests().inspect_err(|_| said_by_nextest())?;
    step("arm64", "cold 2 min, warm 1 s", image::check_arm64)?;
    differential::compare(false)?;
    image()?;
    let binaries =
        step("build of the tests with root", "cold 1 min, warm 1 s", || binaries::built(&["*"]))?;
    drop(watch);
    step("tests with root", "10 min", || with_root(options, budget, &binaries))
}

/// Runs test files with root; the last lines of the output summarise the run.
fn with_root(
    options: &Options,
    budget: budget::Budget,
    binaries: &[binaries::Binary],
) -> Result<()> {
    let threads = threads();
    let run = parallel::ParallelRun {
        count: options.lanes.into(),
        threads: threads.as_deref(),
        logs: &workspace::target().join("test-logs"),
        budget,
        times: &budget::times(),
    };
    let mut report = run.run(binaries)?;
    let nextest = check::junit();
    report.without_root = junit::numbers(&nextest).unwrap_or_default();
    budget::keep(&report.times())?;
    let file = junit::write(&report, &nextest, &workspace::target())?;
    println!("\nJUnit report: {}", file.display());
    print!("{}", report.text(budget.spent()));
    ensure!(
        report.is_green(),
        "not every test passed\nremedy: read the logs named above; `cargo xtask test --test NAME` runs one file of tests"
    );
    Ok(())
}

/// The last lines of a run that ends with its tests without root.
fn said_by_nextest() {
    if let Some((passed, failed)) = junit::numbers(&check::junit()) {
        println!("no test with root was run\n{passed} passed, {failed} failed");
    }
}

fn image() -> Result<()> {
    step("image of the debug build", "cold 5 s, warm 1 s", image::for_tests)
}

/// Returns the test files that a selection names, as `--test NAME` or `--test=NAME`.
fn files(selection: &[String]) -> Vec<&str> {
    let words = selection.iter().map(String::as_str).take_while(|word| *word != "--");
    let words: Vec<&str> = words.collect();
    let pairs = words.iter().zip(words.iter().skip(1));
    let apart = pairs.filter(|(word, _)| **word == "--test").map(|(_, name)| *name);
    apart.chain(words.iter().filter_map(|word| word.strip_prefix("--test="))).collect()
}

fn selected(selection: &[String]) -> Result<()> {
    shell::run(
        shell::cargo()
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(selection)
            .env("RUST_TEST_THREADS", threads().as_deref().unwrap_or("1")),
        "read the failure above; `cargo xtask test --test NAME` runs one file of tests",
    )
}

/// The number of parallel tests within one file, if `RUST_TEST_THREADS` sets it.
fn threads() -> Option<String> {
    env::var("RUST_TEST_THREADS").ok()
}
