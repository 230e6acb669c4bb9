//! Attaches programs to interfaces and sockets and detaches them: in place of an earlier run's program, or beside it.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use tracing::{info, warn};

use super::detach::detach_and_unpin;
use super::error::{Error, LinkFailure};
use super::names::{SOCKET_HOOKS, XDP};
use super::role::{Direction, InterfaceRole};
use super::upgrade::{self, LinkMode, undo_move_aside};
use super::{Datapath, features, links, pins, xdp};
use crate::syscall;

impl Datapath {
    /// Attaches the programs of a role to an interface, in place of those of an earlier run.
    pub fn attach(&mut self, index: u32, name: &str, role: InterfaceRole) -> Result<(), Error> {
        // The interface may have been renamed since; its links are by index.
        if let Some((known, is)) = self.attached.get_mut(&index)
            && *is == role
        {
            name.clone_into(known);
            return Ok(());
        }
        let links = self.dir.join("links");
        for direction in Direction::BOTH {
            let path = pins::of_device(&links, index, direction);
            // During an upgrade the link of the other layout moves here, so that its program is replaced in one step
            // (ADR 0005).
            self.adopt_link(&path)?;
            let hands_over = self.hands_over() && !self.held.contains_key(&path);
            let mode = LinkMode::at_device(role, direction, hands_over);
            let name = role.program(direction);
            // Where an earlier run was killed while it moved a link, two links remain. If no maps are handed over,
            // nothing needs the second one, and both would see each packet until the end of an upgrade, which waits for
            // the API server.
            let is_halfway =
                !self.hands_over() && undo_move_aside(&path).map_err(|error| error.named(name))?;
            let is_unpinned = self.is_held(&path) && !path.exists();
            let program = self.programs.get(name)?.fd();
            // A link without a pin cannot be found by it, and an interface does not take a program twice.
            if let Some(link) = self.held.get(&path).filter(|_| is_unpinned) {
                syscall::update_link(link.as_fd(), program)
                    .map_err(|error| LinkFailure::Link(error).named(name))?;
                continue;
            }
            let link = links::attach_device(&links, program, index, direction, mode)
                .map_err(|error| error.named(name))?;
            if is_halfway {
                detach_and_unpin(&pins::aside(&path))?;
            }
            drop(self.held.insert(path, link));
        }
        drop(self.attached.insert(index, (name.to_owned(), role)));
        Ok(())
    }

    /// Forgets an interface if none of its links is attached any more, and reports whether that is so.
    ///
    /// Another interface then has the same index and name: it was recreated, or moved to another namespace and back.
    /// The agent has not seen it missing, so it has not detached its links.
    pub fn forget_if_another(&mut self, index: u32) -> bool {
        let links = self.dir.join("links");
        let is_lost = |path| {
            let info = self.held.get(&path).map(|link| syscall::link_info(link.as_fd()));
            // A link reports index 0 once its interface is gone (`tcx_link_fill_info`).
            info.is_some_and(|info| info.is_ok_and(|info| info.device() == 0))
        };
        let paths = Direction::BOTH.map(|direction| pins::of_device(&links, index, direction));
        let is_another = self.attached.contains_key(&index) && paths.into_iter().all(is_lost);
        if is_another {
            drop(self.attached.remove(&index));
        }
        is_another
    }

    /// Attaches the XDP program to an interface too, and loads it at its first use. The error says why it is not
    /// attached.
    ///
    /// If loading fails, the program of an earlier run is detached as well, because its maps may no longer be updated.
    /// An XDP program of another layout is replaced at once: only one can be attached, and packets that it does not
    /// know go on to tc, where the programs of both layouts are.
    pub fn accelerate(&mut self, index: u32) -> Result<(), String> {
        let links = self.dir.join("links");
        let path = pins::of_xdp(&links, index);
        self.adopt_link(&path).map_err(|error| crate::chain(&error))?;
        // The kernel refuses a second XDP link while any descriptor keeps the first one alive (`dev_xdp_attach`,
        // net/core/dev.c).
        drop(self.held.remove(&path));
        let attached = match self.programs.get(XDP) {
            Ok(program) => xdp::attach(&links, program.fd(), index),
            Err(error) => {
                let why = crate::chain(&error);
                xdp::detach(&links, index).map_err(|error| crate::chain(&error))?;
                Err(why)
            }
        };
        match attached {
            Ok(link) => {
                self.accelerated.insert(index);
                drop(self.held.insert(path, link));
                Ok(())
            }
            Err(why) => {
                self.accelerated.remove(&index);
                Err(why)
            }
        }
    }

    /// Checks that XDP programs may redirect frames to an interface. The error says why not.
    pub fn takes_frames(&self, index: u32) -> Result<(), String> {
        if !self.accelerated.contains(&index) {
            return Err("no XDP program of this agent is attached".to_owned());
        }
        match features::takes_frames(index) {
            Ok(true) => Ok(()),
            Ok(false) => Err(features::NO_FRAMES.to_owned()),
            Err(error) => Err(format!("the features of its driver could not be read: {error}")),
        }
    }

    /// Reports whether any interface has the XDP program, of this run or an earlier one, also one of another layout.
    pub fn is_accelerating(&self) -> bool {
        upgrade::has_xdp(&self.dir, self.previous.as_ref())
    }

    /// Detaches the XDP program from an interface.
    pub fn decelerate(&mut self, index: u32) -> Result<(), Error> {
        self.accelerated.remove(&index);
        let links = self.dir.join("links");
        let path = pins::of_xdp(&links, index);
        self.adopt_link(&path)?;
        // Removing the pin detaches the program only if no descriptor keeps the link.
        drop(self.held.remove(&path));
        xdp::detach(&links, index)
    }

    /// Detaches the programs from an interface, and forgets it. The interface need not exist any more.
    pub fn detach(&mut self, index: u32) -> Result<(), Error> {
        drop(self.attached.remove(&index));
        self.accelerated.remove(&index);
        let links = self.dir.join("links");
        let removed = links::detach_device(&links, index);
        for path in Direction::BOTH.map(|direction| pins::of_device(&links, index, direction)) {
            self.displaced.forget(&path);
            drop(self.held.remove(&path));
        }
        // The pin of the XDP link is removed above, so the link ends with this descriptor.
        drop(self.held.remove(&pins::of_xdp(&links, index)));
        removed
    }

    /// Detaches the programs from all interfaces except these, and XDP programs from all that are not external: an
    /// earlier run may have attached some.
    pub fn retain(
        &mut self,
        devices: &BTreeSet<u32>,
        external: &BTreeSet<u32>,
    ) -> Result<(), Error> {
        let links = self.dir.join("links");
        // The pins name the interfaces, because `attached` knows only those of this run.
        for index in pins::devices(&links)? {
            if !devices.contains(&index) {
                self.detach(index)?;
                info!(index, "programs detached");
            }
        }
        // Packets of an interface that is served by another role now would still be translated as from outside.
        for index in pins::accelerated(&links)? {
            if !external.contains(&index) {
                self.decelerate(index)?;
                info!(index, "XDP program detached from an interface that is not external");
            }
        }
        Ok(())
    }

    /// Attaches the socket hooks to a cgroup. Without one of them packets are translated one by one (ADR 0027), so a
    /// program of another owner that excludes ours stops nothing: each inspection tries again, and reports it.
    pub fn attach_sockets(&mut self, cgroup: &Path) -> Result<(), Error> {
        let directory = File::open(cgroup).map_err(|source| Error::Directory {
            path: cgroup.to_owned(),
            what: "this cgroup cannot be opened; choose another with --cgroup".into(),
            source,
        })?;
        let links = self.dir.join("links");
        // Programs for answers are attached first, as at interfaces: no client is translated whose answer would not be.
        for name in SOCKET_HOOKS.into_iter().rev() {
            let path = links.join(name);
            self.adopt_link(&path)?;
            let mode = LinkMode::at_hook(name, self.hands_over());
            let program = self.programs.get(name)?.fd();
            match links::attach_cgroup(&links, program, name, &directory, mode) {
                Ok(link) => drop(self.held.insert(path, link)),
                Err(failure @ LinkFailure::Excluded(_)) => {
                    let error = crate::chain(&failure.named(name));
                    warn!(error, "socket hook not attached; retrying");
                }
                Err(failure) => return Err(failure.named(name)),
            }
        }
        // The cgroup is remembered even if a hook was refused: each inspection tries its hooks again.
        self.cgroup = Some((cgroup.to_owned(), directory));
        Ok(())
    }

    fn adopt_link(&self, path: &Path) -> Result<(), Error> {
        let Some(previous) = &self.previous else { return Ok(()) };
        let taken = previous.adopt_link(path);
        taken.map_err(|source| Error::Pin { path: path.to_owned(), source })
    }
}
