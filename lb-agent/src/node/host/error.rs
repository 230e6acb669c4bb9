//! Errors of the network stack's preparation.

use std::io;

/// Why the stack was not prepared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No netlink socket, or a file.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
    /// The kernel refused a request.
    #[error("{0}")]
    Netlink(&'static str, #[source] rtnetlink::Error),
    /// There is no loopback interface.
    #[error("no loopback interface")]
    NoLoopback,
}
