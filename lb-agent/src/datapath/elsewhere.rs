//! Finds programs of another lb-agent at hooks of this namespace whose links are pinned below another `--bpf-dir`. They
//! would keep translating with maps that no agent updates.

mod hooks;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use aya::maps::MapInfo;
use aya::programs::loaded_programs;

use self::hooks::{HookKind, OccupiedHook};
use super::error::Error;
use super::names::{CLASSIFIERS, L3, kernel_name};
use super::open::serves_here;
use super::pins::{self, layouts, maps_directory};
use super::{bpffs, lock};
use crate::maps::Maps;

/// Depth below a mount point to which a `--bpf-dir` is searched.
const DEPTH: usize = 4;
/// A program with the name of one of ours is ours if it uses one of these maps.
const MAPS: [&str; 2] = ["SERVICES", "BACKEND_FILTER"];

/// Refuses to start beside programs of another run. The error names the place of their pins.
///
/// Programs without visible pins are found only with `CAP_SYS_ADMIN`: `lb-agent init` has it, the agent in its
/// container does not.
pub fn refuse(dir: &Path, cgroup: &Path) -> Result<(), Error> {
    let Some((hook, other)) = find(dir, hooks::all(cgroup)) else { return Ok(()) };
    let remedy = remedy(&hook, other.as_ref());
    let (place, pins, dir) = (hook.to_string(), place_of_pins(other.as_ref()), dir.to_owned());
    Err(Error::Elsewhere { place, pins, dir, remedy })
}

/// Names an interface of this namespace with programs of another `--bpf-dir`, and the place of their pins.
pub fn other_data_path(dir: &Path) -> Option<String> {
    let (hook, other) = find(dir, hooks::of_devices().unwrap_or_default())?;
    Some(format!("{hook}, pins {}", place_of_pins(other.as_ref())))
}

/// Finds programs of another run among those at hooks, with its `--bpf-dir` if that is visible from here.
fn find(dir: &Path, mut foreign: Vec<OccupiedHook>) -> Option<(OccupiedHook, Option<PathBuf>)> {
    let own = Pinned::below(dir);
    foreign.retain(|hook| !own.has(hook));
    if foreign.is_empty() {
        return None;
    }
    let mut others = Vec::new();
    for mount in bpffs::mounts() {
        walk(&mount, DEPTH, &mut others);
    }
    let of = |hook: &OccupiedHook| {
        let mut holders = others.iter().filter(|(_, pinned)| pinned.has(hook));
        let (other, _) = holders.find(|(other, _)| !hook.is_of_sockets() || is_here(other))?;
        Some((hook.clone(), Some(other.clone())))
    };
    // Only tc hooks are judged by name. A socket hook does not show which network namespace it serves: agents of
    // several namespaces may share a cgroup. An XDP program of another owner is left alone whatever its name is (ADR
    // 0012).
    let by_name = |hook: &OccupiedHook| {
        (hook.is_of_tc() && is_ours(hook.program)).then(|| (hook.clone(), None))
    };
    // Hooks with visible pins come first, since only these name the directory that the remedy needs.
    foreign.iter().find_map(of).or_else(|| foreign.iter().find_map(by_name))
}

fn place_of_pins(other: Option<&PathBuf>) -> String {
    other.map_or_else(
        || "not visible from here".to_owned(),
        |other| format!("below {}", other.display()),
    )
}

fn remedy(hook: &OccupiedHook, other: Option<&PathBuf>) -> String {
    if let HookKind::Filter { device, direction, priority, handle } = &hook.kind {
        // No version of the agent attaches tc filters, so no cleanup removes them.
        let direction = direction.name();
        return format!(
            "remove it with `tc filter delete dev {device} {direction} pref {priority} handle {handle:#x} bpf`"
        );
    }
    let Some(other) = other else {
        return "stop that agent, then run `lb-agent cleanup` with its --bpf-dir where it ran"
            .to_owned();
    };
    let first = lock::runs(other).map_or_else(String::new, |process| {
        let process = process.map(|id| format!(" (process {id})")).unwrap_or_default();
        format!("stop that agent{process}, then ")
    });
    format!(
        "{first}run this agent with --bpf-dir {0}, or remove them with `lb-agent cleanup --bpf-dir {0}` (one agent \
         serves a network namespace)",
        other.display()
    )
}

/// The ids of links and programs pinned below a `--bpf-dir`.
#[derive(Debug, Default)]
struct Pinned {
    links: BTreeSet<u32>,
    programs: BTreeSet<u32>,
}

impl Pinned {
    fn below(dir: &Path) -> Self {
        let mut pinned = Self::default();
        for layout in layouts(dir).unwrap_or_default() {
            for link in pins::links(&layout) {
                let _: bool = pinned.links.insert(link.id);
                let _: bool = pinned.programs.insert(link.program);
            }
            pinned.programs.extend(pins::programs(&layout).map(|(id, _)| id));
        }
        pinned
    }

    fn has(&self, hook: &OccupiedHook) -> bool {
        match hook.link {
            Some(link) => self.links.contains(&link),
            None => self.programs.contains(&hook.program),
        }
    }

    fn is_empty(&self) -> bool {
        self.links.is_empty() && self.programs.is_empty()
    }
}

/// Finds every `--bpf-dir` from a directory down, with the ids of its pins.
fn walk(directory: &Path, depth: usize, found: &mut Vec<(PathBuf, Pinned)>) {
    let pinned = Pinned::below(directory);
    if !pinned.is_empty() {
        found.push((directory.to_owned(), pinned));
    }
    // The depth is limited: other programs may keep large trees in a bpffs.
    if depth == 0 {
        return;
    }
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.for_each(|entry| walk(&entry.path(), depth - 1, found));
}

/// Reports whether the data path below a `--bpf-dir` serves this network namespace. False if that is not known.
fn is_here(dir: &Path) -> bool {
    let maps = Maps::open(&maps_directory(dir));
    maps.is_ok_and(|maps| serves_here(&maps).unwrap_or(false))
}

/// Reports whether a program is one of ours, by its name and by the names of its maps. False without `CAP_SYS_ADMIN`,
/// which looking up programs by id needs (`bpf_prog_get_fd_by_id` in `kernel/bpf/syscall.c`).
fn is_ours(program: u32) -> bool {
    let Some(info) = loaded_programs().filter_map(Result::ok).find(|it| it.id() == program) else {
        return false;
    };
    let mut names = CLASSIFIERS.iter().chain(&L3);
    let is_named = info.name_as_str().is_some_and(|name| names.any(|it| kernel_name(it) == name));
    // The name of a program is not proof: another project may use it.
    let maps = info.map_ids().ok().flatten().unwrap_or_default();
    let maps: Vec<MapInfo> = maps.into_iter().filter_map(|id| MapInfo::from_id(id).ok()).collect();
    let has = |name: &&str| maps.iter().any(|map| map.name_as_str() == Some(name));
    is_named && MAPS.iter().any(has)
}
