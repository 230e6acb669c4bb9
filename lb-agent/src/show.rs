//! What people read: `status`, `lb list`. Built from the pins alone, so they work with the agent dead.

use std::path::{Path, PathBuf};

use crate::datapath::LAYOUT;
use crate::maps::{self, Maps};

pub mod list;
pub mod status;
pub(crate) mod words;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No agent ever ran here.
    #[error("{0} holds no data path: start one with `lb-agent run`, or name another --bpf-dir")]
    NoDatapath(PathBuf),
    /// A map could not be read.
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// JSON.
    #[error("write json")]
    Json(#[from] serde_json::Error),
}

fn open(bpf_dir: &Path) -> Result<Maps, Error> {
    let maps = bpf_dir.join(LAYOUT).join("maps");
    if !maps.join("SERVICES").exists() {
        return Err(Error::NoDatapath(bpf_dir.to_owned()));
    }
    Ok(Maps::open(&maps)?)
}
