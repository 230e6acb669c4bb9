//! The directory of one control plane, removed when its owner ends.

use std::env;
use std::fs;
use std::process;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::process::ensure_root;
use crate::topology::leftovers::DIRECTORY;

/// Makes a directory that is removed with its value; the next topology removes the directory of a killed owner.
///
/// With `LB_TESTS_KEEP` in the environment it stays until then, so that a person can read the logs.
pub(crate) fn create(purpose: &str) -> Result<TempDir> {
    ensure_root()?;
    fs::create_dir_all(DIRECTORY).with_context(|| format!("directory {DIRECTORY}"))?;
    tempfile::Builder::new()
        .prefix(&format!("{}-{purpose}-", process::id()))
        .disable_cleanup(env::var_os("LB_TESTS_KEEP").is_some())
        .tempdir_in(DIRECTORY)
        .with_context(|| format!("directory in {DIRECTORY}"))
}
