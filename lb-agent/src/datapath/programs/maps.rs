//! Handles to the maps of our programs, so that a removed pin can be restored: otherwise nothing could find the map
//! again, and a program that is loaded meanwhile would start with an empty one.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use super::pin;
use crate::datapath::Error;
use crate::datapath::links::remove_pin;
use crate::maps::SHAPES;
use crate::syscall;

/// The maps and the directory of their pins.
#[derive(Debug)]
pub(in crate::datapath) struct MapPins {
    directory: PathBuf,
    /// By name; with the number that the kernel gave it.
    maps: Vec<(&'static str, OwnedFd, u32)>,
}

impl MapPins {
    /// Holds what is pinned in a directory: every map of ours.
    pub(super) fn open(directory: &Path) -> Result<Self, Error> {
        let open = |name: &'static str| {
            let path = directory.join(name);
            let map = syscall::open_pin(&path).map_err(pin(&path))?;
            let id = syscall::map_id(map.as_fd()).map_err(pin(&path))?;
            Ok((name, map, id))
        };
        let maps = SHAPES.iter().map(|shape| open(shape.name)).collect::<Result<_, Error>>()?;
        Ok(Self { directory: directory.to_owned(), maps })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Gives pins that somebody removed, or put another map under, back to our maps; says how many.
    pub(super) fn restore(&self) -> Result<usize, Error> {
        let mut restored = 0;
        for (name, map, id) in &self.maps {
            let path = self.directory.join(name);
            match syscall::open_pin(&path).and_then(|it| syscall::map_id(it.as_fd())) {
                Ok(found) if found == *id => continue,
                Ok(_) => remove_pin(&path)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(&self.directory).map_err(pin(&self.directory))?;
                }
                Err(error) => return Err(pin(&path)(error)),
            }
            syscall::pin(map.as_fd(), &path).map_err(pin(&path))?;
            restored += 1;
        }
        Ok(restored)
    }
}
