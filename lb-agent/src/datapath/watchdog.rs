//! Compares attachments with what should be attached and repairs them: another program may detach a link, remove its
//! pin, or attach itself before ours.
//!
//! Only our own links are changed. A new link is attached before the old one is removed, so that no packet passes
//! without our program (ADR 0026).

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Instant;

use tracing::{debug, warn};

use super::detach::detach_and_unpin;
use super::error::Error;
use super::look::{Fault, Look, fault_in, look, problem};
use super::names::{SOCKET_HOOKS, XDP, attach_type};
use super::role::{Direction, InterfaceRole};
use super::upgrade::LinkMode;
use super::{Datapath, links, pins};
use crate::syscall;

/// The result of an inspection.
#[derive(Debug, Default)]
pub struct Inspection {
    /// Faults that were repaired.
    pub repaired: Vec<Fault>,
    /// Interfaces with a fault that could not be repaired, and why.
    pub failed: Vec<(u32, String)>,
    /// Interfaces that lost the XDP program, and why it was not attached again.
    pub decelerated: Vec<(u32, String)>,
    /// Messages for operators about faults that are not repaired.
    pub unrepaired: Vec<String>,
    /// Messages for operators about faults that recur.
    pub recurring: Vec<String>,
    /// Whether pins are missing and cannot be restored: the data path would end with this process.
    pub is_unpinned: bool,
}

impl Datapath {
    /// Inspects every link that should exist, and repairs faults.
    pub fn inspect(&mut self) -> Inspection {
        let mut inspection = Inspection::default();
        match self.restore() {
            Ok(faults) => {
                inspection.repaired = faults;
                inspection.unrepaired.extend(self.read_only());
            }
            Err(error) => {
                inspection.unrepaired.push(format!("pins are missing: {}", crate::chain(&error)));
                inspection.is_unpinned = true;
            }
        }
        let attached: Vec<(u32, (String, InterfaceRole))> =
            self.attached.iter().map(|(index, it)| (*index, it.clone())).collect();
        for (index, (name, role)) in attached {
            for direction in Direction::BOTH {
                match self.inspect_device(index, &name, role, direction) {
                    Ok(None) => {}
                    Ok(Some(fault)) => inspection.repaired.push(fault),
                    Err(error) => {
                        let error = crate::chain(&error);
                        complain(index, &name, &error);
                        // With this entry, `Datapath::attach` would take the interface for finished when the main loop
                        // retries it.
                        drop(self.attached.remove(&index));
                        inspection.failed.push((index, error));
                    }
                }
            }
        }
        for index in self.accelerated.clone() {
            match self.inspect_accelerated(index) {
                Ok(fault) => inspection.repaired.extend(fault),
                Err(why) => {
                    // The accelerator of the main loop tries this interface again.
                    self.accelerated.remove(&index);
                    inspection.decelerated.push((index, why));
                }
            }
        }
        // The cgroup is taken out of `self`, because `inspect_socket` needs the rest.
        if let Some((path, opened)) = self.cgroup.take() {
            let cgroup = current(&path, opened);
            for name in SOCKET_HOOKS {
                match self.inspect_socket(name, &cgroup) {
                    Ok(fault) => inspection.repaired.extend(fault),
                    Err(error) => {
                        let error = crate::chain(&error);
                        inspection.unrepaired.push(format!(
                            "socket hook {name}: it cannot be attached, so the agent translates packets of processes \
                             one by one, and getpeername(2) may show a backend: {error}; the agent retries every two \
                             seconds: remove the cause that the error names"
                        ));
                    }
                }
            }
            self.cgroup = Some((path, cgroup));
        }
        inspection.recurring = self.displaced.problems(Instant::now());
        inspection
    }

    fn inspect_device(
        &mut self,
        index: u32,
        name: &str,
        role: InterfaceRole,
        direction: Direction,
    ) -> Result<Option<Fault>, Error> {
        let links = self.dir.join("links");
        let path = pins::of_device(&links, index, direction);
        let failed = |source| Error::Pin { path: path.clone(), source };
        let program = role.program(direction);
        let order = syscall::attached_to_device(index, direction.attach_type());
        let order = order.map_err(failed)?;
        let looked = look(&path, self.held.get(&path), |info| info.device() == index);
        let fault = match looked.map_err(failed)? {
            // The pin was removed after `restore` ran: the link works, and the next inspection pins it again.
            Look::Fault(Fault::Unpinned) if self.is_held(&path) => None,
            Look::Fault(fault) => Some(fault),
            Look::Link { program: id, .. } if !self.programs.is(program, id)? => {
                Some(Fault::Replaced)
            }
            Look::Link { link, .. } => fault_in(&order, link),
        };
        let Some(fault) = fault else { return Ok(None) };
        if fault == Fault::Displaced {
            let problem = || problem(name, &order, direction);
            // The repair needs the pin `-old` for itself, and an upgrade or a resize still has its link there.
            let is_under_way = pins::aside(&path).exists();
            if is_under_way || !self.displaced.see(&path, Instant::now(), problem) {
                return Ok(None);
            }
        }
        // The descriptor would keep the old link alive, and an interface refuses a program that is attached there
        // already.
        if matches!(fault, Fault::Unpinned | Fault::Detached) {
            drop(self.held.remove(&path));
            detach_and_unpin(&path)?;
        }
        let link = if fault == Fault::Displaced {
            // An interface refuses the same program twice, so the new link needs another copy.
            let taken: Vec<u32> = order.iter().map(|hooked| hooked.program).collect();
            let loaded = self.programs.other_than(program, &taken)?.fd();
            let loaded = loaded.try_clone_to_owned().map_err(failed)?;
            let idle = self.programs.idle().map_err(failed)?;
            links::move_device(&links, loaded.as_fd(), idle, index, direction)
        } else {
            let loaded = self.programs.get(program)?.fd();
            links::attach_device(&links, loaded, index, direction, LinkMode::Reused)
        };
        let link = link.map_err(|error| error.named(program))?;
        drop(self.held.insert(path.clone(), link));
        let (direction, fault_name) = (direction.name(), fault.name());
        warn!(interface = name, direction, fault = fault_name, "programs reattached");
        Ok(Some(fault))
    }

    /// Inspects the XDP link of an interface. It excludes other XDP programs, so only the link itself must be checked.
    fn inspect_accelerated(&mut self, index: u32) -> Result<Option<Fault>, String> {
        let path = pins::of_xdp(&self.dir.join("links"), index);
        let looked = look(&path, self.held.get(&path), |info| info.device() == index);
        let fault = match looked.map_err(|error| error.to_string())? {
            Look::Fault(Fault::Unpinned) if self.is_held(&path) => return Ok(None),
            Look::Fault(fault) => fault,
            Look::Link { program, .. } => {
                let is_ours = self.programs.is(XDP, program);
                if is_ours.map_err(|error| crate::chain(&error))? {
                    return Ok(None);
                }
                Fault::Replaced
            }
        };
        // Attaching again replaces a program in the link, and the link if it is gone.
        self.accelerate(index)?;
        warn!(index, fault = fault.name(), "XDP program reattached");
        Ok(Some(fault))
    }

    fn inspect_socket(
        &mut self,
        name: &'static str,
        cgroup: &File,
    ) -> Result<Option<Fault>, Error> {
        let links = self.dir.join("links");
        let path = links.join(name);
        let failed = |source| Error::Pin { path: path.clone(), source };
        let inode = links::inode(cgroup).map_err(failed)?;
        let looked = look(&path, self.held.get(&path), |info| info.cgroup() == inode);
        let fault = match looked.map_err(failed)? {
            // The link still works; its pin is restored elsewhere.
            Look::Fault(Fault::Unpinned) if self.is_held(&path) => None,
            Look::Fault(fault) => Some(fault),
            Look::Link { program, .. } if !self.programs.is(name, program)? => {
                Some(Fault::Replaced)
            }
            Look::Link { program, .. } => {
                let kind = attach_type(name);
                let effective = syscall::effective_in_cgroup(cgroup.as_fd(), kind);
                let is_there = effective.map_err(failed)?.contains(&program);
                (!is_there).then_some(Fault::Detached)
            }
        };
        let Some(fault) = fault else { return Ok(None) };
        // A replaced program keeps the link, which is updated in place: no call passes without a program.
        if fault != Fault::Replaced {
            drop(self.held.remove(&path));
            detach_and_unpin(&path)?;
        }
        let program = self.programs.get(name)?.fd();
        let link = links::attach_cgroup(&links, program, name, cgroup, LinkMode::Reused)
            .map_err(|error| error.named(name))?;
        drop(self.held.insert(path, link));
        warn!(hook = name, fault = fault.name(), "socket hook reattached");
        Ok(Some(fault))
    }
}

/// Returns the directory that is at the path now, if the one that was opened is gone: a recreated cgroup is a different
/// directory.
fn current(path: &Path, opened: File) -> File {
    let is_same = |there: &File| {
        let inodes = (links::inode(there), links::inode(&opened));
        matches!(inodes, (Ok(there), Ok(opened)) if there == opened)
    };
    match File::open(path) {
        Ok(there) if !is_same(&there) => there,
        Ok(_) | Err(_) => opened,
    }
}

/// Logs that an interface could not be repaired. The interface of a pod disappears, with its links, a moment before the
/// agent gets the notification: that is no fault.
fn complain(index: u32, name: &str, error: &str) {
    if syscall::device_name(index).is_none() {
        debug!(interface = name, error, "interface is gone");
    } else {
        warn!(interface = name, error, "programs could not be reattached");
    }
}
