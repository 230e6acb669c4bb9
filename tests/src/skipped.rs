//! The line of a test that cannot run because the kernel of this machine lacks something.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

/// Says that a test is skipped, for `cargo xtask test`, which counts it as ignored. `lacks`: what the kernel lacks.
pub fn skipped(lacks: &str) -> Result<()> {
    // Written to the file descriptor, because libtest would capture and discard the output of a test that passes.
    let line = format!("skipped: this kernel has no {lacks}\n");
    io::stdout().write_all(line.as_bytes()).context("standard output")
}
