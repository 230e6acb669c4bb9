//! `status` and the lists, for people. They read the pinned maps and the state file of the last run, so they work
//! without an agent.

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

/// The reason why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No agent has run here.
    #[error("no data path in {0}: start one with `lb-agent run`, or give another --bpf-dir")]
    NoDatapath(PathBuf),
    /// The maps have another layout than this build expects.
    #[error(
        "{0} holds the data path of another build: use the lb-agent of that build, or start this \
         one, which replaces it"
    )]
    OtherBuild(PathBuf),
    /// A map cannot be read.
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// No service has this name.
    #[error("{name}: no such service; `lb-agent service list` shows all{}", .hint)]
    NoService {
        /// The requested name.
        name: String,
        /// A possible cause, or empty.
        hint: &'static str,
    },
    /// The interface does not exist.
    #[error("interface {0}: does not exist; `ip link` lists all interfaces")]
    NoInterface(String),
    /// The interface has no programs.
    #[error(
        "interface {0}: it has no programs, so the data path does not see its packets; \
         `lb-agent status` lists interfaces with programs, --device selects one"
    )]
    NotServed(String),
    /// The bridge has ports of pods and other ports.
    #[error(
        "bridge {0}: it has ports of pods and others; name the interface of the client with --device"
    )]
    SeveralPorts(String),
    #[error("no route to {to}: {source}; name the interface of the client with --device")]
    NoRoute { to: IpAddr, source: io::Error },
    /// Packets of this node have no route.
    #[error("no route to {to}: {source}; a process of this node gets the same error")]
    NoRouteOut { to: IpAddr, source: io::Error },
    #[error("{0} and {1}: addresses of different families; give two of the same")]
    Families(IpAddr, IpAddr),
    #[error("write the list")]
    Write(#[from] io::Error),
    #[error("write json")]
    Json(#[from] serde_json::Error),
    #[error("write yaml")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

/// Returns the directory of the pinned maps.
fn directory(bpf_dir: &Path) -> PathBuf {
    bpf_dir.join(LAYOUT).join("maps")
}

/// Opens the maps of a data path, whether or not an agent runs. Fails if there is none, or if it is one of another
/// build.
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
