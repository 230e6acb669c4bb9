//! Opens the maps of a data path for commands: without loading programs, whether an agent runs or not.

use std::path::{Path, PathBuf};

use super::pins::maps_directory;
use super::upgrade::is_of_another_build;
use crate::maps::{self, Maps};

/// Why there are no maps to open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No agent ever ran here.
    #[error("no data path in {0}: start one with `lb-agent run`, or give another --bpf-dir")]
    NoDatapath(PathBuf),
    /// Maps that mean something else to us.
    #[error(
        "{0} holds the data path of another build: use the lb-agent of that build, or start this \
         one, which replaces it"
    )]
    OtherBuild(PathBuf),
    /// A map could not be opened.
    #[error(transparent)]
    Maps(#[from] maps::Error),
}

/// Opens the maps of a data path, whether an agent runs or not. An error where there is none, or one of another build.
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
