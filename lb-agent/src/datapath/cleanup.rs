//! Removes the data path: every link, program, map and pin, of every layout, and reports what was removed.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::umount;

use super::bpffs;
use super::detach::remove_layout;
use super::error::{Error, pin};
use super::lock::Lock;
use super::pins::{layouts, list};

/// The removed pins, and the unmounted bpffs.
#[derive(Debug, Default)]
pub struct Removed {
    /// Paths of links (attachments), then of programs, maps and directories.
    pub pins: Vec<PathBuf>,
    /// The bpffs, if this agent had mounted it.
    pub unmounted: Option<PathBuf>,
}

/// Removes everything below a `--bpf-dir`. When it returns, no program translates packets to Services any more.
///
/// Error: an agent is running there.
pub fn cleanup(dir: &Path) -> Result<Removed, Error> {
    let mut removed = Removed::default();
    // Pins exist on a bpffs only; without one, the directory may belong to anything else.
    if !bpffs::is_bpffs(dir) {
        return Ok(removed);
    }
    // An agent that runs would restore each pin and link that is removed here.
    let lock = Lock::take(dir)?;
    for layout in layouts(dir)? {
        remove_layout(&layout, &mut removed.pins)?;
    }
    // The lock is an open directory, which would keep the bpffs busy.
    drop(lock);
    if bpffs::is_ours(dir) && is_empty(dir) {
        umount(dir).map_err(|error| pin(dir)(error.into()))?;
        removed.unmounted = Some(dir.to_owned());
    } else if fs::remove_dir(dir).is_ok() {
        removed.pins.push(dir.to_owned());
    }
    Ok(removed)
}

/// Reports whether the bpffs contains only what the kernel creates in each one.
fn is_empty(dir: &Path) -> bool {
    const OF_THE_KERNEL: [&str; 2] = ["maps.debug", "progs.debug"];
    list(dir).is_ok_and(|paths| {
        paths.iter().all(|path| OF_THE_KERNEL.iter().any(|name| path.ends_with(name)))
    })
}
