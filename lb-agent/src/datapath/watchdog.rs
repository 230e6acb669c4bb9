//! Compares what is effective with what is wanted, and puts it right: somebody else may detach a link, remove its
//! pin, or put a program before ours.
//!
//! Only our own links are touched. Somebody who insists on our place is not fought over it: it is taken back
//! once in a while, and said.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::detach::let_go;
use super::handover::Place;
use super::links::{self, Direction};
use super::{Datapath, Error, SOCKET_HOOKS, xdp};
use crate::syscall;

/// How often our place among others is taken back.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was other than it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The pin is gone, and the link with it.
    Unpinned,
    /// The link leads nowhere, or the kernel does not run it.
    Detached,
    /// The link runs another program than ours.
    Replaced,
    /// Others stand where we should: before us at ingress, behind us at egress.
    Displaced,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Unpinned, Self::Detached, Self::Replaced, Self::Displaced];

    /// As metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unpinned => "unpinned",
            Self::Detached => "detached",
            Self::Replaced => "replaced",
            Self::Displaced => "displaced",
        }
    }
}

/// What an inspection found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Faults that were put right.
    pub repaired: Vec<Fault>,
    /// Devices on which one could not be.
    pub failed: Vec<u32>,
    /// Devices that have lost the XDP program, and why it was not put back.
    pub decelerated: Vec<(u32, String)>,
}

/// When our place was taken back, by pin.
pub(super) type Insisted = BTreeMap<std::path::PathBuf, Instant>;

impl Datapath {
    /// Looks at every link that should be there, and puts right what is not as it should be.
    pub fn inspect(&mut self) -> Findings {
        let mut findings = Findings::default();
        let attached: Vec<(u32, (String, super::Role))> =
            self.attached.iter().map(|(index, it)| (*index, it.clone())).collect();
        for (index, (name, role)) in attached {
            for direction in [Direction::Ingress, Direction::Egress] {
                match self.inspect_device((index, &name), role, direction) {
                    Ok(None) => {}
                    Ok(Some(fault)) => findings.repaired.push(fault),
                    Err(error) => {
                        complain((index, &name), &error);
                        drop(self.attached.remove(&index));
                        findings.failed.push(index);
                    }
                }
            }
        }
        for index in self.accelerated.clone() {
            match self.inspect_accelerated(index) {
                Ok(fault) => findings.repaired.extend(fault),
                Err(why) => {
                    // Whoever brings programs to devices tries again.
                    let _: bool = self.accelerated.remove(&index);
                    findings.decelerated.push((index, why));
                }
            }
        }
        if let Some(cgroup) = self.cgroup.take() {
            for name in SOCKET_HOOKS {
                match self.inspect_socket(name, &cgroup) {
                    Ok(fault) => findings.repaired.extend(fault),
                    Err(error) => {
                        let error = crate::chain(&error);
                        warn!(hook = name, error, "socket hook is not attached as it should be");
                    }
                }
            }
            self.cgroup = Some(cgroup);
        }
        findings
    }

    fn inspect_device(
        &mut self,
        (index, name): (u32, &str),
        role: super::Role,
        direction: Direction,
    ) -> Result<Option<Fault>, Error> {
        let links = self.dir.join("links");
        let path = links::pin_of(&links, index, direction);
        let failed = |source| Error::Pin { path: path.clone(), source };
        let program = self.programs.classifier(role.program(direction))?;
        let id = program.info().map(|info| info.id());
        let id = id.map_err(|source| Error::Program { name: role.program(direction), source })?;
        let fault = match look(&path, id, |info| info.device() == index).map_err(failed)? {
            Look::Fault(fault) => Some(fault),
            Look::Link(link) => {
                let order = syscall::attached_to_device(index, direction.attach_type());
                let order: Vec<u32> =
                    order.map_err(failed)?.iter().map(|hooked| hooked.link).collect();
                let ours = match direction {
                    Direction::Ingress => order.first(),
                    Direction::Egress => order.last(),
                };
                match ours {
                    Some(ours) if *ours == link => None,
                    _ if order.contains(&link) => Some(Fault::Displaced),
                    _ => Some(Fault::Detached),
                }
            }
        };
        let Some(fault) = fault else { return Ok(None) };
        if fault == Fault::Displaced {
            if self.insisted.get(&path).is_some_and(|since| since.elapsed() < PATIENCE) {
                return Ok(None);
            }
            let _: Option<Instant> = self.insisted.insert(path.clone(), Instant::now());
        }
        if fault != Fault::Replaced {
            let_go(&path)?;
        }
        let program = self.programs.classifier(role.program(direction))?;
        links::attach_device(&links, program, (index, name), direction, Place::Instead)
            .map_err(|error| error.named(role.program(direction)))?;
        let (direction, fault_name) = (direction.name(), fault.name());
        warn!(device = name, direction, fault = fault_name, "programs are attached again");
        Ok(Some(fault))
    }

    /// Nobody can put another program in the place of a link, so the link tells all.
    fn inspect_accelerated(&mut self, index: u32) -> Result<Option<Fault>, String> {
        let id = self.programs.xdp_id().map_err(|error| crate::chain(&error))?;
        let path = xdp::pin_of(&self.dir.join("links"), index);
        let look = look(&path, id, |info| info.device() == index);
        let Look::Fault(fault) = look.map_err(|error| error.to_string())? else { return Ok(None) };
        self.accelerate(index)?;
        warn!(index, fault = fault.name(), "XDP program is attached again");
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
        let program = self.programs.socket(name)?;
        let id = program.info().map(|info| info.id());
        let id = id.map_err(|source| Error::Program { name, source })?;
        let inode = links::inode(cgroup).map_err(failed)?;
        let fault = match look(&path, id, |info| info.cgroup() == inode).map_err(failed)? {
            Look::Fault(fault) => Some(fault),
            Look::Link(_) => {
                let kind = super::programs::attach_type(name);
                let effective = syscall::effective_in_cgroup(cgroup.as_fd(), kind);
                let is_there = effective.map_err(failed)?.contains(&id);
                (!is_there).then_some(Fault::Detached)
            }
        };
        let Some(fault) = fault else { return Ok(None) };
        if fault != Fault::Replaced {
            let_go(&path)?;
        }
        let program = self.programs.socket(name)?;
        links::attach_cgroup(&links, program, name, cgroup, Place::Instead)
            .map_err(|error| error.named(name))?;
        warn!(hook = name, fault = fault.name(), "socket hook is attached again");
        Ok(Some(fault))
    }
}

/// A pod's device goes a moment before we are told so, and the kernel takes its links with it: nobody's fault.
fn complain((index, name): (u32, &str), error: &Error) {
    let error = crate::chain(error);
    if syscall::device_name(index).is_none() {
        debug!(device = name, error, "device is gone");
    } else {
        warn!(device = name, error, "programs are not attached as they should be");
    }
}

/// What a pin says.
enum Look {
    /// Not what it should.
    Fault(Fault),
    /// Number of the link, which leads where it should.
    Link(u32),
}

fn look(path: &Path, program: u32, same: impl Fn(&syscall::LinkInfo) -> bool) -> io::Result<Look> {
    let link = match syscall::open_pin(path) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Look::Fault(Fault::Unpinned));
        }
        Err(error) => return Err(error),
    };
    let info = syscall::link_info(link.as_fd())?;
    Ok(if !same(&info) {
        Look::Fault(Fault::Detached)
    } else if info.program != program {
        Look::Fault(Fault::Replaced)
    } else {
        Look::Link(info.id)
    })
}
