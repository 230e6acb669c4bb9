//! Follows links alone, on a socket that a thread of its own reads: nothing delays the kernel's notification of a new
//! link.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

use super::view::NetnsView;
use super::watch::{enlarge, is_whole, put, read};
use crate::netlink::{DONE, DUMP, ERROR, message, next};

/// Multicast group of link events (`RTNLGRP_LINK`).
const GROUP: u32 = 1;
/// `RTM_GETLINK`, and the size of `struct ifinfomsg`.
const GET: u16 = 18;
const LINK: usize = 16;
/// Largest size of a datagram, in bytes; the kernel uses at most half of it for lists.
const DATAGRAM: usize = 64 << 10;
/// Time limit of one wait, so that the reader can check whether it is still needed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The links of this network namespace. The view has no addresses and no routes.
#[derive(Debug)]
pub(crate) struct Links {
    socket: Socket,
    pub(crate) view: NetnsView,
}

/// The links that events were about.
#[derive(Debug, Default)]
pub(crate) struct LinkChanges {
    /// Links that are new or changed.
    pub(crate) changed: BTreeSet<u32>,
    /// Links that were removed. One that was recreated is in both sets.
    pub(crate) gone: BTreeSet<u32>,
}

impl LinkChanges {
    fn record(&mut self, message: &RouteNetlinkMessage) {
        if let RouteNetlinkMessage::NewLink(link) = message
            && is_whole(link)
        {
            self.changed.insert(link.header.index);
        } else if let RouteNetlinkMessage::DelLink(link) = message
            && is_whole(link)
        {
            self.gone.insert(link.header.index);
        }
    }
}

impl Links {
    /// Subscribes to changes, and lists the existing links.
    pub(crate) fn follow() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        let _own: SocketAddr = socket.bind_auto()?;
        // The subscription precedes the list, so that no link can appear between both unnoticed.
        socket.add_membership(GROUP)?;
        enlarge(socket.as_fd());
        let seconds = TimeVal::new(PATIENCE.as_secs().cast_signed(), 0);
        // The timeout lets the thread check from time to time whether it must end.
        setsockopt(&socket, sockopt::ReceiveTimeout, &seconds)?;
        let mut links = Self { socket, view: NetnsView::default() };
        drop(links.list()?);
        Ok(links)
    }

    /// Waits for changes, and returns all that are there; none if nothing came within the time limit. If the kernel
    /// dropped events, all links are listed again and count as changed.
    pub(crate) fn next(&mut self) -> io::Result<LinkChanges> {
        let (mut changes, mut flags) = (LinkChanges::default(), 0);
        loop {
            match self.receive(flags) {
                Ok(datagram) => drop(self.take(&datagram, &mut changes)),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN | Errno::EINTR) => return Ok(changes),
                    // The kernel has dropped events (netlink(7)), so only a list shows the current links.
                    Some(Errno::ENOBUFS) => return self.list(),
                    _ => return Err(error),
                },
            }
            // Everything else that has arrived is handled with it.
            flags = libc::MSG_DONTWAIT;
        }
    }

    /// Lists all links. If events were dropped meanwhile, the list may be older than they were, so it is repeated.
    fn list(&mut self) -> io::Result<LinkChanges> {
        let mut changes = LinkChanges::default();
        // Interfaces that vanished while events were lost are found by comparison.
        let before: Vec<u32> = self.view.links.keys().copied().collect();
        loop {
            self.view.links.clear();
            self.socket.send_to(&message(GET, DUMP, &[0; LINK]), &SocketAddr::new(0, 0), 0)?;
            let mut is_whole = true;
            loop {
                match self.receive(0) {
                    Ok(datagram) if self.take(&datagram, &mut changes) => break,
                    Ok(_) => {}
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => is_whole = false,
                    Err(error) => return Err(error),
                }
            }
            if is_whole {
                changes.gone.extend(before.iter().filter(|it| !self.view.links.contains_key(it)));
                return Ok(changes);
            }
        }
    }

    fn receive(&self, flags: libc::c_int) -> io::Result<Vec<u8>> {
        let mut datagram = Vec::with_capacity(DATAGRAM);
        let _length: usize = self.socket.recv(&mut datagram, flags)?;
        Ok(datagram)
    }

    /// Applies the messages of a datagram. Returns whether it was the last one of a list.
    fn take(&mut self, datagram: &[u8], changes: &mut LinkChanges) -> bool {
        let mut rest = datagram;
        while let Some((kind, body)) = next(&mut rest) {
            if kind == DONE || kind == ERROR {
                return true;
            }
            if let Some(message) = read(kind, body) {
                changes.record(&message);
                put(&mut self.view, &message);
            }
        }
        false
    }
}
