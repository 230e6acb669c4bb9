//! Ends the data path: removes every link, program, map and pin, of every layout, and says which.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use nix::mount::umount;

use super::lock::Lock;
use super::{Error, bpffs, meaning};
use crate::syscall;

/// What is in a layout's folder. Links first: nothing looks at a map that is half gone.
const PARTS: [&str; 4] = ["links", "programs", "maps", meaning::FOLDER];

/// What was removed.
#[derive(Debug, Default)]
pub struct Removed {
    /// Links (attachments), then programs, maps and folders, as paths.
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

/// The folders of layouts, ours and others'.
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

/// Removes everything of one layout.
pub(super) fn remove_layout(layout: &Path, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
    detach(&layout.join("links"))?;
    PARTS.iter().try_for_each(|part| remove(&layout.join(part), removed))?;
    remove(layout, removed)
}

/// Takes links off what they are attached to and waits until no packet is on its way through them: without their pins
/// they would go some milliseconds later, and a connection that begins meanwhile would have half of its packets
/// translated. What lets flows begin goes first, so that answers under way are translated for longer.
fn detach(links: &Path) -> Result<(), Error> {
    let mut paths = list(links)?;
    paths.retain(|path| path.is_file());
    paths.sort_by_key(|path| brings_answers(path));
    for path in &paths {
        // What is no link of ours, or is off already, has nothing to take off; its pin goes all the same.
        if let Ok(link) = syscall::open_pin(path) {
            drop(syscall::detach_link(link.as_fd()));
        }
    }
    if !paths.is_empty() {
        syscall::wait_for_programs();
    }
    Ok(())
}

/// Whether answers pass by a link of this name, and no questions.
fn brings_answers(link: &Path) -> bool {
    let name = link.file_name().unwrap_or_default().to_string_lossy();
    ["egress", "recvmsg", "peername"].iter().any(|part| name.contains(part))
}

pub(super) fn remove(folder: &Path, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
    for path in list(folder)? {
        if path.is_dir() {
            remove(&path, removed)?;
        } else {
            fs::remove_file(&path).map_err(|error| pin(&path, error))?;
            removed.push(path);
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(pin(folder, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(pin(folder, error)),
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

fn pin(path: &Path, source: io::Error) -> Error {
    Error::Pin { path: path.to_owned(), source }
}
