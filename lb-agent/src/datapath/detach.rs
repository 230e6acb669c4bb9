//! Removes links, and layouts with theirs: first detached, then unpinned. Without its pin alone a link would end some
//! milliseconds later, and only half of the packets of a connection that begins meanwhile would be translated.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::names::FINGERPRINTS;
use super::pins::{list, remove, remove_pin};
use crate::syscall;

/// The parts of a layout's directory. Links are removed first, so that no program reads a partly removed map.
const PARTS: [&str; 4] = ["links", "programs", "maps", FINGERPRINTS];

/// Detaches a link and removes its pin. Its place is free when this returns.
pub(super) fn detach_and_unpin(link: &Path) -> Result<(), Error> {
    // A pin of another object, or of a detached link, has nothing to detach; the pin is removed all the same.
    if let Ok(link) = syscall::open_pin(link) {
        drop(syscall::detach_link(link.as_fd()));
    }
    remove_pin(link)
}

/// Removes the links of a directory that `is` selects, and returns them. Failures do not stop it; the error is the
/// first one.
///
/// Links that let flows begin are removed first, so that answers under way are translated for longer.
pub(super) fn detach_where(
    links: &Path,
    is: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, Error> {
    let mut paths = list(links)?;
    paths.retain(|path| path.is_file() && is(path));
    let name = |path: &Path| path.file_name().unwrap_or_default().display().to_string();
    paths.sort_by_key(|path| brings_answers(&name(path)));
    paths.iter().map(|path| detach_and_unpin(path)).fold(Ok(()), Result::and)?;
    Ok(paths)
}

/// Removes everything of one layout; no packet is on its way through its programs when this returns.
pub(super) fn remove_layout(layout: &Path, removed: &mut Vec<PathBuf>) -> Result<(), Error> {
    let links = detach_where(&layout.join("links"), |_| true)?;
    if !links.is_empty() {
        syscall::wait_for_programs();
    }
    removed.extend(links);
    PARTS.iter().try_for_each(|part| remove(&layout.join(part), removed))?;
    remove(layout, removed)
}

/// Reports whether answers pass a link of this name and, except at external interfaces, no requests. At socket hooks,
/// connect is the request.
pub(super) fn brings_answers(link: &str) -> bool {
    ["egress", "recvmsg", "peername"].iter().any(|part| link.contains(part))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn links_that_begin_flows_are_removed_first() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["7-egress", "7-ingress", "connect4", "recvmsg4", "recvmsg4-old"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let gone = detach_where(directory.path(), |path| !path.ends_with("recvmsg4-old")).unwrap();
        let names: Vec<_> = gone.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["7-ingress", "connect4", "7-egress", "recvmsg4"]);
        assert_eq!(list(directory.path()).unwrap(), [directory.path().join("recvmsg4-old")]);
    }
}
