//! Directories that replace those of a machine, with mounts that propagate between pods and host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

/// Makes a directory with shared mount propagation, as systemd makes all mounts. A pod with `mountPropagation:
/// Bidirectional` can add mounts to it.
pub(super) fn shared(directory: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&directory).with_context(|| format!("directory {}", directory.display()))?;
    let on = |source: Option<&Path>, flags| {
        mount(source, &directory, None::<&str>, flags, None::<&str>)
            .with_context(|| format!("mount at {}", directory.display()))
    };
    on(Some(&directory), MsFlags::MS_BIND)?;
    on(None, MsFlags::MS_SHARED)?;
    Ok(directory)
}

/// Whether a bpf filesystem is mounted there.
pub(super) fn is_bpffs(directory: &Path) -> bool {
    statfs(directory).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}
