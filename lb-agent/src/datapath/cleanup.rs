//! Ends the data path: removes every link, program, map and pin, of every layout, and says which.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::umount;

use super::bpffs;
use super::detach::remove_layout;
use super::error::{Error, pin};
use super::lock::Lock;
use super::pins::{layouts, list};

/// The pins that were removed, and the bpffs.
#[derive(Debug, Default)]
pub struct Removed {
    /// Links (attachments), then programs, maps and directories, as paths.
    pub pins: Vec<PathBuf>,
    /// The bpffs that we had mounted.
    pub unmounted: Option<PathBuf>,
}

/// Removes everything below a `--bpf-dir`. Packets to services are nobody's business once it returns.
///
/// Fails when an agent is running there.
pub fn cleanup(dir: &Path) -> Result<Removed, Error> {
    let mut removed = Removed::default();
    if !bpffs::is_bpffs(dir) {
        return Ok(removed);
    }
    let lock = Lock::take(dir)?;
    for layout in layouts(dir)? {
        remove_layout(&layout, &mut removed.pins)?;
    }
    drop(lock);
    if bpffs::is_ours(dir) && is_empty(dir) {
        umount(dir).map_err(|error| pin(dir)(error.into()))?;
        removed.unmounted = Some(dir.to_owned());
    } else if fs::remove_dir(dir).is_ok() {
        removed.pins.push(dir.to_owned());
    }
    Ok(removed)
}

/// Whether only what every bpffs has is left.
fn is_empty(dir: &Path) -> bool {
    const OF_THE_KERNEL: [&str; 2] = ["maps.debug", "progs.debug"];
    list(dir).is_ok_and(|paths| {
        paths.iter().all(|path| OF_THE_KERNEL.iter().any(|name| path.ends_with(name)))
    })
}
