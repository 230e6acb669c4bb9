//! Folders that stand for those of a machine, as mounts that pods and host share.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

/// Makes a folder whose mounts a pod with `mountPropagation: Bidirectional` may add to, as systemd makes all of them.
pub(super) fn shared(folder: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&folder).with_context(|| format!("folder {}", folder.display()))?;
    let on = |source: Option<&Path>, flags| {
        mount(source, &folder, None::<&str>, flags, None::<&str>)
            .with_context(|| format!("mount at {}", folder.display()))
    };
    on(Some(&folder), MsFlags::MS_BIND)?;
    on(None, MsFlags::MS_SHARED)?;
    Ok(folder)
}

/// Whether a bpf filesystem is there.
pub(super) fn is_bpffs(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}
