//! `status` and the lists, for people. They read the pins and the state file of the last run, so they work without an
//! agent.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::datapath::{self, LAYOUT};
use crate::maps::{self, Maps};

pub mod affinity;
mod attachments;
pub mod diff;
pub mod explain;
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
    #[error("no data path in {0}: start one with `lb-agent run`, or give another --bpf-dir")]
    NoDatapath(PathBuf),
    /// Maps that mean something else to us.
    #[error(
        "{0} holds the data path of another build: use the lb-agent of that build, or start this \
         one, which replaces it"
    )]
    OtherBuild(PathBuf),
    /// A map could not be read.
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// Nobody has that name.
    #[error("{name}: no such service; `lb-agent service list` names all{}", .hint)]
    NoService {
        /// The name that was asked for.
        name: String,
        /// Why it may not be found, or nothing.
        hint: &'static str,
    },
    /// An interface that is not there.
    #[error("interface {0}: there is none of this name; `ip link` lists all")]
    NoInterface(String),
    /// An interface without programs.
    #[error(
        "interface {0}: it has no programs, so its packets are not seen; `lb-agent status` lists those that have, \
         --device names another"
    )]
    NotServed(String),
    /// A bridge with ports of pods and others.
    #[error("bridge {0}: it has ports of pods and others; name that of the client with --device")]
    SeveralPorts(String),
    #[error("no route to {to}: {source}; name the interface of the client with --device")]
    NoRoute { to: IpAddr, source: io::Error },
    /// Packets of this node do not leave.
    #[error("no route to {to}: {source}; a process of this node gets the same error")]
    NoRouteOut { to: IpAddr, source: io::Error },
    #[error("{0} and {1}: addresses of two families; no packet has both")]
    Families(IpAddr, IpAddr),
    #[error("write the list")]
    Write(#[from] io::Error),
    #[error("write json")]
    Json(#[from] serde_json::Error),
    #[error("write yaml")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// Where the maps are pinned.
fn directory(bpf_dir: &Path) -> PathBuf {
    bpf_dir.join(LAYOUT).join("maps")
}

/// Opens the maps of a data path, whether an agent runs or not. An error where there is none, or one of another build.
pub fn open(bpf_dir: &Path) -> Result<Maps, Error> {
    let maps = directory(bpf_dir);
    if !maps.join("SERVICES").exists() {
        return Err(Error::NoDatapath(bpf_dir.to_owned()));
    }
    if datapath::is_of_another_build(bpf_dir) {
        return Err(Error::OtherBuild(bpf_dir.to_owned()));
    }
    Ok(Maps::open(&maps)?)
}
