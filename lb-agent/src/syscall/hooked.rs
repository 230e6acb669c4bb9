//! Lists the programs attached at a hook, in the order in which they run.

use std::io;
use std::os::fd::BorrowedFd;

use super::{bpf, number};

const PROG_QUERY: u32 = 16;

/// Largest number of programs in an answer. The kernel allows 64 at one side of an interface, and as many in each
/// cgroup.
const HOOKED: usize = 512;

/// A program that is attached at a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachedProgram {
    /// Id of the program.
    pub program: u32,
    /// Id of its link; 0 if it was attached without one.
    pub link: u32,
}

/// The part of `union bpf_attr` for queries of attached programs.
#[repr(C)]
#[derive(Default)]
struct QueryAttributes {
    target: u32,
    kind: u32,
    flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// Returns the programs at one side of an interface, in the order in which they run. Linux 6.6.
pub(crate) fn attached_to_device(index: u32, kind: u32) -> io::Result<Vec<AttachedProgram>> {
    let mut programs = [0_u32; HOOKED];
    let mut links = [0_u32; HOOKED];
    let count = query(QueryAttributes {
        target: index,
        kind,
        programs: programs.as_mut_ptr().addr() as u64,
        links: links.as_mut_ptr().addr() as u64,
        ..QueryAttributes::default()
    })?;
    let hooked = programs
        .iter()
        .zip(&links)
        .map(|(program, link)| AttachedProgram { program: *program, link: *link });
    Ok(hooked.take(count).collect())
}

/// Returns the programs that run for sockets of a cgroup at a hook, those of its ancestors included.
pub(crate) fn effective_in_cgroup(cgroup: BorrowedFd<'_>, kind: u32) -> io::Result<Vec<u32>> {
    const EFFECTIVE: u32 = 1;
    in_cgroup(cgroup, kind, EFFECTIVE)
}

/// Returns the programs that are attached to this cgroup at a hook.
pub(crate) fn attached_to_cgroup(cgroup: BorrowedFd<'_>, kind: u32) -> io::Result<Vec<u32>> {
    in_cgroup(cgroup, kind, 0)
}

fn in_cgroup(cgroup: BorrowedFd<'_>, kind: u32, flags: u32) -> io::Result<Vec<u32>> {
    let mut programs = [0_u32; HOOKED];
    let count = query(QueryAttributes {
        target: number(cgroup),
        kind,
        flags,
        programs: programs.as_mut_ptr().addr() as u64,
        ..QueryAttributes::default()
    })?;
    Ok(programs.into_iter().take(count).collect())
}

/// Returns the number of programs. Those that do not fit into the slices of `attributes` are left out.
fn query(mut attributes: QueryAttributes) -> io::Result<usize> {
    attributes.count = HOOKED as u32;
    match bpf(PROG_QUERY, &mut attributes) {
        Ok(_) => Ok(attributes.count as usize),
        // No program was ever attached at this side of the interface.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(0),
        Err(error) => Err(error),
    }
}
