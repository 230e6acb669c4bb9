//! XDP features of an interface's driver: generic netlink, family `netdev` (Linux 6.3).
//!
//! A driver may be unable to transmit frames that XDP redirects to the interface. Such a frame is lost and not counted,
//! so every answer except a clear yes counts as no.

use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::netlink::{ERROR, attribute, connect, find, message, next, verdict};

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY` and its attributes.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NETDEV_CMD_DEV_GET` and its attributes.
const GET_DEVICE: u8 = 1;
const INDEX: u16 = 1;
const FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_NDO_XMIT`: the interface can be the target of a redirect. A veth has it while its peer polls with
/// NAPI.
const TRANSMITS: u64 = 4;

/// The reason for operators if the feature is missing.
pub(super) const NO_FRAMES: &str =
    "its driver accepts no frames from XDP (a veth does when its peer has an XDP program or GRO)";

/// Reports whether an interface transmits frames that XDP redirects to it.
pub(super) fn takes_frames(index: u32) -> io::Result<bool> {
    let socket = connect(NETLINK_GENERIC)?;
    let family = ask(&socket, CONTROL, GET_FAMILY, &attribute(FAMILY_NAME, b"netdev\0"))?;
    // Generic netlink assigns the numbers of families at run time.
    let family = find(&family, FAMILY_ID).and_then(|id| id.first_chunk().copied());
    let family = family.map(u16::from_ne_bytes).ok_or(io::ErrorKind::Unsupported)?;
    let device = ask(&socket, family, GET_DEVICE, &attribute(INDEX, &index.to_ne_bytes()))?;
    let features = find(&device, FEATURES).and_then(|bits| bits.first_chunk().copied());
    Ok(features.is_some_and(|bits| u64::from_ne_bytes(bits) & TRANSMITS != 0))
}

/// Sends a request and returns the attributes of the reply.
fn ask(socket: &Socket, family: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
    // `struct genlmsghdr`: command, version, reserved.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_takes_none_and_one_that_is_not_there_is_an_error() {
        assert!(!takes_frames(1).expect("netlink"));
        assert!(takes_frames(u32::MAX).is_err());
    }
}
