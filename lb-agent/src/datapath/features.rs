//! XDP features of an interface's driver: generic netlink, family `netdev` (Linux 6.3).
//!
//! It asks one question: does the driver transmit frames that XDP redirects to the interface? If not, such a frame is
//! lost and not counted. So any answer but a clear yes means no.

use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

use crate::netlink::{ERROR, message, next, verdict};

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY` and its attributes.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NETDEV_CMD_DEV_GET` and its attributes.
const GET_DEVICE: u8 = 1;
const INDEX: u16 = 1;
const FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_NDO_XMIT`: as the target of a redirect. A veth has it as long as its other end polls.
const TRANSMITS: u64 = 4;

/// The meaning of a missing feature.
pub(super) const NO_FRAMES: &str =
    "its driver accepts no frames from XDP (a veth does when its peer has an XDP program or GRO)";

/// Whether a device sends frames of XDP programs, its own and those of others.
pub(super) fn takes_frames(index: u32) -> io::Result<bool> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    let _own: SocketAddr = socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let family = ask(&socket, CONTROL, GET_FAMILY, &attribute(FAMILY_NAME, b"netdev\0"))?;
    let family = find(&family, FAMILY_ID).and_then(|id| id.first_chunk().copied());
    let family = family.map(u16::from_ne_bytes).ok_or(io::ErrorKind::Unsupported)?;
    let device = ask(&socket, family, GET_DEVICE, &attribute(INDEX, &index.to_ne_bytes()))?;
    let features = find(&device, FEATURES).and_then(|bits| bits.first_chunk().copied());
    Ok(features.is_some_and(|bits| u64::from_ne_bytes(bits) & TRANSMITS != 0))
}

/// The attributes of the answer.
fn ask(socket: &Socket, family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
    // `struct genlmsghdr`: command, version, nothing.
    let body = [&[command, 1, 0, 0], attributes].concat();
    socket.send(&message(family, 0, &body), 0)?;
    let (datagram, _from) = socket.recv_from_full()?;
    match next(&mut datagram.as_slice()) {
        Some((ERROR, body)) => {
            Err(verdict(body).err().unwrap_or_else(|| io::ErrorKind::NotFound.into()))
        }
        Some((_, body)) => Ok(body.get(4..).unwrap_or_default().to_vec()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// `struct nlattr` and its value, filled up to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut attribute = Vec::from((4 + value.len() as u16).to_ne_bytes());
    attribute.extend(kind.to_ne_bytes());
    attribute.extend(value);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    attribute
}

/// The value of the first attribute of a kind.
pub(super) fn find(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        // Without the flags `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
        let found = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & 0x3fff;
        let value = rest.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_among_others_and_cut_ones_are_none() {
        let all = [attribute(7, b"abc"), attribute(FEATURES, &7_u64.to_ne_bytes())].concat();
        assert_eq!(find(&all, FEATURES), Some(7_u64.to_ne_bytes().as_slice()));
        assert_eq!(find(&all, 7), Some(b"abc".as_slice()));
        assert_eq!(find(&all, INDEX), None);
        assert_eq!(find(all.get(..14).expect("longer"), FEATURES), None);
        assert_eq!(find(&[0; 8], FEATURES), None);
    }

    #[test]
    fn the_loopback_device_takes_none_and_one_that_is_not_there_is_an_error() {
        assert!(!takes_frames(1).expect("netlink"));
        assert!(takes_frames(u32::MAX).is_err());
    }
}
