//! Notifications of the kernel about changes of links, routes and their settings (`rtnetlink(7)`).

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use nix::errno::Errno;

/// A subscription to multicast groups of rtnetlink.
pub(crate) struct Notifications(TokioSocket);

impl Notifications {
    /// Subscribes to groups, by their numbers (`RTNLGRP_*`). The present state is not reported.
    pub(crate) fn of(groups: &[u32]) -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        let _own: SocketAddr = socket.socket_mut().bind_auto()?;
        for group in groups {
            socket.socket_mut().add_membership(*group)?;
        }
        Ok(Self(socket))
    }

    /// Waits for a datagram. `None` if the kernel has dropped some because they were not read in time.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.0.recv_from_full().await {
            Ok((datagram, _from)) => Ok(Some(datagram)),
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
