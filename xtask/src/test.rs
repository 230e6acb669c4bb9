//! `cargo xtask test`: set-up, checks, build, and then the tests that need root.
//!
//! The files of root tests run in three lanes side by side, and by default one test at a time in each of them (a few
//! where all wait for a clock): every test has its own namespaces, and mostly waits for a kernel, an agent or a control
//! plane. More at once would on two cores turn deadlines into luck. `--lanes` and `RUST_TEST_THREADS` override this. Three
//! files run by themselves at the end.

use std::env;

use anyhow::Result;
use clap::Args;

use crate::step::step;
use crate::{check, image, setup, shell, twin};

/// The file of tests that starts the image.
const IMAGE_TEST: &str = "control_plane_image";

pub(crate) mod binaries;
mod limit;
mod parallel;

/// The selection of tests.
#[derive(Args)]
pub(crate) struct Options {
    /// How many files of root tests run in parallel
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    lanes: u8,
    /// Passed to cargo test in place of "all root tests", such as `--test control_plane_smoke`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    selection: Vec<String>,
}

/// Runs everything, or with a selection only what the selected root tests need.
pub(crate) fn run(options: &Options) -> Result<()> {
    shell::need_root(
        "tests create network namespaces and load eBPF programs",
        "test (`cargo xtask check` does not need it)",
    )?;
    setup::run()?;
    if !options.selection.is_empty() {
        shell::build(&["--workspace"])?;
        let tries_image =
            |word: &String| word == IMAGE_TEST || word.ends_with(&format!("={IMAGE_TEST}"));
        if options.selection.iter().any(tries_image) {
            image()?;
        }
        return step("selected tests with root", "depends", || selected(&options.selection));
    }
    check::run()?;
    step("arm64", "cold 2 min, warm 1 s", image::check_arm64)?;
    shell::build(&["--workspace"])?;
    twin::compare(false)?;
    image()?;
    let binaries =
        step("build of the tests with root", "cold 1 min, warm 1 s", || binaries::built(&["*"]))?;
    step("tests with root", "12 min", || {
        parallel::run(binaries, options.lanes.into(), threads().as_deref())
    })
}

fn image() -> Result<()> {
    step("image", "cold 5 min, warm 10 s", || image::run(&image::Options::default()))
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

/// Tests at once within one file, if somebody says how many.
fn threads() -> Option<String> {
    env::var("RUST_TEST_THREADS").ok()
}
