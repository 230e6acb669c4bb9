//! Links: a program on an interface or a cgroup. The pin keeps the link when the agent ends.
//!
//! Ours is the first program of an interface in both directions: a program before it could end the chain, as every
//! program does that returns `TC_ACT_OK` (`tcx_run` in `net/core/dev.c`). Programs of an earlier run come after ours.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::detach::detach_and_unpin;
use super::error::{Error, LinkFailure};
use super::names::attach_type;
use super::pins;
use super::role::Direction;
use super::upgrade::{LinkMode, move_aside};
use crate::syscall;

/// Pin of the map that makes packets meet our program once while its link is moved.
const SLOT: &str = "moving";

/// Replaces the program of a pinned tcx link, or makes a new link, possibly beside another of ours. Linux 6.6.
pub(super) fn attach_device(
    links: &Path,
    program: BorrowedFd<'_>,
    index: u32,
    direction: Direction,
    mode: LinkMode,
) -> Result<OwnedFd, LinkFailure> {
    let path = pins::of_device(links, index, direction);
    move_aside(&path, mode)?;
    // The link of an interface that is gone reports index 0, even if a new interface has its index
    // (`tcx_link_fill_info` in kernel/bpf/tcx.c).
    let same = |info: &syscall::LinkInfo| info.device() == index;
    if let Some(link) = replace(&path, program, same)? {
        return Ok(link);
    }
    let link = syscall::link_tcx(program, index, direction.attach_type());
    let link = link.map_err(LinkFailure::Link)?;
    match syscall::pin(link.as_fd(), &path) {
        Err(error) if path.symlink_metadata().is_ok() => Err(LinkFailure::Pin(path, error)),
        // Where no pin can be made (something covers the bpffs) the agent holds the link. Each inspection tries to pin
        // it, and reports why it cannot.
        Ok(()) | Err(_) => Ok(link),
    }
}

/// Makes a new link at our place, in place of one that another program has displaced, and ends the old one.
///
/// A packet that passes both links must meet our program exactly once: twice, it would take its own translation for a
/// pod's own packet to a backend (ADR 0026). While both links exist, the first one marks packets and the second one
/// lets marked packets pass ([`syscall::Once`]). One update makes the new link effective, or ends the old one. The
/// kernel waits for packets under way before and after it.
pub(super) fn move_device(
    links: &Path,
    program: BorrowedFd<'_>,
    idle: BorrowedFd<'_>,
    index: u32,
    direction: Direction,
) -> Result<OwnedFd, LinkFailure> {
    let path = pins::of_device(links, index, direction);
    let old = syscall::open_pin(&path).map_err(|error| LinkFailure::Pin(path.clone(), error))?;
    let once = syscall::Once::before(program).map_err(LinkFailure::Link)?;
    // The pin keeps the map in case this process is killed: the programs at the links go on.
    let slot = links.with_file_name(SLOT);
    // An earlier run that was killed may have left this pin; no link uses its map any more.
    drop(pins::remove_pin(&slot));
    syscall::pin(once.slot.as_fd(), &slot)
        .map_err(|error| LinkFailure::Pin(slot.clone(), error))?;
    move_aside(&path, LinkMode::New)?;
    let update = |link: BorrowedFd<'_>, program: BorrowedFd<'_>| {
        syscall::update_link(link, program).map_err(LinkFailure::Link)
    };
    let move_over = || {
        // Until the old link has the gate, it is the one that handles packets, so the new link does nothing yet.
        let link = syscall::link_tcx(idle, index, direction.attach_type());
        let link = pin(link.map_err(LinkFailure::Link)?, path.clone())?;
        update(old.as_fd(), once.gate.as_fd())?;
        syscall::wait_for_programs();
        update(link.as_fd(), once.marker.as_fd())?;
        syscall::wait_for_programs();
        // If this fails, the gate passes every packet on as soon as its map is gone, so the link that remains does no
        // harm.
        drop(detach_and_unpin(&pins::aside(&path)));
        update(link.as_fd(), program)?;
        Ok(link)
    };
    let moved = move_over();
    if moved.is_err() && pins::aside(&path).exists() {
        // The old link gets its name and its program back, because the map it was marking with is removed now.
        drop(fs::rename(pins::aside(&path), &path));
        drop(syscall::update_link(old.as_fd(), program));
    }
    drop(pins::remove_pin(&slot));
    moved
}

/// Replaces the program of a pinned cgroup link, or makes a new link. A link on another cgroup ends only after the new
/// one is in place.
pub(super) fn attach_cgroup(
    links: &Path,
    program: BorrowedFd<'_>,
    name: &str,
    cgroup: &File,
    mode: LinkMode,
) -> Result<OwnedFd, LinkFailure> {
    let path = links.join(name);
    move_aside(&path, mode)?;
    let inode = inode(cgroup).map_err(|error| LinkFailure::Pin(path.clone(), error))?;
    // A link cannot be moved to another cgroup, only its program be replaced.
    let same = |info: &syscall::LinkInfo| info.cgroup() == inode;
    if let Some(link) = replace(&path, program, same)? {
        return Ok(link);
    }
    let kind = attach_type(name);
    let link = syscall::link_cgroup(program, cgroup.as_fd(), kind).map_err(|error| {
        let others = syscall::effective_in_cgroup(cgroup.as_fd(), kind).unwrap_or_default();
        // `__cgroup_bpf_attach` in kernel/bpf/cgroup.c: flags of programs there or in a parent differ, or there are too
        // many. A security module refuses with the same number.
        let is_refused = matches!(error.raw_os_error(), Some(libc::EPERM | libc::E2BIG));
        if is_refused && !others.is_empty() {
            LinkFailure::Excluded(others)
        } else {
            LinkFailure::Link(error)
        }
    });
    pin(link?, path)
}

/// Returns the id of a cgroup, which is its inode number.
pub(super) fn inode(cgroup: &File) -> io::Result<u64> {
    Ok(cgroup.metadata()?.ino())
}

/// Replaces the program of a pinned link if the link is still at its target; otherwise removes the pin.
fn replace(
    path: &Path,
    program: BorrowedFd<'_>,
    same: impl Fn(&syscall::LinkInfo) -> bool,
) -> Result<Option<OwnedFd>, LinkFailure> {
    let failed = |error| LinkFailure::Pin(path.to_owned(), error);
    let link: OwnedFd = match syscall::open_pin(path) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let info = syscall::link_info(link.as_fd()).map_err(failed)?;
    if same(&info) {
        match syscall::update_link(link.as_fd(), program) {
            Ok(()) => return Ok(Some(link)),
            // The interface was removed after the link was read.
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    fs::remove_file(path).map_err(failed)?;
    Ok(None)
}

fn pin(link: OwnedFd, path: PathBuf) -> Result<OwnedFd, LinkFailure> {
    match syscall::pin(link.as_fd(), &path) {
        Ok(()) => Ok(link),
        Err(error) => Err(LinkFailure::Pin(path, error)),
    }
}

/// Detaches the links of an interface and removes their pins.
pub(super) fn detach_device(links: &Path, index: u32) -> Result<(), Error> {
    // Ingress is the first to go, in reverse of the order of attaching: no flow begins whose answers no program
    // translates.
    for direction in Direction::BOTH.into_iter().rev() {
        let path = pins::of_device(links, index, direction);
        detach_and_unpin(&pins::aside(&path))?;
        detach_and_unpin(&path)?;
    }
    pins::remove_pin(&pins::of_xdp(links, index))
}
