//! The common part of all netlink protocols: sockets, headers, attributes, lists, and the kernel's result of a request
//! (`linux/netlink.h`).
//!
//! Numbers are in native byte order. The meaning of each message is left to the callers.

mod notifications;

use std::io;

use netlink_sys::{Socket, SocketAddr};

pub(crate) use notifications::Notifications;

/// Size of `struct nlmsghdr`, in bytes.
pub(crate) const HEADER: usize = 16;
/// `NLMSG_ERROR`: the result of a request.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a list.
pub(crate) const DONE: u16 = 3;
/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 1;
/// `NLM_F_DUMP`: requests a list.
pub(crate) const DUMP: u16 = 0x300;
/// `NLA_TYPE_MASK`: the type of an attribute without its flags.
const KIND: u16 = 0x3fff;

/// Opens a socket to the kernel.
pub(crate) fn connect(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    let _own: SocketAddr = socket.bind_auto()?;
    // The kernel has port 0. A connected socket gets no messages of other processes (`netlink_getsockbyportid` in
    // net/netlink/af_netlink.c).
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Makes a message: `struct nlmsghdr`, then `body`.
pub(crate) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | REQUEST).to_ne_bytes());
    // Sequence and port are 0: each socket has one request at a time.
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Takes the first message from a datagram: its type and its body.
pub(crate) fn next<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let length = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
    let body = rest.get(HEADER..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

/// Requests a list, and calls `see` with the type and the body of each message in it.
pub(crate) fn list(
    socket: &Socket,
    kind: u16,
    body: &[u8],
    mut see: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    socket.send(&message(kind, DUMP, body), 0)?;
    loop {
        let (datagram, _from) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        let mut taken = 0;
        // A datagram holds several messages, and the list ends with a message of its own.
        while let Some((kind, body)) = next(&mut rest) {
            taken += 1;
            match kind {
                DONE => return Ok(()),
                ERROR => return verdict(body),
                _ => see(kind, body),
            }
        }
        // A datagram without a message would otherwise make this loop wait for more for ever.
        if taken == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Makes an attribute: `struct nlattr` and its value, padded to four bytes.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut attribute = Vec::from((4 + value.len() as u16).to_ne_bytes());
    attribute.extend(kind.to_ne_bytes());
    attribute.extend(value);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

/// Returns the attributes in order, with type and value. A truncated one ends the iteration.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & KIND;
        let value = rest.get(4..length)?;
        // Attributes are padded to 4 bytes (`NLA_ALIGN`).
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the value of the first attribute of a type.
pub(crate) fn find(all: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(all).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Parses `struct nlmsgerr`: zero means success.
pub(crate) fn verdict(body: &[u8]) -> io::Result<()> {
    match body.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_kernel_is_an_error_with_its_number() {
        assert_eq!(verdict(&0_i32.to_ne_bytes()).ok(), Some(()));
        let error = verdict(&(-libc::EPERM).to_ne_bytes()).expect_err("refused");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(verdict(&[]).is_err(), "cut short");
    }

    #[test]
    fn attributes_are_found_among_others_and_cut_ones_are_none() {
        let all = [attribute(7, b"abc"), attribute(3, &7_u64.to_ne_bytes())].concat();
        assert_eq!(find(&all, 3), Some(7_u64.to_ne_bytes().as_slice()));
        assert_eq!(find(&all, 7), Some(b"abc".as_slice()));
        assert_eq!(find(&all, 1), None);
        assert_eq!(find(all.get(..14).expect("longer"), 3), None);
        assert_eq!(find(&[0; 8], 3), None);
    }

    #[test]
    fn messages_are_taken_one_by_one_and_a_cut_one_ends_the_walk() {
        let message = message(20, DUMP, &[0; 40]);
        let datagram = [message.as_slice(), message.as_slice(), &message[..20]].concat();
        let mut rest = datagram.as_slice();
        let taken: Vec<u16> =
            std::iter::from_fn(|| next(&mut rest)).map(|(kind, _)| kind).collect();
        assert_eq!(taken, [20; 2]);
    }
}
