//! Errors of preparing the network stack.

use std::io;

/// The reason why the network stack could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A netlink socket could not be opened, or a file could not be written.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
    /// The kernel refused a request.
    #[error("{0}")]
    Netlink(&'static str, #[source] rtnetlink::Error),
    /// There is no loopback interface.
    #[error("no loopback interface")]
    NoLoopback,
}
