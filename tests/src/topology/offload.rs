//! Two offload settings of an interface: its transmit checksum offload (`ethtool -K INTERFACE tx off`), and the NAPI
//! polling of a veth.
//!
//! Between namespaces the kernel does not compute transport checksums by default: packets carry a partial one. With the
//! offload off they carry a complete one, as on a physical wire.

use std::io;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::netns::Netns;

/// `ETHTOOL_STXCSUM`; it also disables segmentation offload, which depends on it.
const SET_TX_CHECKSUM: u32 = 0x17;

/// `ETHTOOL_SGRO`: a veth with GRO uses NAPI polling.
const SET_MERGING: u32 = 0x2c;

#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Makes sockets of the namespace compute complete checksums for packets that leave by `device`.
pub(crate) fn switch_checksum_offload_off(netns: &Netns, device: &str) -> Result<()> {
    netns
        .run_in(|| set(device, SET_TX_CHECKSUM, 0))?
        .with_context(|| format!("checksum offload of {device} in {}", netns.name()))
}

/// Enables or disables NAPI polling of a veth: only with it does the veth accept frames that XDP at its other end
/// redirects.
pub(crate) fn switch_polling(netns: &Netns, device: &str, polls: bool) -> Result<()> {
    netns
        .run_in(|| set(device, SET_MERGING, polls.into()))?
        .with_context(|| format!("polling of {device} in {}", netns.name()))
}

fn set(device: &str, command: u32, data: u32) -> io::Result<()> {
    let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut value = Value { command, data };
    // SAFETY: all zeroes is a valid ifreq: an empty name and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request names an interface and points at a value that outlives the call.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
