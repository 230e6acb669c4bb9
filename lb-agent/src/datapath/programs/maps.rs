//! Handles to the maps of our programs, to restore a removed pin. Without the pin no process could find the map again,
//! and a program loaded later would start with an empty one.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use super::paths;
use crate::datapath::error::{Error, pin};
use crate::datapath::pins::remove_pin;
use crate::maps::SHAPES;
use crate::syscall;

/// The maps and their pins.
#[derive(Debug)]
pub(in crate::datapath) struct MapPins {
    /// Directory of the maps that outlive the programs.
    directory: PathBuf,
    /// Pin, map, and the id that the kernel gave the map.
    maps: Vec<(PathBuf, OwnedFd, u32)>,
}

impl MapPins {
    /// Opens all our maps: those in `directory`, and those of the load in `programs`.
    pub(super) fn open(directory: &Path, programs: &Path) -> Result<Self, Error> {
        let open = |path: PathBuf| {
            let map = syscall::open_pin(&path).map_err(pin(&path))?;
            let id = syscall::map_id(map.as_fd()).map_err(pin(&path))?;
            Ok((path, map, id))
        };
        let pins = SHAPES.iter().map(|shape| directory.join(shape.name));
        let of_programs = paths::pins(programs).map(|(_, pin)| pin);
        let maps = pins.chain(of_programs).map(open).collect::<Result<_, Error>>()?;
        Ok(Self { directory: directory.to_owned(), maps })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Restores the pins of our maps that were removed or replaced by another map. Returns how many.
    pub(super) fn restore(&self) -> Result<usize, Error> {
        let mut restored = 0;
        for (path, map, id) in &self.maps {
            match syscall::open_pin(path).and_then(|it| syscall::map_id(it.as_fd())) {
                // Maps are compared by id, because another program may have put a map of its own there.
                Ok(found) if found == *id => continue,
                Ok(_) => remove_pin(path)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let directory = path.parent().unwrap_or(&self.directory);
                    fs::create_dir_all(directory).map_err(pin(directory))?;
                }
                // The pin is there: the kernel opens no pin for writing on a file system that was mounted read-only
                // (`sb_permission` in fs/namei.c).
                Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => continue,
                Err(error) => return Err(pin(path)(error)),
            }
            syscall::pin(map.as_fd(), path).map_err(pin(path))?;
            restored += 1;
        }
        Ok(restored)
    }
}
