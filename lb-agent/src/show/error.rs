//! Errors of the commands that show the data path.

use std::io;
use std::net::IpAddr;

use crate::datapath::OpenError;
use crate::maps;

/// The reason why a command can show nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The maps cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A map could not be read.
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// No service port has the name.
    #[error("{name}: no such service; `lb-agent service list` names all{}", .hint)]
    NoService {
        /// The requested name.
        name: String,
        /// A possible reason why the name is not found; may be empty.
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
        "bridge {0}: it has ports of pods and other ports; name the interface of the client with --device"
    )]
    SeveralPorts(String),
    #[error("no route to {to}: {source}; name the interface of the client with --device")]
    NoRoute { to: IpAddr, source: io::Error },
    /// Packets of this node have no route.
    #[error("no route to {to}: {source}; a process of this node gets the same error")]
    NoRouteOut { to: IpAddr, source: io::Error },
    #[error("{0} and {1}: addresses of different families; give two of the same")]
    Families(IpAddr, IpAddr),
    #[error("read the sockets of this node")]
    Sockets(#[source] io::Error),
    #[error("write the list")]
    Write(#[from] io::Error),
    #[error("write json")]
    Json(#[from] serde_json::Error),
    #[error("write yaml")]
    Yaml(#[from] serde_saphyr::ser::Error),
}
