//! Facts about an interface and a network namespace that netlink does not provide.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;

/// `SO_NETNS_COOKIE`, Linux 5.14; nix and libc do not define it for every target.
const SO_NETNS_COOKIE: i32 = 71;

/// Returns driver and bus address of an interface (`ETHTOOL_GDRVINFO`); both may be empty for a virtual one.
pub(crate) fn driver(device: &str) -> io::Result<(String, String)> {
    const GET_DRIVER: u32 = 3;
    #[repr(C)]
    struct Information {
        command: u32,
        driver: [u8; 32],
        version: [u8; 32],
        firmware: [u8; 32],
        bus: [u8; 32],
        expansion: [u8; 32],
        rest: [u8; 12],
        numbers: [u32; 5],
    }
    // The request is not for the socket: one of this kind needs neither a port nor an interface.
    let socket = UnixDatagram::unbound()?;
    // SAFETY: all zeroes is valid for plain numbers and bytes.
    let mut information: Information = unsafe { std::mem::zeroed() };
    information.command = GET_DRIVER;
    // SAFETY: all zeroes is a valid ifreq: an empty name and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: it terminates the name.
    for (to, from) in request.ifr_name.iter_mut().take(15).zip(device.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_data = (&raw mut information).cast();
    // SAFETY: the request names an interface and points at a value that outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let text = |bytes: &[u8; 32]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    Ok((text(&information.driver), text(&information.bus)))
}

/// Returns the name of an interface of our network namespace; `None` if the index does not exist.
pub(crate) fn device_name(index: u32) -> Option<String> {
    // nix 0.31 returns an empty name instead of an error if the interface does not exist.
    let name = nix::net::if_::if_indextoname(index).ok()?;
    Some(name.to_string_lossy().into_owned()).filter(|name| !name.is_empty())
}

/// Returns the index of an interface of our network namespace; `None` if the name does not exist.
pub(crate) fn device_index(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}

/// The cookie of the network namespace we run in. Linux 5.14.
pub fn netns_cookie() -> io::Result<u64> {
    let socket = UnixDatagram::unbound()?;
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: both pointers lead to live variables, and `length` says how large the first one is.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_are_gone_have_no_name() {
        assert_eq!(device_name(1).as_deref(), Some("lo"));
        assert_eq!(device_name(u32::MAX), None);
    }
}
