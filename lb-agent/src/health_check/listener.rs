//! A listening socket: one task accepts connections, and one task for each connection answers.

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
use crate::http_server::connections::{Connections, HttpConnection, Progress};

/// Length of the kernel's queue of connections to accept.
const BACKLOG: u32 = 1_024;
/// Pause after a failed accept, for example if file descriptors run out.
const PAUSE: Duration = Duration::from_millis(100);

/// The kind of a listener: the families that a socket on an IPv6 address accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerKind {
    /// Only the family of its address.
    OneFamily,
    /// IPv4 too, in v4-mapped form.
    BothFamilies,
}

/// A listening socket; dropping it closes the socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) kind: ListenerKind,
    socket: Arc<TcpListener>,
    task: AbortHandle,
}

impl Listener {
    pub(super) fn open(
        address: SocketAddr,
        kind: ListenerKind,
        answerer: Arc<Answerer>,
        connections: Arc<Connections>,
    ) -> io::Result<Self> {
        // The socket is bound here and not in the task, so that the caller gets the error.
        let socket = Arc::new(bind(address, kind)?);
        let task = tokio::spawn(accept(Arc::clone(&socket), answerer, connections)).abort_handle();
        Ok(Self { kind, socket, task })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
        // The task ends some time later, but the port must be free for its next user now.
        if let Err(error) = shutdown(std::os::fd::AsRawFd::as_raw_fd(&*self.socket), Shutdown::Both)
        {
            tracing::debug!(%error, "listener already closed");
        }
    }
}

fn bind(address: SocketAddr, kind: ListenerKind) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = match TcpSocket::new_v6() {
                // Without IPv6 in the kernel, an IPv4 socket serves all there is.
                Err(error) if kind == ListenerKind::BothFamilies && lacks_family(&error) => {
                    let v4 =
                        SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), address.port());
                    return bind(v4, ListenerKind::OneFamily);
                }
                socket => socket?,
            };
            // The default is a sysctl (`net.ipv6.bindv6only`). An IPv4 socket with the same port needs a socket of one
            // family beside it.
            setsockopt(&socket, Ipv6V6Only, &(kind == ListenerKind::OneFamily))?;
            socket
        }
    };
    // Connections of an earlier listener may be in `TIME_WAIT` at this port. Go sets the option for every listener.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

pub(super) fn lacks_family(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

async fn accept(socket: Arc<TcpListener>, answerer: Arc<Answerer>, connections: Arc<Connections>) {
    while let Ok((accepted, from)) = accept_one(&socket).await {
        let progress = Progress::begin();
        let task = tokio::spawn(answer(accepted, Arc::clone(&answerer), Arc::clone(&progress)));
        // The address of the answerer identifies the Service: it is unique while the Service is listened for.
        let of = Arc::as_ptr(&answerer).addr();
        let task = task.abort_handle();
        connections.admit(HttpConnection { of, from: from.ip(), progress, task });
        // A request may already be waiting; it is read before the next connection is accepted.
        yield_now().await;
    }
}

async fn accept_one(socket: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match socket.accept().await {
            Ok(accepted) => return Ok(accepted),
            // The socket was shut down by `drop`.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
    }
}
