//! Why a run ends: with an error, or well.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::manifests::ManifestsError;
use crate::watch::client::ClientError;
use crate::{datapath, maps};

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's side.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// The directory of manifests.
    #[error(transparent)]
    Manifests(#[from] ManifestsError),
    /// The API server's address or credentials.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The initial sync did not complete in time.
    #[error(
        "initial sync did not complete within {0:?}; check that the agent reaches the API server \
         and may read its objects"
    )]
    NoLists(Duration),
    /// A listener, where `bindAddressHardFail` is set.
    #[error(
        "cannot listen on {address} ({what}); unset bindAddressHardFail to retry instead of exiting"
    )]
    Listen {
        /// The name of the listener.
        what: &'static str,
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    /// A signal handler or a namespace cookie.
    #[error("system call")]
    System(#[from] io::Error),
}

/// Why a run ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Somebody said stop.
    Asked,
    /// There is another configuration, or maps must be larger: begin anew.
    Changed,
}
