//! The maps by which the programs of all roles reach the whole path: the arrays of tail calls, and the working memory
//! where they store their role.
//!
//! The maps belong to the programs of one load and are pinned beside them, so that a program loaded later shares them.
//! The kernel empties an array as soon as neither a pin nor a process holds it, even if programs use it
//! (`bpf_map_put_uref`, kernel/bpf/syscall.c). The maps of an earlier load therefore stay pinned until no link uses its
//! programs.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{Map, MapError, ProgramArray};
use aya::programs::{Program, ProgramError, ProgramFd, SchedClassifier, Xdp};
use lb_common::forward::Stage;

use crate::datapath::error::{Error, pin};
use crate::datapath::names::{L3_PATHS, PATHS, XDP_PATHS};
use crate::datapath::pins::{list, remove_pin};
use crate::maps;
use crate::syscall;

/// The array of the tc programs, in the object and as a pin.
const ARRAY: &str = "PATHS";
/// The array of the programs for interfaces without a link-layer header, which no other programs use.
pub(super) const L3_ARRAY: &str = "L3_PATHS";
/// The array of the programs at XDP, which no other programs use.
pub(super) const XDP_ARRAY: &str = "XDP_PATHS";
/// The arrays, and the working memory.
const MAPS: [&str; 4] = [ARRAY, L3_ARRAY, XDP_ARRAY, "SCRATCH"];

/// Returns the names of these maps, and their pins beside those of the programs.
pub(super) fn pins(directory: &Path) -> [(&'static str, PathBuf); 4] {
    MAPS.map(|name| (name, directory.join(name)))
}

/// Returns the prefix of the pin of a map that was set aside; the map's id follows.
fn aside(name: &str) -> String {
    format!("{name}-")
}

/// Writes the tc programs of the whole path into their array. From then on every packet is served.
pub fn connect_paths(ebpf: &mut Ebpf) -> Result<(), Error> {
    connect(ebpf, ARRAY, &PATHS, classifier)
}

/// Writes those of interfaces without a link-layer header into their array.
pub(super) fn connect_l3_paths(ebpf: &mut Ebpf) -> Result<(), Error> {
    connect(ebpf, L3_ARRAY, &L3_PATHS, classifier)
}

/// Writes the programs of the whole path at XDP into their array.
pub fn connect_xdp_paths(ebpf: &mut Ebpf) -> Result<(), Error> {
    connect(ebpf, XDP_ARRAY, &XDP_PATHS, |program| <&Xdp>::try_from(program)?.fd())
}

fn classifier(program: &Program) -> Result<&ProgramFd, ProgramError> {
    <&SchedClassifier>::try_from(program)?.fd()
}

/// Writes loaded programs into an array, each at the index of its stage.
fn connect(
    ebpf: &mut Ebpf,
    array: &'static str,
    paths: &[(Stage, &'static str)],
    fd: fn(&Program) -> Result<&ProgramFd, ProgramError>,
) -> Result<(), Error> {
    let failed = |source| Error::Maps(maps::Error::Map { map: array, source });
    let mut programs = Vec::new();
    for &(stage, name) in paths {
        let program = ebpf.program(name).ok_or(Error::NoObject)?;
        let fd = fd(program).map_err(|source| Error::Program { name, source })?;
        // The descriptor is duplicated, because the array below borrows the object.
        programs.push((stage.index(), fd.try_clone().map_err(pin(Path::new(name)))?));
    }
    let map: &mut Map = ebpf.map_mut(array).ok_or(Error::NoObject)?;
    let mut array: ProgramArray<_> = map.try_into().map_err(|source: MapError| failed(source))?;
    for (index, program) in &programs {
        array.set(*index, program, 0).map_err(failed)?;
    }
    Ok(())
}

/// Renames the pins of an earlier load, whose programs are still attached.
pub(super) fn set_aside(directory: &Path) -> Result<(), Error> {
    for (name, path) in pins(directory) {
        let id = match syscall::open_pin(&path).and_then(|map| syscall::map_id(map.as_fd())) {
            Ok(id) => id,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(pin(&path)(error)),
        };
        // The id makes the name unique; several loads can be set aside at once.
        let other = directory.join(format!("{}{id}", aside(name)));
        fs::rename(&path, other).map_err(pin(&path))?;
    }
    Ok(())
}

/// Removes the pins of maps of earlier loads. Call it when no link uses their programs.
pub(super) fn forget_aside(directory: &Path) -> Result<(), Error> {
    for path in list(directory)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if MAPS.iter().any(|map| name.starts_with(&aside(map))) {
            remove_pin(&path)?;
        }
    }
    Ok(())
}
