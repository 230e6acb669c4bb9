//! Where things lie: the clone, and the cache outside of it that survives a fresh clone.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Returns the root of this clone.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Returns cargo's target folder.
pub(crate) fn target() -> PathBuf {
    let folder = env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty());
    folder.map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns the folder for what is expensive to make and belongs to no single clone.
pub(crate) fn cache() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(
            env::var_os("HOME")
                .context("neither XDG_CACHE_HOME nor HOME is set: set one of them")?,
        )
        .join(".cache"),
    };
    Ok(base.join("lb-agent"))
}
