//! Inspects one attachment: the link at its pin, and its place among other programs on the interface.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use super::role::Direction;
use crate::syscall::{self, AttachedProgram};

/// The fault that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The pin is gone, and the link with it.
    Unpinned,
    /// The link leads nowhere, or the kernel does not run it.
    Detached,
    /// The link runs another program than ours.
    Replaced,
    /// Another program is before ours.
    Displaced,
}

impl Fault {
    pub const ALL: [Self; 4] = [Self::Unpinned, Self::Detached, Self::Replaced, Self::Displaced];

    /// Returns the name that metrics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unpinned => "unpinned",
            Self::Detached => "detached",
            Self::Replaced => "replaced",
            Self::Displaced => "displaced",
        }
    }
}

/// The result of inspecting a pin.
pub(super) enum Look {
    /// The attachment is at fault.
    Fault(Fault),
    /// The link is at its target: ids of the link and of its program.
    Link { link: u32, program: u32 },
}

/// Inspects the link behind a pin. On a file system that was mounted read-only the kernel opens no pin: then `held`,
/// the link that this run made there, is inspected.
pub(super) fn look(
    path: &Path,
    held: Option<&OwnedFd>,
    same: impl Fn(&syscall::LinkInfo) -> bool,
) -> io::Result<Look> {
    match syscall::open_pin(path) {
        Ok(link) => look_at(link.as_fd(), same),
        Err(error) => match (error.kind(), held) {
            (io::ErrorKind::NotFound, _) => Ok(Look::Fault(Fault::Unpinned)),
            (io::ErrorKind::ReadOnlyFilesystem, Some(held)) => look_at(held.as_fd(), same),
            _ => Err(error),
        },
    }
}

fn look_at(link: BorrowedFd<'_>, same: impl Fn(&syscall::LinkInfo) -> bool) -> io::Result<Look> {
    let info = syscall::link_info(link)?;
    Ok(if same(&info) {
        Look::Link { link: info.id, program: info.program }
    } else {
        Look::Fault(Fault::Detached)
    })
}

/// Checks that our link is the first. `order` is the order in which programs run.
pub(super) fn fault_in(order: &[AttachedProgram], link: u32) -> Option<Fault> {
    match order.first() {
        Some(first) if first.link == link => None,
        _ if order.iter().any(|hooked| hooked.link == link) => Some(Fault::Displaced),
        _ => Some(Fault::Detached),
    }
}

/// Returns the message about a program that displaces ours.
pub(super) fn problem(device: &str, order: &[AttachedProgram], direction: Direction) -> String {
    let number = order.first().map_or(0, |first| first.program);
    let direction = direction.name();
    format!(
        "interface {device}: program {number} of another owner attached itself before the agent's at {direction}, and \
         the agent restores the order; packets that the program does not pass on are not served meanwhile: attach it \
         behind the agent's"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_program_belongs_first() {
        let order = |links: &[u32]| -> Vec<AttachedProgram> {
            links.iter().map(|link| AttachedProgram { program: 100 + link, link: *link }).collect()
        };
        assert_eq!(fault_in(&order(&[7, 8]), 7), None);
        assert_eq!(fault_in(&order(&[8, 7]), 7), Some(Fault::Displaced));
        assert_eq!(fault_in(&order(&[8]), 7), Some(Fault::Detached));
        for direction in Direction::BOTH {
            let said = problem("eth0", &order(&[8, 7]), direction);
            assert!(said.contains("eth0: program 108"), "{said}");
            assert!(said.contains(direction.name()), "{said}");
            assert!(said.ends_with("attach it behind the agent's"), "{said}");
        }
    }
}
