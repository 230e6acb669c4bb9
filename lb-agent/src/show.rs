//! What people read: `status` and the lists. Built from the pins, and from the names that the last run left
//! beside them, so they work with the agent dead.

use std::path::{Path, PathBuf};

use crate::datapath::{self, LAYOUT};
use crate::maps::{self, Maps};

pub mod affinity;
mod beside;
pub mod diff;
pub mod flows;
pub mod ipvs;
pub mod list;
pub mod map;
mod print;
pub mod repeat;
pub mod services;
pub mod status;
pub(crate) mod words;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No agent ever ran here.
    #[error("{0} holds no data path: start one with `lb-agent run`, or name another --bpf-dir")]
    NoDatapath(PathBuf),
    /// Maps that mean something else to us.
    #[error(
        "{0} holds another build's data path: ask with that build's lb-agent, or start this one, \
         which takes it over"
    )]
    OtherBuild(PathBuf),
    /// A map could not be read.
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// Nobody has that name.
    #[error("{name}: no such service here; `lb-agent service list` names all{}", .hint)]
    NoService {
        /// What was asked for.
        name: String,
        /// Why it may not be found, or nothing.
        hint: &'static str,
    },
    /// JSON.
    #[error("write json")]
    Json(#[from] serde_json::Error),
    /// YAML.
    #[error("write yaml")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// Where the maps are pinned.
fn folder(bpf_dir: &Path) -> PathBuf {
    bpf_dir.join(LAYOUT).join("maps")
}

fn open(bpf_dir: &Path) -> Result<Maps, Error> {
    let maps = folder(bpf_dir);
    if !maps.join("SERVICES").exists() {
        return Err(Error::NoDatapath(bpf_dir.to_owned()));
    }
    if datapath::is_of_another_build(bpf_dir) {
        return Err(Error::OtherBuild(bpf_dir.to_owned()));
    }
    Ok(Maps::open(&maps)?)
}
