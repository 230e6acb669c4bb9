//! The targets of the links, and all programs attached there, in the order in which they run, by program id.
//!
//! All functions only read. Their results are about the network namespace and the cgroups of the calling process.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::check::find_cgroup2;
use super::names::{SOCKET_HOOKS, attach_type};
use super::pins;
use super::role::Direction;
use crate::syscall::{self, AttachedProgram};

/// Reports whether both links of an interface are attached to it. A pin outlives the attachment: a link that was
/// detached, or whose interface is gone, has no interface.
pub fn is_attached(links: &Path, index: u32) -> bool {
    Direction::BOTH.into_iter().all(|direction| {
        let pin = pins::of_device(links, index, direction);
        // While a link is moved, only the outgoing one may have a pin.
        leads_to(&pin, index) || leads_to(&pins::aside(&pin), index)
    })
}

/// Reports whether the XDP link of an interface is attached to it.
pub fn is_accelerated(links: &Path, index: u32) -> bool {
    leads_to(&pins::of_xdp(links, index), index)
}

/// Returns the number of socket hooks whose link is attached to a cgroup.
pub fn attached_hooks(links: &Path) -> usize {
    SOCKET_HOOKS.iter().filter(|hook| is_hook_attached(links, hook)).count()
}

/// Reports whether the link of a socket hook is attached to a cgroup.
pub fn is_hook_attached(links: &Path, hook: &str) -> bool {
    pins::link(&links.join(hook)).is_some_and(|link| link.cgroup() != 0)
}

fn leads_to(pin: &Path, index: u32) -> bool {
    pins::link(pin).is_some_and(|link| link.device() == index)
}

/// Returns the programs attached to an interface, in the order in which they run.
pub fn attached_programs(index: u32, direction: Direction) -> io::Result<Vec<AttachedProgram>> {
    syscall::attached_to_device(index, direction.attach_type())
}

/// Returns the programs at the socket hooks of the cgroup that the links are attached to, by hook.
pub fn attached_socket_programs(links: &Path) -> io::Result<Vec<(&'static str, Vec<u32>)>> {
    let pins = SOCKET_HOOKS.iter().map(|hook| links.join(hook));
    // The cgroup is taken from a link, since the configuration may have changed since it was attached.
    let Some(pin) = pins.into_iter().find(|pin| pin.exists()) else { return Ok(Vec::new()) };
    let link = syscall::link_info(syscall::open_pin(&pin)?.as_fd())?;
    let cgroup = fs::File::open(cgroup(link.cgroup())?)?;
    let order = |hook| {
        let kind = attach_type(hook);
        Ok((hook, syscall::effective_in_cgroup(cgroup.as_fd(), kind)?))
    };
    SOCKET_HOOKS.into_iter().map(order).collect()
}

/// Returns the directory of a cgroup by its id (the inode number), which is all that a link contains.
fn cgroup(number: u64) -> io::Result<PathBuf> {
    let mut open: Vec<PathBuf> = find_cgroup2().into_iter().collect();
    while let Some(directory) = open.pop() {
        if fs::metadata(&directory).is_ok_and(|it| it.ino() == number) {
            return Ok(directory);
        }
        // A cgroup that was removed meanwhile has no directories below it.
        let below = fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok);
        let directories = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        open.extend(directories.map(|entry| entry.path()));
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("no cgroup with id {number} is visible here"),
    ))
}
