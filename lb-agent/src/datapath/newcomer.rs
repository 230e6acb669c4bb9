//! Attaches the programs of a pod's new interface without a [`Datapath`], which its owner may be busy with.
//!
//! The pins are those that [`Datapath::attach`] makes: it finds the links and takes them over.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use super::error::Error;
use super::role::{Direction, Role};
use super::upgrade::Place;
use super::{Datapath, links};

/// The programs of pods' interfaces, and where their links are pinned.
#[derive(Debug)]
pub struct Newcomer {
    links: PathBuf,
    programs: [OwnedFd; 2],
}

impl Datapath {
    /// Handles of its own to the programs of pods.
    pub fn newcomer(&mut self) -> Result<Newcomer, Error> {
        let mut of = |direction| {
            let program = self.programs.get(Role::Pod.program(direction))?;
            let copied = program.fd().try_clone_to_owned();
            copied.map_err(|source| Error::Pin { path: self.dir.join("programs"), source })
        };
        let [first, second] = Direction::BOTH;
        let programs = [of(first)?, of(second)?];
        Ok(Newcomer { links: self.dir.join("links"), programs })
    }

    /// Whether nothing of an earlier run is beside what this one attaches.
    pub fn is_alone(&self) -> bool {
        !self.hands_over()
    }
}

impl Newcomer {
    /// Puts them on an interface, in place of a link that leads nowhere any more.
    pub fn attach(&self, index: u32) -> Result<(), Error> {
        for (direction, program) in Direction::BOTH.into_iter().zip(&self.programs) {
            let name = Role::Pod.program(direction);
            // Its pin holds the link.
            let link = links::attach_device(
                &self.links,
                program.as_fd(),
                index,
                direction,
                Place::Instead,
            );
            drop(link.map_err(|error| error.named(name))?);
        }
        Ok(())
    }
}
