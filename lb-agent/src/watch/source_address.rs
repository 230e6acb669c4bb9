//! A connection that ends when this host loses its source address.
//!
//! The kernel keeps such a connection until its timers expire, and nothing arrives on it meanwhile. Only an address
//! that was in the node's list and left it ends a connection: some addresses, such as those of the loopback network,
//! are in no list.

use std::future::pending;
use std::io::{self, ErrorKind, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;

use crate::node::watch::PublishedView;

/// Updates of the addresses of this host; `None` if they are not followed.
pub type AddressUpdates = Option<Receiver<PublishedView>>;

/// A TCP connection that fails once its source address has left this host.
pub(super) struct Sourced {
    stream: TokioIo<TcpStream>,
    /// Ready when the address is gone.
    gone: BoxFuture<'static, ()>,
    is_gone: bool,
}

impl Sourced {
    pub(super) fn new(stream: TokioIo<TcpStream>, addresses: AddressUpdates) -> Self {
        // The address may be in v4-mapped form, in which no list has it.
        let source = stream.inner().local_addr().map(|local| local.ip().to_canonical());
        let gone: BoxFuture<'static, ()> = match (source, addresses) {
            (Ok(source), Some(addresses)) => Box::pin(gone(source, addresses)),
            _ => Box::pin(pending()),
        };
        Self { stream, gone, is_gone: false }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.is_gone = self.is_gone || self.gone.as_mut().poll(cx).is_ready();
        if self.is_gone {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, "its source address is gone"));
        }
        Ok(())
    }
}

/// Waits until the host has had the address and lost it.
async fn gone(source: IpAddr, mut addresses: Receiver<PublishedView>) {
    let mut was_own = false;
    loop {
        let is_own = addresses.borrow_and_update().as_ref().is_some_and(|published| {
            published.view.addresses.iter().any(|address| address.ip == source)
        });
        if was_own && !is_own {
            tracing::info!(%source, "source address of an API server connection is gone; reconnecting");
            return;
        }
        was_own |= is_own;
        if addresses.changed().await.is_err() {
            // The addresses are no longer followed.
            return pending().await;
        }
    }
}

impl Connection for Sourced {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl Read for Sourced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // Hyper reads at all times, also on an idle connection, so this poll wakes it.
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for Sourced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}
