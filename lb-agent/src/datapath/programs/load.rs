//! Loads programs from the object: verified by the kernel, and pinned.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Instant;

use aya::Ebpf;
use aya::maps::MapInfo;
use aya::programs::{CgroupSockAddr, Program, ProgramError, ProgramInfo, SchedClassifier, Xdp};
use tracing::debug;

use super::{XDP, pin};
use crate::datapath::packet_log::PacketLog;
use crate::datapath::{CLASSIFIERS, Error, L3, SOCKET_HOOKS, object};
use crate::maps::SHAPES;
use crate::syscall;

/// Programs that every node has.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CLASSIFIERS.into_iter().chain(SOCKET_HOOKS)
}

/// Whether every program is pinned there, and together they use every pinned map.
///
/// Each map is used by one of them at least: one that was made anew would be missing among those they use.
pub(super) fn is_usable(directory: &Path, maps: &Path) -> bool {
    let id = |name| MapInfo::from_pin(maps.join(name)).map(|info| info.id());
    let ids: Result<BTreeSet<u32>, _> = SHAPES.iter().map(|shape| id(shape.name)).collect();
    let uses = |name: &str| ProgramInfo::from_pin(directory.join(name)).ok()?.map_ids().ok()?;
    let used: Option<Vec<Vec<u32>>> = names().map(uses).collect();
    let (Ok(ids), Some(used)) = (ids, used) else { return false };
    ids.is_subset(&used.into_iter().flatten().collect())
}

/// Loads the object over the pinned maps (making those that are missing) and pins every program.
pub(super) fn load(
    maps: &Path,
    directory: &Path,
    sizes: &BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
) -> Result<Ebpf, Error> {
    let mut ebpf = object_over(maps, sizes, packet_log)?;
    verify_all(&mut ebpf)?;
    names().try_for_each(|name| pin_program(&mut ebpf, name, directory))?;
    if packet_log != PacketLog::Off {
        // A program that is loaded later logs to a ring of its own, which nobody reads.
        for name in L3 {
            load_program(&mut ebpf, name, SchedClassifier::load)?;
            pin_program(&mut ebpf, name, directory)?;
        }
    }
    Ok(ebpf)
}

/// Hands the programs that every node has to the verifier, which takes most of a first start.
///
/// Two at a time: each needs some ten megabytes of the agent's memory cgroup while it is walked (ADR 0032).
fn verify_all(ebpf: &mut Ebpf) -> Result<(), Error> {
    let (mut classifiers, mut hooks): (Vec<_>, Vec<_>) = Default::default();
    for (name, program) in ebpf.programs_mut() {
        if let Some(name) = CLASSIFIERS.into_iter().find(|it| *it == name) {
            classifiers.push((name, program));
        } else if let Some(name) = SOCKET_HOOKS.into_iter().find(|it| *it == name) {
            hooks.push((name, program));
        }
    }
    if classifiers.len() + hooks.len() != names().count() {
        return Err(Error::NoObject);
    }
    let half = classifiers.split_off(CLASSIFIERS.len() / 2);
    thread::scope(|scope| {
        let half = scope.spawn(|| verify(half, SchedClassifier::load));
        verify(classifiers, SchedClassifier::load)?;
        half.join().expect("no panic")
    })?;
    verify(hooks, CgroupSockAddr::load)
}

/// The object over the pinned maps, its programs not yet verified.
fn object_over(
    maps: &Path,
    sizes: &BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
) -> Result<Ebpf, Error> {
    let mut loader = packet_log.loader();
    for shape in &SHAPES {
        loader.map_pin_path(shape.name, maps.join(shape.name));
        if let Some(entries) = sizes.get(shape.name).filter(|_| shape.is_sizable) {
            loader.map_max_entries(shape.name, *entries);
        }
    }
    Ok(loader.load(object())?)
}

/// Loads one more program and pins it.
pub(super) fn load_and_pin(
    maps: &Path,
    sizes: &BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
    name: &'static str,
    path: &Path,
) -> Result<(), Error> {
    let program = load_apart(maps, sizes, packet_log, name)?;
    syscall::pin(program.as_fd(), path).map_err(pin(path))
}

/// Loads one program of ours, also when it is loaded already: it is a program of its own then.
pub(super) fn load_apart(
    maps: &Path,
    sizes: &BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
    name: &'static str,
) -> Result<OwnedFd, Error> {
    let mut ebpf = object_over(maps, sizes, packet_log)?;
    if name == XDP {
        load_program(&mut ebpf, name, Xdp::load)?;
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

/// Hands one program to the verifier.
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

/// Hands programs of one kind to the verifier, one after the other.
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
