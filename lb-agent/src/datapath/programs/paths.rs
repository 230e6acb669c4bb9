//! The array by which the programs of all roles reach the two whole paths (a tail call).
//!
//! It belongs to the programs of one load and lies beside their pins. The kernel empties it as soon as neither a pin nor a
//! process holds it, whatever programs use it (`bpf_map_put_uref`, kernel/bpf/syscall.c). An array of an earlier load
//! therefore stays pinned until no link uses the programs of that load.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{Map, MapError, ProgramArray};
use aya::programs::{Program, SchedClassifier};

use super::pin;
use crate::datapath::links::remove_pin;
use crate::datapath::{Error, PATHS, cleanup};
use crate::maps;
use crate::syscall;

/// Its name, in the object and as a pin.
pub(super) const MAP: &str = "PATHS";
/// The pins of arrays of earlier loads begin so; the number of the map follows.
const ASIDE: &str = "PATHS-";

/// The pin beside the pins of its programs.
pub(super) fn pin_of(directory: &Path) -> PathBuf {
    directory.join(MAP)
}

/// Writes the whole paths of a loaded object into its array: from then on every packet is served.
pub fn connect_paths(ebpf: &mut Ebpf) -> Result<(), Error> {
    let failed = |source| Error::Maps(maps::Error::Map { map: MAP, source });
    let mut programs = Vec::new();
    for name in PATHS {
        let program: Option<&Program> = ebpf.program(name);
        let program: &SchedClassifier = program
            .ok_or(Error::NoObject)?
            .try_into()
            .map_err(|source| Error::Program { name, source })?;
        let fd = program.fd().map_err(|source| Error::Program { name, source })?;
        let fd = fd.try_clone().map_err(pin(Path::new(name)))?;
        programs.push(fd);
    }
    let map: &mut Map = ebpf.map_mut(MAP).ok_or(Error::NoObject)?;
    let mut array: ProgramArray<_> = map.try_into().map_err(|source: MapError| failed(source))?;
    for (index, program) in (0..).zip(&programs) {
        array.set(index, program, 0).map_err(failed)?;
    }
    Ok(())
}

/// Gives the pin of an earlier load's array another name: its programs are still attached.
pub(super) fn set_aside(directory: &Path) -> Result<(), Error> {
    let path = pin_of(directory);
    let id = match syscall::open_pin(&path).and_then(|map| syscall::map_id(map.as_fd())) {
        Ok(id) => id,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(pin(&path)(error)),
    };
    fs::rename(&path, directory.join(format!("{ASIDE}{id}"))).map_err(pin(&path))
}

/// Lets the arrays of earlier loads go; to be called when no link uses their programs.
pub(super) fn forget_aside(directory: &Path) -> Result<(), Error> {
    for path in cleanup::list(directory)? {
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(ASIDE)) {
            remove_pin(&path)?;
        }
    }
    Ok(())
}
