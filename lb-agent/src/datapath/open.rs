//! Opens the maps of a data path for commands: no programs are loaded, and no agent needs to run.

use std::path::{Path, PathBuf};

use super::pins::maps_directory;
use super::upgrade::is_of_another_build;
use crate::maps::{self, Maps};

/// The reason why the maps cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory has no pinned maps of this layout: no agent has used it, or the pins were removed.
    #[error("no data path in {0}: start one with `lb-agent run`, or give another --bpf-dir")]
    NoDatapath(PathBuf),
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
    if !maps.join("SERVICES").exists() {
        return Err(OpenError::NoDatapath(bpf_dir.to_owned()));
    }
    if is_of_another_build(bpf_dir) {
        return Err(OpenError::OtherBuild(bpf_dir.to_owned()));
    }
    Ok(Maps::open(&maps)?)
}
