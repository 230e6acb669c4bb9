//! Opens the maps of a data path for commands: no programs are loaded, and no agent needs to run.

use std::io;
use std::path::{Path, PathBuf};

use super::pins::{layouts, maps_directory};
use super::upgrade::is_of_another_build;
use crate::maps::{self, Maps};
use crate::syscall::netns_cookie;

/// The map whose pin shows that a data path exists.
const SERVICES: &str = "SERVICES";

/// The reason why the maps cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory has no pinned maps of this layout: no agent has used it, or the pins were removed.
    #[error("no data path in {0}: start one with `lb-agent run`, or give another --bpf-dir")]
    NoDatapath(PathBuf),
    /// The directory has the maps of another layout only: an agent of an earlier or later version uses it, or this one
    /// has not yet replaced them.
    #[error(
        "{0} holds a data path of another layout: use the lb-agent of that version; this one replaces it as soon as it \
         runs and has read all objects"
    )]
    OtherLayout(PathBuf),
    /// The directory cannot be read.
    #[error("{path}: {source}{}", remedy(source))]
    Unreadable { path: PathBuf, source: io::Error },
    /// The data path serves another network namespace than that of the process.
    #[error(
        "the data path in {0} serves another network namespace: run this where the agent runs (--network=host, \
         hostNetwork, or nsenter --net)"
    )]
    OtherNamespace(PathBuf),
    /// The maps belong to a build whose maps of the same name have other fingerprints.
    #[error(
        "{0} holds the data path of another build: use the lb-agent of that build, or start this \
         one, which replaces it"
    )]
    OtherBuild(PathBuf),
    /// A map cannot be opened.
    #[error(transparent)]
    Maps(#[from] maps::Error),
}

/// Opens the maps of a data path, whether an agent runs or not. Fails if there are none, or if they belong to another
/// build.
pub fn open(bpf_dir: &Path) -> Result<Maps, OpenError> {
    let maps = maps_directory(bpf_dir);
    match maps.join(SERVICES).try_exists() {
        Ok(true) => {}
        Ok(false) if has_other_layout(bpf_dir) => {
            return Err(OpenError::OtherLayout(bpf_dir.to_owned()));
        }
        Ok(false) => return Err(OpenError::NoDatapath(bpf_dir.to_owned())),
        Err(source) => return Err(OpenError::Unreadable { path: maps, source }),
    }
    if is_of_another_build(bpf_dir) {
        return Err(OpenError::OtherBuild(bpf_dir.to_owned()));
    }
    Ok(Maps::open(&maps)?)
}

/// Opens the maps of a data path that serves the network namespace of this process, for a command that also reads or
/// changes the namespace.
pub fn open_here(bpf_dir: &Path) -> Result<Maps, OpenError> {
    let maps = open(bpf_dir)?;
    if is_here(&maps) { Ok(maps) } else { Err(OpenError::OtherNamespace(bpf_dir.to_owned())) }
}

/// Reports whether a data path serves the network namespace of this process. True if that is not known.
pub fn is_here(maps: &Maps) -> bool {
    serves_here(maps).unwrap_or(true)
}

/// Reports whether a data path serves the network namespace of this process, if that is known.
pub(super) fn serves_here(maps: &Maps) -> Option<bool> {
    let cookie = maps.settings().ok()?.node.netns_cookie;
    // Maps that no agent has written yet have no cookie.
    (cookie != 0).then(|| netns_cookie().is_ok_and(|own| own == cookie))
}

fn remedy(source: &io::Error) -> &'static str {
    // A bpffs belongs to root.
    let is_denied = source.kind() == io::ErrorKind::PermissionDenied;
    if is_denied { "; only root can read the pins of a data path" } else { "" }
}

/// Reports whether the directory has the maps of another layout.
fn has_other_layout(bpf_dir: &Path) -> bool {
    let layouts = layouts(bpf_dir).unwrap_or_default();
    layouts.iter().any(|layout| layout.join("maps").join(SERVICES).exists())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn directory_without_maps_of_this_layout_is_told_apart_from_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        assert!(matches!(open(dir), Err(OpenError::NoDatapath(_))));
        fs::create_dir_all(maps_directory(dir)).unwrap();
        assert!(matches!(open(dir), Err(OpenError::NoDatapath(_))), "its agent has just begun");
        let other = dir.join("v0/maps");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join(SERVICES), "").unwrap();
        assert!(matches!(open(dir), Err(OpenError::OtherLayout(_))));
        let file = dir.join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(open(&file), Err(OpenError::Unreadable { .. })));
    }
}
