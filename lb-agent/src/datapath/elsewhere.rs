//! Finds programs of another lb-agent on interfaces of this namespace, with links pinned below another `--bpf-dir`:
//! they would keep deciding by maps that no agent updates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use aya::maps::MapInfo;
use aya::programs::loaded_programs;

use super::role::Direction;
use super::{CLASSIFIERS, Error, L3, attached_programs, bpffs, cleanup};
use crate::syscall;

/// How deep below a mount a `--bpf-dir` is looked for.
const DEPTH: usize = 4;
/// Maps by which a program that has the name of one of ours is ours.
const MAPS: [&str; 2] = ["SERVICES", "BACKEND_FILTER"];

/// Refuses to begin beside another run's programs, and says where that one's pins are.
pub(super) fn refuse(dir: &Path) -> Result<(), Error> {
    let own = links_below(dir);
    let own: BTreeSet<u32> = own.into_keys().collect();
    let foreign: Vec<(String, u32, u32)> =
        attached().into_iter().filter(|(_, link, _)| !own.contains(link)).collect();
    if foreign.is_empty() {
        return Ok(());
    }
    let mut pinned = BTreeMap::new();
    for mount in bpffs::mounts() {
        walk(&mount, DEPTH, &mut pinned);
    }
    let of = |(device, link, _): &(String, u32, u32)| {
        Some((device.clone(), Some(pinned.get(link)?.clone())))
    };
    let by_name = || {
        let is_ours = |(_, _, program): &&(String, u32, u32)| is_ours(*program);
        foreign.iter().find(is_ours).map(|(device, ..)| (device.clone(), None))
    };
    match foreign.iter().find_map(of).or_else(by_name) {
        Some((device, directory)) => {
            Err(Error::Elsewhere { device, directory, dir: dir.to_owned() })
        }
        None => Ok(()),
    }
}

/// Every link at a device of this namespace: the device, the numbers of link and program.
fn attached() -> Vec<(String, u32, u32)> {
    let Ok(devices) = nix::net::if_::if_nameindex() else { return Vec::new() };
    let mut all = Vec::new();
    for device in &devices {
        for direction in Direction::BOTH {
            let hooked = attached_programs(device.index(), direction).unwrap_or_default();
            let name = device.name().to_string_lossy();
            let linked = hooked.into_iter().filter(|hooked| hooked.link != 0);
            all.extend(linked.map(|hooked| (name.to_string(), hooked.link, hooked.program)));
        }
    }
    all
}

/// Links that are pinned below a `--bpf-dir`, by number.
fn links_below(dir: &Path) -> BTreeMap<u32, PathBuf> {
    let mut pinned = BTreeMap::new();
    for layout in cleanup::layouts(dir).unwrap_or_default() {
        for path in cleanup::list(&layout.join("links")).unwrap_or_default() {
            if let Ok(number) = number(&path) {
                drop(pinned.insert(number, dir.to_owned()));
            }
        }
    }
    pinned
}

fn number(path: &Path) -> io::Result<u32> {
    Ok(syscall::link_info(syscall::open_pin(path)?.as_fd())?.id)
}

/// Those of every `--bpf-dir` from a directory on.
fn walk(directory: &Path, depth: usize, pinned: &mut BTreeMap<u32, PathBuf>) {
    pinned.extend(links_below(directory));
    if depth == 0 {
        return;
    }
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.for_each(|entry| walk(&entry.path(), depth - 1, pinned));
}

/// Whether a program is one of ours by its name and by the names of its maps. Only who may look programs up can tell.
fn is_ours(program: u32) -> bool {
    let Some(info) = loaded_programs().filter_map(Result::ok).find(|it| it.id() == program) else {
        return false;
    };
    let names = CLASSIFIERS.iter().chain(&L3);
    let is_named = info.name_as_str().is_some_and(|name| names.into_iter().any(|it| *it == name));
    let maps = info.map_ids().ok().flatten().unwrap_or_default();
    let maps: Vec<MapInfo> = maps.into_iter().filter_map(|id| MapInfo::from_id(id).ok()).collect();
    let has = |name: &&str| maps.iter().any(|map| map.name_as_str() == Some(name));
    is_named && MAPS.iter().any(has)
}
