//! Handmade frames, sent unchanged out of an interface.

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socket};

use crate::netns::Netns;

/// A packet socket that sends frames out of one interface.
#[derive(Debug)]
pub struct Raw {
    socket: OwnedFd,
}

impl Raw {
    /// Opens an interface of a namespace for sending.
    pub fn open(netns: &Netns, device: &str) -> Result<Self> {
        let socket = netns.run_in(|| packet_socket(device, 0))?;
        let socket = socket.with_context(|| format!("raw {device} of {}", netns.name()))?;
        Ok(Self { socket })
    }

    /// Sends one frame, from the Ethernet header on.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        send(self.socket.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }
}

/// Opens a packet socket bound to interface `device` of the current namespace; with `protocol` 0 it receives nothing.
pub(crate) fn packet_socket(device: &str, protocol: u16) -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    let index = if_nametoindex(CString::new(device)?.as_c_str())?;
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index.cast_signed();
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a live sockaddr_ll and the size is its own.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}
