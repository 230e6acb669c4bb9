//! Links: a program on a device or on the cgroup, pinned, so that it outlives the agent.
//!
//! At ingress we are first and at egress last, so that whoever else is on the device sees packets as the stack does: after our
//! translation on the way in, before it on the way out. Programs of an earlier run come right after ours in both directions.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{
    CgroupAttachMode, CgroupSockAddr, LinkOrder, ProgramError, SchedClassifier, TcAttachType,
};

use super::handover::{self, Place};
use super::{Error, xdp};
use crate::syscall;

/// What a device is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The host's side of a pod's veth.
    Pod,
    /// A device to the outside.
    Edge,
    /// One without a link-layer header.
    Bare,
}

impl Role {
    /// `pod`, `edge` or `bare`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Edge => "edge",
            Self::Bare => "bare",
        }
    }

    /// The program for a direction.
    pub const fn program(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Self::Pod, Direction::Ingress) => "pod_ingress",
            (Self::Pod, Direction::Egress) => "pod_egress",
            (Self::Edge, Direction::Ingress) => "edge_ingress",
            (Self::Edge, Direction::Egress) => "edge_egress",
            (Self::Bare, Direction::Ingress) => "bare_ingress",
            (Self::Bare, Direction::Egress) => "bare_egress",
        }
    }
}

/// Which packets of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Those that come in by it.
    Ingress,
    /// Those that leave by it.
    Egress,
}

impl Direction {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// As bpf(2) numbers it: `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`.
    pub(super) const fn attach_type(self) -> u32 {
        match self {
            Self::Ingress => 46,
            Self::Egress => 47,
        }
    }
}

/// Why a link was not made; the caller knows which program it is about.
pub(super) enum Failure {
    Program(ProgramError),
    Pin(PathBuf, io::Error),
}

impl Failure {
    pub(super) fn named(self, name: &'static str) -> Error {
        match self {
            Self::Program(source) => Error::Program { name, source },
            Self::Pin(path, source) => Error::Pin { path, source },
        }
    }
}

/// Name of a pin. By interface index: bpffs refuses names with a dot, which devices may have.
pub(super) fn pin_of(links: &Path, index: u32, direction: Direction) -> PathBuf {
    links.join(format!("{index}-{}", direction.name()))
}

/// Replaces the program of a pinned tcx link, or makes the link, also beside an earlier run's. Linux 6.6.
pub(super) fn attach_device(
    links: &Path,
    program: &mut SchedClassifier,
    (index, name): (u32, &str),
    direction: Direction,
    place: Place,
) -> Result<(), Failure> {
    let path = pin_of(links, index, direction);
    handover::make_room(&path, place)?;
    let same = |info: &syscall::LinkInfo| info.device() == index;
    if replace(&path, program.fd().map_err(Failure::Program)?.as_fd(), same)? {
        return Ok(());
    }
    let (kind, order) = match direction {
        Direction::Ingress => (TcAttachType::Ingress, LinkOrder::first()),
        Direction::Egress => (TcAttachType::Egress, at_egress(&path)),
    };
    let options = TcAttachOptions::TcxOrder(order);
    let id = program.attach_with_options(name, kind, options).map_err(Failure::Program)?;
    let link = program.take_link(id).map_err(Failure::Program)?;
    pin(link.try_into(), &path)
}

/// Last, but before an earlier run's: what that one knows of a tuple may be what the tuple meant before.
fn at_egress(path: &Path) -> LinkOrder {
    let others = syscall::open_pin(&handover::aside(path)).ok();
    match others.and_then(|link| syscall::link_info(link.as_fd()).ok()) {
        Some(link) => LinkOrder::before_program_id(link.program_number()),
        None => LinkOrder::last(),
    }
}

/// Replaces the program of a pinned cgroup link, or makes the link. A link on another cgroup is left
/// only when the new one is in place.
pub(super) fn attach_cgroup(
    links: &Path,
    program: &mut CgroupSockAddr,
    name: &str,
    cgroup: &File,
    place: Place,
) -> Result<(), Failure> {
    let path = links.join(name);
    handover::make_room(&path, place)?;
    let failed = |error| Failure::Pin(path.clone(), error);
    let inode = inode(cgroup).map_err(failed)?;
    let same = |info: &syscall::LinkInfo| info.cgroup() == inode;
    if replace(&path, program.fd().map_err(Failure::Program)?.as_fd(), same)? {
        return Ok(());
    }
    let id = program.attach(cgroup, CgroupAttachMode::Single).map_err(Failure::Program)?;
    let link = program.take_link(id).map_err(Failure::Program)?;
    pin(link.try_into(), &path)
}

/// The number of a cgroup.
pub(super) fn inode(cgroup: &File) -> io::Result<u64> {
    Ok(cgroup.metadata()?.ino())
}

/// Replaces the program of a pinned link if the link still leads where it should; else removes the pin.
fn replace(
    path: &Path,
    program: std::os::fd::BorrowedFd<'_>,
    same: impl Fn(&syscall::LinkInfo) -> bool,
) -> Result<bool, Failure> {
    let failed = |error| Failure::Pin(path.to_owned(), error);
    let link: OwnedFd = match syscall::open_pin(path) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    };
    let info = syscall::link_info(link.as_fd()).map_err(failed)?;
    if same(&info) {
        match syscall::update_link(link.as_fd(), program) {
            Ok(()) => return Ok(true),
            // The device went away under the link.
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    fs::remove_file(path).map_err(failed)?;
    Ok(false)
}

fn pin<E>(link: Result<FdLink, E>, path: &Path) -> Result<(), Failure> {
    let Ok(link) = link else {
        let error = io::Error::other("the kernel made a link that cannot be pinned (no tcx)");
        return Err(Failure::Pin(path.to_owned(), error));
    };
    match link.pin(path) {
        Ok(pinned) => {
            // Dropping the handle closes a descriptor; the pin keeps the link.
            drop(pinned);
            Ok(())
        }
        Err(error) => Err(Failure::Pin(path.to_owned(), io::Error::other(error.to_string()))),
    }
}

/// Removes the links of a device.
pub(super) fn detach_device(links: &Path, index: u32) -> Result<(), Error> {
    for direction in [Direction::Ingress, Direction::Egress] {
        let path = pin_of(links, index, direction);
        remove_pin(&handover::aside(&path))?;
        remove_pin(&path)?;
    }
    remove_pin(&xdp::pin_of(links, index))
}

/// Whether nothing of ours is attached yet.
pub(super) fn is_empty(links: &Path) -> bool {
    fs::read_dir(links).map_or(true, |mut links| links.next().is_none())
}

/// Interface indices that have a pinned link.
pub(super) fn devices(links: &Path) -> Result<Vec<u32>, Error> {
    let failed = |source| Error::Pin { path: links.to_owned(), source };
    let names = fs::read_dir(links).map_err(failed)?;
    let mut devices: Vec<u32> = names
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.split_once('-')?.0.parse().ok())
        .collect();
    devices.sort_unstable();
    devices.dedup();
    Ok(devices)
}

/// Removes a pin, if it is there.
pub(super) fn remove_pin(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Pin { path: path.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
