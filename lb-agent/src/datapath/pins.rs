//! The pins below a `--bpf-dir`: their paths and the meaning of their names; lists and removes them.
//!
//! A layout has the directories `maps`, `programs`, `links` and `meanings`. The pin of a link is named by its interface
//! index and its hook: bpffs refuses names with a dot, which interfaces may have. A pin whose name ends in `-old`
//! belongs to an earlier run: it remains for a while beside the pin that now has the name without the suffix.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use super::error::{Error, pin};
use super::names::{LAYOUT, kernel_name};
use super::role::Direction;
use crate::syscall::{self, LinkInfo};

/// Suffix of the pin of an earlier run's link, which remains for a while.
const ASIDE: &str = "-old";
/// Suffix of the pin of an XDP link.
const XDP: &str = "-xdp";

/// Returns the directory where the maps of a data path are pinned.
pub fn maps_directory(bpf_dir: &Path) -> PathBuf {
    bpf_dir.join(LAYOUT).join("maps")
}

/// Returns the pin of the tc link of an interface.
pub(super) fn of_device(links: &Path, index: u32, direction: Direction) -> PathBuf {
    links.join(format!("{index}-{}", direction.name()))
}

/// Returns the pin of the XDP link of an interface.
pub(super) fn of_xdp(links: &Path, index: u32) -> PathBuf {
    links.join(format!("{index}{XDP}"))
}

/// Returns the pin of the earlier run's link that remains beside a link of ours.
pub(super) fn aside(link: &Path) -> PathBuf {
    let mut name: OsString = link.into();
    name.push(ASIDE);
    name.into()
}

/// Reports whether a pin is that of an earlier run's link, beside one of ours.
pub(super) fn is_aside(path: &Path) -> bool {
    path.to_string_lossy().ends_with(ASIDE)
}

/// Reports whether any interface has a pinned XDP link; true if the pins cannot be read.
pub(super) fn has_xdp(links: &Path) -> bool {
    let is_its = |entry: io::Result<DirEntry>| {
        entry.map_or(true, |entry| entry.file_name().as_encoded_bytes().ends_with(XDP.as_bytes()))
    };
    fs::read_dir(links).map_or(true, |mut entries| entries.any(is_its))
}

/// Reports whether no link is pinned yet; true if the directory cannot be read.
pub(super) fn is_empty(links: &Path) -> bool {
    fs::read_dir(links).map_or(true, |mut links| links.next().is_none())
}

/// Returns the indices of the interfaces that have a pinned link, sorted.
pub(super) fn devices(links: &Path) -> Result<Vec<u32>, Error> {
    let names = fs::read_dir(links).map_err(pin(links))?;
    let mut devices: Vec<u32> = names
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.split_once('-')?.0.parse().ok())
        .collect();
    devices.sort_unstable();
    devices.dedup();
    Ok(devices)
}

/// Returns the indices of the interfaces that have a pinned XDP link.
pub(super) fn accelerated(links: &Path) -> Result<Vec<u32>, Error> {
    let index = |path: PathBuf| path.file_name()?.to_str()?.strip_suffix(XDP)?.parse().ok();
    Ok(list(links)?.into_iter().filter_map(index).collect())
}

/// Returns the directories of all layouts (`v` and a number), ours included.
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

/// Returns the paths in a directory, sorted; empty if the directory does not exist.
pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(pin(directory)(error)),
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

/// Returns the ids and names of the programs that are pinned in the directory of a layout, and of those that only a
/// link keeps.
pub fn pinned_programs(layout: &Path) -> BTreeMap<u32, String> {
    let of_links = links(layout).map(|link| (link.program, "lb-agent".to_owned()));
    let mut names: BTreeMap<u32, String> = of_links.collect();
    names.extend(programs(layout));
    names
}

/// Returns the links that are pinned in the directory of a layout and can be read.
pub(super) fn links(layout: &Path) -> impl Iterator<Item = LinkInfo> + use<> {
    list(&layout.join("links")).unwrap_or_default().into_iter().filter_map(|pin| link(&pin))
}

/// Returns the ids of the programs that are pinned in the directory of a layout, and the names that the kernel shows.
pub(super) fn programs(layout: &Path) -> impl Iterator<Item = (u32, String)> + use<> {
    let all = |directory: PathBuf| list(&directory).unwrap_or_default();
    // One directory for each object: `programs/<object>/<name>`.
    let pins = all(layout.join("programs")).into_iter().flat_map(all);
    pins.filter_map(|pin| {
        let program = syscall::open_pin(&pin).ok()?;
        let name = kernel_name(pin.file_name()?.to_str()?).to_owned();
        Some((syscall::program_id(program.as_fd()).ok()?, name))
    })
}

/// Returns the description of a pinned link; `None` if it cannot be read.
pub(super) fn link(pin: &Path) -> Option<LinkInfo> {
    syscall::link_info(syscall::open_pin(pin).ok()?.as_fd()).ok()
}

/// Removes a pin, if it exists.
pub(super) fn remove_pin(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(pin(path)(source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Removes a directory with everything below it, if it exists, and adds each removed pin to `removed`.
pub(super) fn remove(directory: &Path, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
    for path in list(directory)? {
        if path.is_dir() {
            remove(&path, removed)?;
        } else {
            fs::remove_file(&path).map_err(pin(&path))?;
            removed.push(path);
        }
    }
    match fs::remove_dir(directory) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(pin(directory)(source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_says_that_some_device_has_xdp() {
        let directory = tempfile::tempdir().unwrap();
        let links = directory.path();
        fs::write(links.join("2-ingress"), "").unwrap();
        assert!(!has_xdp(links));
        assert!(accelerated(links).unwrap().is_empty());
        fs::write(of_xdp(links, 2), "").unwrap();
        assert!(has_xdp(links));
        assert_eq!(accelerated(links).unwrap(), [2]);
        remove_pin(&of_xdp(links, 2)).unwrap();
        assert!(!has_xdp(links));
        assert!(has_xdp(&links.join("nowhere")), "unknown counts as true");
    }

    #[test]
    fn pin_that_was_moved_aside_belongs_to_its_interface() {
        let directory = tempfile::tempdir().unwrap();
        let link = of_device(directory.path(), 7, Direction::Egress);
        fs::write(aside(&link), "").unwrap();
        assert!(is_aside(&aside(&link)) && !is_aside(&link));
        assert_eq!(devices(directory.path()).unwrap(), [7]);
    }
}
