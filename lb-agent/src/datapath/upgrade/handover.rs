//! The change from the programs of one set of maps to those of another: the earlier run's programs stay beside ours
//! until all their flows are copied.
//!
//! Links can only be switched one by one, while packets pass. A flow that the programs of one set began at one
//! interface could be answered through an interface with programs of the other set, which do not know the flow. So
//! where answers pass, both programs are attached, ours first: each translates the flows that it knows and passes the
//! rest on. A packet that ours translated matches no frontend and no flow of the others. The exception is a backend
//! that is itself a frontend: until the old programs go, a new connection to it may be translated twice.
//!
//! On interfaces of pods, which carry mostly requests, one update of the link replaces the program. Answers there (to
//! the pod itself, and to this host) are lost if their flow is not in a shared map.

use std::fs;
use std::io;
use std::path::Path;

use crate::datapath::detach::{brings_answers, detach_where};
use crate::datapath::error::{Error, LinkFailure};
use crate::datapath::pins::{aside, is_aside, list};
use crate::datapath::role::{Direction, InterfaceRole};

/// The link that a program is attached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datapath) enum LinkMode {
    /// The link that an earlier run left; the program replaces that run's program.
    Reused,
    /// A new link beside the one that an earlier run left.
    New,
}

impl LinkMode {
    pub(in crate::datapath) fn at_device(
        role: InterfaceRole,
        direction: Direction,
        hands_over: bool,
    ) -> Self {
        let has_answers = role != InterfaceRole::Pod || brings_answers(direction.name());
        if hands_over && has_answers { Self::New } else { Self::Reused }
    }

    /// Returns the mode for a program at a socket hook.
    pub(in crate::datapath) fn at_hook(name: &str, hands_over: bool) -> Self {
        if hands_over && brings_answers(name) { Self::New } else { Self::Reused }
    }
}

/// Renames a link so that another can be made beside it. If an earlier attempt was interrupted, the link it renamed
/// stays.
pub(in crate::datapath) fn move_aside(link: &Path, mode: LinkMode) -> Result<(), LinkFailure> {
    let aside = aside(link);
    if mode == LinkMode::Reused || aside.exists() {
        return Ok(());
    }
    match fs::rename(link, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(LinkFailure::Pin(link.to_owned(), error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Undoes a rename of an earlier run that was killed. Returns whether that run had already made the new link: it stays,
/// and the renamed link ends once the new one runs our program.
pub(in crate::datapath) fn undo_move_aside(link: &Path) -> Result<bool, LinkFailure> {
    let aside = aside(link);
    if link.exists() || !aside.exists() {
        return Ok(aside.exists());
    }
    fs::rename(&aside, link).map_err(|error| LinkFailure::Pin(aside, error))?;
    Ok(false)
}

/// Reports whether links of an earlier run remain beside ours.
pub(in crate::datapath) fn is_under_way(links: &Path) -> Result<bool, Error> {
    Ok(list(links)?.iter().any(|path| is_aside(path)))
}

/// Detaches the links that an earlier run left beside ours. Failures do not stop it.
pub(super) fn forget(links: &Path) -> Result<(), Error> {
    detach_where(links, is_aside).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::pins;

    #[test]
    fn link_that_was_moved_aside_belongs_to_its_interface() {
        let directory = tempfile::tempdir().unwrap();
        let link = pins::of_device(directory.path(), 7, Direction::Egress);
        fs::write(&link, "").unwrap();
        assert!(move_aside(&link, LinkMode::New).is_ok() && aside(&link).exists());
        assert!(!link.exists());
        assert_eq!(pins::devices(directory.path()).unwrap(), [7]);
    }

    #[test]
    fn a_link_that_was_put_aside_has_its_name_again_unless_there_is_a_newer_one() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("7-ingress");
        let names = || list(directory.path()).unwrap();
        assert!(matches!(undo_move_aside(&link), Ok(false)) && names().is_empty());
        fs::write(aside(&link), "").unwrap();
        assert!(matches!(undo_move_aside(&link), Ok(false)));
        assert_eq!(names(), [&*link]);
        fs::write(aside(&link), "").unwrap();
        assert!(matches!(undo_move_aside(&link), Ok(true)));
        assert_eq!(names(), [link.clone(), aside(&link)]);
    }

    #[test]
    fn both_programs_are_attached_only_where_answers_pass() {
        let mode = |role, direction| LinkMode::at_device(role, direction, true);
        assert_eq!(mode(InterfaceRole::Pod, Direction::Ingress), LinkMode::Reused);
        assert_eq!(mode(InterfaceRole::Pod, Direction::Egress), LinkMode::New);
        assert_eq!(mode(InterfaceRole::External, Direction::Ingress), LinkMode::New);
        assert_eq!(mode(InterfaceRole::L3, Direction::Ingress), LinkMode::New);
        assert_eq!(LinkMode::at_hook("connect6", true), LinkMode::Reused);
        assert_eq!(LinkMode::at_hook("peername6", true), LinkMode::New);
        assert_eq!(LinkMode::at_hook("peername6", false), LinkMode::Reused);
    }
}
