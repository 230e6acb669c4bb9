//! The end of a run: with an error, or a regular one.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::handover::Handover;
use crate::manifests::ManifestsError;
use crate::watch::client::ClientError;
use crate::{datapath, maps};

/// The reason why the agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Programs, pins or links failed.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// The directory of manifests cannot be read.
    #[error(transparent)]
    Manifests(#[from] ManifestsError),
    /// The API server's address or credentials cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The initial sync did not complete in time.
    #[error(
        "initial sync did not complete within {0:?}; check that the agent reaches the API server \
         and may read its objects"
    )]
    NoLists(Duration),
    /// A task has panicked. Without it the agent would never learn of a change.
    #[error(
        "the task that follows {0} has ended (see the log before this line); the agent must restart"
    )]
    Lost(&'static str),
    /// A listener could not bind, and `bindAddressHardFail` is set.
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
    /// A system call failed, for a signal handler or the cookie of the network namespace for example.
    #[error("system call")]
    System(#[from] io::Error),
}

/// A regular end of a run.
#[derive(Debug)]
pub enum Outcome {
    /// The agent is to stop.
    Stop,
    /// The agent is to run again in the same process, with these facts.
    Restart(Handover),
}

/// The reason of a regular end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The agent received SIGTERM or SIGINT.
    Asked,
    /// The configuration has changed, or maps must be larger: the agent restarts.
    Changed,
    /// A task has ended that follows what the text names ([`Error::Lost`]).
    Lost(&'static str),
}
