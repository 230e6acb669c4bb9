//! From the object to programs that the verifier accepted and that have a pin.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Instant;

use aya::maps::MapInfo;
use aya::programs::{CgroupSockAddr, Program, ProgramError, ProgramInfo, SchedClassifier};
use aya::{Ebpf, EbpfLoader};
use tracing::debug;

use super::pin;
use crate::datapath::packet_log::PacketLog;
use crate::datapath::{BARE, CLASSIFIERS, Error, SOCKET_HOOKS, object};
use crate::maps::SHAPES;

/// Programs that every node has.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    CLASSIFIERS.into_iter().chain(SOCKET_HOOKS)
}

/// Whether every program is pinned there, and together they use every pinned map.
///
/// Each map is used by one of them at least: one that was made anew would be missing among those they use.
pub(super) fn is_usable(folder: &Path, maps: &Path) -> bool {
    let id = |name| MapInfo::from_pin(maps.join(name)).map(|info| info.id());
    let ids: Result<BTreeSet<u32>, _> = SHAPES.iter().map(|shape| id(shape.name)).collect();
    let uses = |name: &str| ProgramInfo::from_pin(folder.join(name)).ok()?.map_ids().ok()?;
    let used: Option<Vec<Vec<u32>>> = names().map(uses).collect();
    let (Ok(ids), Some(used)) = (ids, used) else { return false };
    ids.is_subset(&used.into_iter().flatten().collect())
}

/// Loads the object over the pinned maps (making those that are missing) and pins every program.
pub(super) fn load(
    maps: &Path,
    folder: &Path,
    sizes: &BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
) -> Result<Ebpf, Error> {
    let mut ebpf = object_over(maps, sizes, packet_log)?;
    for name in CLASSIFIERS {
        load_program(&mut ebpf, name, SchedClassifier::load)?;
    }
    for name in SOCKET_HOOKS {
        load_program(&mut ebpf, name, CgroupSockAddr::load)?;
    }
    names().try_for_each(|name| pin_program(&mut ebpf, name, folder))?;
    if packet_log != PacketLog::Off {
        // A program that is loaded later logs to a ring of its own, which nobody reads.
        for name in BARE {
            load_program(&mut ebpf, name, SchedClassifier::load)?;
            pin_program(&mut ebpf, name, folder)?;
        }
    }
    Ok(ebpf)
}

/// The object over the pinned maps, its programs not yet verified.
pub(super) fn object_over(
    maps: &Path,
    sizes: &BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
) -> Result<Ebpf, Error> {
    let mut loader = packet_log.loader();
    for shape in &SHAPES {
        let _: &mut EbpfLoader<'_> = loader.map_pin_path(shape.name, maps.join(shape.name));
        if let Some(entries) = sizes.get(shape.name).filter(|_| shape.is_sizable) {
            let _: &mut EbpfLoader<'_> = loader.map_max_entries(shape.name, *entries);
        }
    }
    Ok(loader.load(object())?)
}

pub(super) fn pin_program(ebpf: &mut Ebpf, name: &'static str, folder: &Path) -> Result<(), Error> {
    let path = folder.join(name);
    let program = ebpf.program_mut(name).ok_or(Error::NoObject)?;
    let pinned = program.pin(&path).map_err(|error| io::Error::other(error.to_string()));
    pinned.map_err(pin(&path))
}

/// Hands one program to the verifier.
pub(super) fn load_program<'a, P: 'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
    load: fn(&mut P) -> Result<(), ProgramError>,
) -> Result<(), Error>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let began = Instant::now();
    let program = ebpf.program_mut(name).ok_or(Error::NoObject)?;
    let loaded = <&mut P>::try_from(program).and_then(load);
    loaded.map_err(|source| Error::Program { name, source })?;
    debug!(program = name, took = ?began.elapsed(), "program verified");
    Ok(())
}
