//! Removes the data path: every link, program, map and pin, of every layout, and reports what was removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::umount;

use super::detach::let_go_of;
use super::lock::Lock;
use super::{Error, bpffs, upgrade};
use crate::syscall;

/// Directories of a layout, in the order of removal. Links come first, so that no program runs on maps that are partly
/// removed.
const PARTS: [&str; 4] = ["links", "programs", "maps", upgrade::DIRECTORY];

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
    if !bpffs::is_bpffs(dir) {
        return Ok(removed);
    }
    let lock = Lock::take(dir)?;
    for layout in layouts(dir)? {
        remove_layout(&layout, &mut removed.pins)?;
    }
    // The lock is an open directory, which would keep the bpffs busy.
    drop(lock);
    if bpffs::is_ours(dir) && is_empty(dir) {
        umount(dir).map_err(|error| pin(dir, error.into()))?;
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

/// Returns the directories of all layouts, of this build and others.
pub(super) fn layouts(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let is_layout = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix('v'));
        path.is_dir() && number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let mut layouts = list(dir)?;
    layouts.retain(is_layout);
    Ok(layouts)
}

/// Removes everything of one layout. When it returns, no packet is inside its programs.
pub(super) fn remove_layout(layout: &Path, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
    let links = let_go_of(&layout.join("links"), |_| true)?;
    if !links.is_empty() {
        syscall::wait_for_programs();
    }
    removed.extend(links);
    // Links first, then programs and maps: nothing that runs loses its maps.
    PARTS.iter().try_for_each(|part| remove(&layout.join(part), removed))?;
    remove(layout, removed)
}

pub(super) fn remove(directory: &Path, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
    for path in list(directory)? {
        if path.is_dir() {
            remove(&path, removed)?;
        } else {
            fs::remove_file(&path).map_err(|error| pin(&path, error))?;
            removed.push(path);
        }
    }
    match fs::remove_dir(directory) {
        // Another cleanup may run at the same time.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(pin(directory, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(pin(directory, error)),
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // So that outputs and tests see a fixed order.
    paths.sort();
    Ok(paths)
}

fn pin(path: &Path, source: io::Error) -> Error {
    Error::Pin { path: path.to_owned(), source }
}
