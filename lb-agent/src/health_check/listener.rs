//! One listening socket: a task that accepts, and others that answer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::sockopt::Ipv6V6Only;
use nix::sys::socket::{Shutdown, setsockopt, shutdown};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::sleep;

use super::answer::{Answerer, answer};
use crate::http_server::connections::{Connection, Connections, Progress};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1_024;
/// After an accept that failed, for example for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The families that a socket on an IPv6 address takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only the family of its address.
    OneFamily,
    /// IPv4 too, in its mapped form.
    BothFamilies,
}

/// A socket that is listened on until this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) kind: Kind,
    socket: Arc<TcpListener>,
    task: AbortHandle,
}

impl Listener {
    pub(super) fn open(
        address: SocketAddr,
        kind: Kind,
        answerer: Arc<Answerer>,
        connections: Arc<Connections>,
    ) -> io::Result<Self> {
        let socket = Arc::new(bind(address, kind)?);
        let task = tokio::spawn(accept(Arc::clone(&socket), answerer, connections)).abort_handle();
        Ok(Self { kind, socket, task })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
        // The task ends some time; the port must be free for its next user at once.
        if let Err(error) = shutdown(std::os::fd::AsRawFd::as_raw_fd(&*self.socket), Shutdown::Both)
        {
            tracing::debug!(%error, "listener already closed");
        }
    }
}

fn bind(address: SocketAddr, kind: Kind) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = match TcpSocket::new_v6() {
                // A kernel without IPv6: what is left of both families is one.
                Err(error) if kind == Kind::BothFamilies && lacks_family(&error) => {
                    let v4 =
                        SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), address.port());
                    return bind(v4, Kind::OneFamily);
                }
                socket => socket?,
            };
            setsockopt(&socket, Ipv6V6Only, &(kind == Kind::OneFamily))?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn lacks_family(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

async fn accept(socket: Arc<TcpListener>, answerer: Arc<Answerer>, connections: Arc<Connections>) {
    while let Ok((accepted, from)) = accept_one(&socket).await {
        let progress = Progress::begin();
        let task = tokio::spawn(answer(accepted, Arc::clone(&answerer), Arc::clone(&progress)));
        // A Service is told from the others by where its answers are made.
        let of = Arc::as_ptr(&answerer).addr();
        let task = task.abort_handle();
        connections.admit(Connection { of, from: from.ip(), progress, task });
        // Its request may be here already: it is read before the next one is let in.
        yield_now().await;
    }
}

async fn accept_one(socket: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match socket.accept().await {
            Ok(accepted) => return Ok(accepted),
            // Shut down: nobody wants it any more.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
    }
}
