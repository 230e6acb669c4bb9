//! Attaches programs to the new interface of a pod without a [`Datapath`], which the main loop may be using.
//!
//! The pins are the same, so [`Datapath::attach`] later finds the links and takes them over.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use super::error::Error;
use super::role::{Direction, InterfaceRole};
use super::upgrade::LinkMode;
use super::{Datapath, links, pins};

/// The programs for pod interfaces, and the directory of their links.
#[derive(Debug)]
pub struct Newcomer {
    links: PathBuf,
    programs: [OwnedFd; 2],
}

impl Datapath {
    /// Returns separate handles to the programs for pod interfaces.
    pub fn newcomer(&mut self) -> Result<Newcomer, Error> {
        let mut of = |direction| {
            let program = self.programs.get(InterfaceRole::Pod.program(direction))?;
            // The thread needs handles of its own; this object stays with the main loop.
            let copied = program.fd().try_clone_to_owned();
            copied.map_err(|source| Error::Pin { path: self.dir.join("programs"), source })
        };
        let [first, second] = Direction::BOTH;
        let programs = [of(first)?, of(second)?];
        Ok(Newcomer { links: self.dir.join("links"), programs })
    }

    /// Reports whether no program of an earlier run remains beside those that this one attaches.
    pub fn is_alone(&self) -> bool {
        !self.hands_over()
    }
}

impl Newcomer {
    /// Attaches the programs to an interface. A pinned link without an interface is replaced.
    pub fn attach(&self, index: u32) -> Result<(), Error> {
        for (direction, program) in Direction::BOTH.into_iter().zip(&self.programs) {
            let name = InterfaceRole::Pod.program(direction);
            let link = links::attach_device(
                &self.links,
                program.as_fd(),
                index,
                direction,
                LinkMode::Reused,
            );
            drop(link.map_err(|error| error.named(name))?);
            // The pin keeps the link when the descriptor is closed. Where none can be made, the main loop attaches the
            // interface, and holds its links.
            let path = pins::of_device(&self.links, index, direction);
            if !path.exists() {
                return Err(Error::Pin { path, source: io::ErrorKind::NotFound.into() });
            }
        }
        Ok(())
    }
}
