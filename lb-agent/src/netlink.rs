//! The layer below every kind of netlink message: headers, and the kernel's verdict on a request (`linux/netlink.h`).
//!
//! Numbers are in native order. Knows no message's meaning.

use std::io;

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// `NLMSG_ERROR`: the kernel's verdict.
pub(crate) const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 1;
/// A message: `struct nlmsghdr`, then `body`.
pub(crate) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((flags | REQUEST).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Takes the first message from a datagram: its type and what follows its header.
pub(crate) fn next<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let length = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
    let body = rest.get(HEADER..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

/// `struct nlmsgerr`: zero acknowledges.
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
    fn messages_are_taken_one_by_one_and_a_cut_one_ends_the_walk() {
        let message = message(20, 0x300, &[0; 40]);
        let datagram = [message.as_slice(), message.as_slice(), &message[..20]].concat();
        let mut rest = datagram.as_slice();
        let taken: Vec<u16> =
            std::iter::from_fn(|| next(&mut rest)).map(|(kind, _)| kind).collect();
        assert_eq!(taken, [20; 2]);
    }
}
