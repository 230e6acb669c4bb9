//! Ends the data path: removes every link, program, map and pin, of every layout, and says which.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::umount;

use super::detach::let_go_of;
use super::lock::Lock;
use super::{Error, bpffs, upgrade};
use crate::syscall;

/// The parts of a layout's directory. Links first: nothing looks at a map that is half gone.
const PARTS: [&str; 4] = ["links", "programs", "maps", upgrade::DIRECTORY];

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
        umount(dir).map_err(|error| pin(dir, error.into()))?;
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

/// The directories of layouts, ours and others'.
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

/// Removes everything of one layout; no packet is on its way through its programs when this returns.
pub(super) fn remove_layout(layout: &Path, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
    let links = let_go_of(&layout.join("links"), |_| true)?;
    if !links.is_empty() {
        syscall::wait_for_programs();
    }
    removed.extend(links);
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
    paths.sort();
    Ok(paths)
}

fn pin(path: &Path, source: io::Error) -> Error {
    Error::Pin { path: path.to_owned(), source }
}
