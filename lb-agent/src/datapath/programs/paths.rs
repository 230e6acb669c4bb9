//! The maps by which the programs of all roles reach the two whole paths: the
//! array of a tail call, and the working memory in which they leave their role.
//!
//! They belong to the programs of one load and lie beside their pins, so that a program that is
//! loaded apart later has the same. The kernel empties the array as soon as neither a pin nor a
//! process holds it, whatever programs use it (`bpf_map_put_uref`, kernel/bpf/syscall.c). Those
//! of an earlier load therefore stay pinned until no link uses its programs.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::{Map, MapError, ProgramArray};
use aya::programs::{Program, SchedClassifier};

use crate::datapath::error::{Error, pin};
use crate::datapath::names::PATHS;
use crate::datapath::pins::{list, remove_pin};
use crate::maps;
use crate::syscall;

/// The array, in the object and as a pin, ...
const ARRAY: &str = "PATHS";
/// ... and with it the working memory.
const MAPS: [&str; 2] = [ARRAY, "SCRATCH"];

/// The names of both maps, and their pins beside those of the programs.
pub(super) fn pins(directory: &Path) -> [(&'static str, PathBuf); 2] {
    MAPS.map(|name| (name, directory.join(name)))
}

/// The beginning of the name of a pin that was set aside; the number of the map follows.
fn aside(name: &str) -> String {
    format!("{name}-")
}

/// Writes the whole paths of a loaded object into its array: from then on every packet is served.
pub fn connect_paths(ebpf: &mut Ebpf) -> Result<(), Error> {
    let failed = |source| Error::Maps(maps::Error::Map { map: ARRAY, source });
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
    let map: &mut Map = ebpf.map_mut(ARRAY).ok_or(Error::NoObject)?;
    let mut array: ProgramArray<_> = map.try_into().map_err(|source: MapError| failed(source))?;
    for (index, program) in (0..).zip(&programs) {
        array.set(index, program, 0).map_err(failed)?;
    }
    Ok(())
}

/// Gives the pins of an earlier load other names: its programs are still attached.
pub(super) fn set_aside(directory: &Path) -> Result<(), Error> {
    for (name, path) in pins(directory) {
        let id = match syscall::open_pin(&path).and_then(|map| syscall::map_id(map.as_fd())) {
            Ok(id) => id,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(pin(&path)(error)),
        };
        let other = directory.join(format!("{}{id}", aside(name)));
        fs::rename(&path, other).map_err(pin(&path))?;
    }
    Ok(())
}

/// Lets the maps of earlier loads go; to be called when no link uses their programs.
pub(super) fn forget_aside(directory: &Path) -> Result<(), Error> {
    for path in list(directory)? {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if MAPS.iter().any(|map| name.starts_with(&aside(map))) {
            remove_pin(&path)?;
        }
    }
    Ok(())
}
