//! Loads programs from the object: the kernel verifies them, and they are pinned.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use aya::Ebpf;
use aya::maps::MapInfo;
use aya::programs::{CgroupSockAddr, Program, ProgramError, ProgramInfo, SchedClassifier, Xdp};
use lb_common::forward::Stage;
use tracing::debug;

use super::object::object;
use super::paths::{self, connect_l3_paths, connect_paths, connect_xdp_paths};
use crate::datapath::error::{Error, pin};
use crate::datapath::names::{CLASSIFIERS, L3, L3_PATHS, PATHS, SOCKET_HOOKS, XDP, XDP_PATHS};
use crate::datapath::packet_log::PacketLog;
use crate::maps::SHAPES;
use crate::syscall;

/// Returns the programs that every node needs.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CLASSIFIERS.into_iter().chain(PATHS.map(|(_, name)| name)).chain(SOCKET_HOOKS)
}

/// Reports whether every program is pinned and they use exactly the pinned maps.
///
/// Each map is used by at least one program. A map that was recreated is not among the maps that the programs use.
pub(super) fn is_usable(directory: &Path, maps: &Path) -> bool {
    let id = |path: PathBuf| MapInfo::from_pin(path).map(|info| info.id());
    let uses = |name: &str| ProgramInfo::from_pin(directory.join(name)).ok()?.map_ids().ok()?;
    let pins = SHAPES.iter().map(|shape| (shape.name, maps.join(shape.name)));
    let pins = pins.chain(paths::pins(directory));
    let ids: Result<BTreeMap<&str, u32>, _> =
        pins.map(|(name, pin)| id(pin).map(|id| (name, id))).collect();
    let used: Option<Vec<Vec<u32>>> = names().map(uses).collect();
    let (Ok(mut ids), Some(used)) = (ids, used) else { return false };
    // These arrays are used only by programs that are loaded at their first use. Those that are attached are pinned
    // from then on.
    for (array, programs) in [(paths::L3_ARRAY, &L3[..]), (paths::XDP_ARRAY, &[XDP][..])] {
        let array = ids.remove(array);
        let is_other = |used: Vec<u32>| !array.is_some_and(|array| used.contains(&array));
        if programs.iter().any(|program| uses(program).is_some_and(is_other)) {
            return false;
        }
    }
    // Programs over other maps would look alike and read entries that are no longer written.
    let used: BTreeSet<u32> = used.into_iter().flatten().collect();
    ids.values().all(|id| used.contains(id))
}

/// Options for loading the object: paths, sizes and the packet log.
#[derive(Clone, Copy)]
pub(super) struct LoadOptions<'a> {
    /// Directory of the pinned maps. Missing ones are created.
    pub(super) maps: &'a Path,
    /// Directory for the pins of the programs.
    pub(super) programs: &'a Path,
    /// Entries of new maps, by name.
    pub(super) sizes: &'a BTreeMap<&'static str, u32>,
    pub(super) packet_log: PacketLog,
}

/// Loads the object and pins every program that a node needs.
pub(super) fn load(options: &LoadOptions<'_>) -> Result<Ebpf, Error> {
    let mut ebpf = object_over(options)?;
    verify_all(&mut ebpf)?;
    // The stages are connected before a program is pinned: an agent that is killed in between leaves no program that
    // looks usable and leads to an empty array.
    connect_paths(&mut ebpf)?;
    names().try_for_each(|name| pin_program(&mut ebpf, name, options.programs))?;
    if options.packet_log != PacketLog::Off {
        // A program that is loaded later would log to a ring buffer of its own, which is not read.
        load_l3(&mut ebpf, options)?;
    }
    Ok(ebpf)
}

/// Passes the programs that every node needs to the verifier, which takes most of a first start.
///
/// The stages that search for a flow take half of it, so they have a thread of their own, and the others share another.
/// Not more than two at a time: verification of each takes some ten megabytes of the agent's memory cgroup (ADR 0032).
fn verify_all(ebpf: &mut Ebpf) -> Result<(), Error> {
    let [mut searches, mut others, mut hooks]: [Vec<_>; 3] = Default::default();
    for (name, program) in ebpf.programs_mut() {
        let Some(name) = names().find(|it| *it == name) else { continue };
        let stage = PATHS.iter().find(|(_, path)| *path == name).map(|(stage, _)| stage);
        if SOCKET_HOOKS.contains(&name) {
            hooks.push((name, program));
        } else if matches!(stage, Some(Stage::Ingress | Stage::Egress | Stage::Host)) {
            searches.push((name, program));
        } else {
            others.push((name, program));
        }
    }
    // A missing program would leave its hook without effect, so it is an error of the build.
    if searches.len() + others.len() + hooks.len() != names().count() {
        return Err(Error::NoObject);
    }
    thread::scope(|scope| {
        let searches = scope.spawn(|| verify(searches, SchedClassifier::load));
        verify(others, SchedClassifier::load)?;
        verify(hooks, CgroupSockAddr::load)?;
        searches.join().expect("no panic")
    })
}

/// Loads the programs of interfaces without a link-layer header, and pins those that are attached.
fn load_l3(ebpf: &mut Ebpf, options: &LoadOptions<'_>) -> Result<(), Error> {
    for name in L3_PATHS.map(|(_, name)| name).into_iter().chain(L3) {
        load_program(ebpf, name, SchedClassifier::load)?;
    }
    connect_l3_paths(ebpf)?;
    // One of the two may be pinned already, if an earlier agent was killed between both.
    let mut missing = L3.into_iter().filter(|name| !options.programs.join(name).exists());
    missing.try_for_each(|name| pin_program(ebpf, name, options.programs))
}

/// Opens the object over the pinned maps; its programs are not verified yet.
fn object_over(options: &LoadOptions<'_>) -> Result<Ebpf, Error> {
    let LoadOptions { maps, programs, sizes, packet_log } = *options;
    let mut loader = packet_log.loader();
    for (name, pin) in paths::pins(programs) {
        loader.map_pin_path(name, pin);
    }
    for shape in &SHAPES {
        loader.map_pin_path(shape.name, maps.join(shape.name));
        // Only for maps that do not exist yet: a pinned map keeps its size.
        if let Some(entries) = sizes.get(shape.name).filter(|_| shape.content.is_sizable()) {
            loader.map_max_entries(shape.name, *entries);
        }
    }
    Ok(loader.load(object())?)
}

/// Loads one more program, with the stages behind it, and pins it.
pub(super) fn load_and_pin(options: &LoadOptions<'_>, name: &'static str) -> Result<(), Error> {
    if L3.contains(&name) {
        return load_l3(&mut object_over(options)?, options);
    }
    let program = load_apart(options, name)?;
    let path = options.programs.join(name);
    syscall::pin(program.as_fd(), &path).map_err(pin(&path))
}

/// Loads a program from the object again; it is independent of an earlier copy.
pub(super) fn load_apart(options: &LoadOptions<'_>, name: &'static str) -> Result<OwnedFd, Error> {
    let mut ebpf = object_over(options)?;
    if name == XDP {
        for (_, path) in XDP_PATHS {
            load_program(&mut ebpf, path, Xdp::load)?;
        }
        load_program(&mut ebpf, name, Xdp::load)?;
        connect_xdp_paths(&mut ebpf)?;
    } else {
        load_program(&mut ebpf, name, SchedClassifier::load)?;
    }
    let program = ebpf.program(name).ok_or(Error::NoObject)?;
    let fd = program.fd().map_err(|source| Error::Program { name, source })?;
    fd.as_fd().try_clone_to_owned().map_err(pin(Path::new(name)))
}

fn pin_program(ebpf: &mut Ebpf, name: &'static str, directory: &Path) -> Result<(), Error> {
    let path = directory.join(name);
    let program = ebpf.program_mut(name).ok_or(Error::NoObject)?;
    let pinned = program.pin(&path).map_err(|error| io::Error::other(error.to_string()));
    pinned.map_err(pin(&path))
}

/// Passes one program to the verifier.
fn load_program<P>(
    ebpf: &mut Ebpf,
    name: &'static str,
    load: fn(&mut P) -> Result<(), ProgramError>,
) -> Result<(), Error>
where
    for<'a> &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(Error::NoObject)?;
    verify(vec![(name, program)], load)
}

/// Passes programs of one type to the verifier, one after the other.
fn verify<P>(
    programs: Vec<(&'static str, &mut Program)>,
    load: fn(&mut P) -> Result<(), ProgramError>,
) -> Result<(), Error>
where
    for<'a> &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    for (name, program) in programs {
        let began = Instant::now();
        let loaded = <&mut P>::try_from(program).and_then(load);
        loaded.map_err(|source| Error::Program { name, source })?;
        debug!(program = name, took = ?began.elapsed(), "program verified");
    }
    Ok(())
}
