//! The older packet filter of the kernel (`x_tables`), which can only be read by socket options.

use std::ffi::c_void;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; those of IPv6 have the same numbers.
const INFO: i32 = 64;
const ENTRIES: i32 = 65;
/// Size of `struct ipt_getinfo`, and the offset of the entries' size in it.
const INFO_BYTES: usize = 84;
const SIZE_AT: usize = 80;
/// Size of `struct ipt_get_entries` before the entries: name, size, padding.
const HEAD: usize = 40;
/// Size of the name of a table.
const NAME: usize = 32;

/// Returns the entries of a table of this network namespace; empty if the table does not exist. The request itself
/// would create a missing table, so its name is looked up first.
pub(crate) fn packet_filter_entries(table: &str, is_v6: bool) -> io::Result<Vec<u8>> {
    let (names, level, address) = if is_v6 {
        ("/proc/net/ip6_tables_names", libc::IPPROTO_IPV6, "[::]:0")
    } else {
        ("/proc/net/ip_tables_names", libc::IPPROTO_IP, "0.0.0.0:0")
    };
    if !std::fs::read_to_string(names).unwrap_or_default().lines().any(|name| name == table) {
        return Ok(Vec::new());
    }
    let socket = UdpSocket::bind(address)?;
    let mut info = [0; INFO_BYTES];
    info.iter_mut().take(NAME - 1).zip(table.bytes()).for_each(|(to, from)| *to = from);
    ask(&socket, level, INFO, &mut info)?;
    // The table can grow between both calls; the second one then fails with EAGAIN.
    let size = info.get(SIZE_AT..).and_then(|size| size.first_chunk()).copied();
    let size = size.unwrap_or_default();
    let mut entries = vec![0; HEAD + u32::from_ne_bytes(size) as usize];
    let head = info.iter().take(NAME).copied().chain(size);
    entries.iter_mut().zip(head).for_each(|(to, from)| *to = from);
    ask(&socket, level, ENTRIES, &mut entries)?;
    Ok(entries.split_off(HEAD))
}

fn ask(socket: &UdpSocket, level: i32, option: i32, value: &mut [u8]) -> io::Result<()> {
    let mut length = value.len() as libc::socklen_t;
    let into = value.as_mut_ptr().cast::<c_void>();
    // SAFETY: the pointer leads to a live slice, and `length` is its size.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, into, &raw mut length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_table_has_no_entries() {
        assert!(packet_filter_entries("no such table", false).expect("nothing").is_empty());
    }
}
