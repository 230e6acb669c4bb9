//! Messages of netfilter (`linux/netfilter/nfnetlink.h`): tables of nftables, connections of conntrack.
//!
//! Numbers of messages are in native byte order, those of attributes in network byte order. The meaning of each message
//! is left to the callers.

use std::io;

use lb_common::addr::Ip;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::netlink::{ERROR, attributes, connect, list, message, next, verdict};
pub(crate) use crate::netlink::{attribute, find};

pub(crate) mod conntrack;

/// `NLM_F_ACK`, `NLM_F_CREATE`.
pub(crate) const ACK: u16 = 4;
pub(crate) const CREATE: u16 = 0x400;
/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`.
const BEGIN: u16 = 16;
const END: u16 = 17;
/// `NFNL_SUBSYS_NFTABLES`.
pub(crate) const TABLES: u16 = 10 << 8;
/// `NFT_MSG_GETCHAIN` of it.
pub(crate) const CHAINS: u16 = TABLES | 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// Bytes of `struct nfgenmsg`.
const HEAD: usize = 4;

/// Opens a netlink socket of netfilter. The kernel replies while it takes a message, so reads never block.
pub(crate) fn open() -> io::Result<Socket> {
    let socket = connect(NETLINK_NETFILTER)?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Makes a body: `struct nfgenmsg`, then attributes.
pub(crate) fn body(family: u8, attributes: &[u8]) -> Vec<u8> {
    [&[family, 0, 0, 0], attributes].concat()
}

/// Lists all objects of a kind, and calls `see` with the family and the attributes of each.
pub(crate) fn dump(
    kind: u16,
    family: u8,
    attributes: &[u8],
    mut see: impl FnMut(u8, &[u8]),
) -> io::Result<()> {
    list(&open()?, kind, &body(family, attributes), |_, body| {
        if let (Some(family), Some(attributes)) = (body.first(), body.get(HEAD..)) {
            see(*family, attributes);
        }
    })
}

/// Sends one request and returns the kernel's result.
pub(crate) fn request(kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let socket = open()?;
    socket.send(&message(kind, flags | ACK, body), 0)?;
    verdicts(&socket, 1)
}

/// Changes tables of nftables: all messages take effect, or none.
pub(crate) fn change(messages: &[(u16, u16, Vec<u8>)]) -> io::Result<()> {
    let socket = open()?;
    let [high, low] = (TABLES >> 8).to_be_bytes();
    // nftables accepts changes only inside of a batch (`NFNL_MSG_BATCH_BEGIN` in `linux/netfilter/nfnetlink.h`).
    let frame = |kind| message(kind, 0, &[0, 0, high, low]);
    let all =
        messages.iter().flat_map(|(kind, flags, body)| message(TABLES | kind, flags | ACK, body));
    let batch: Vec<u8> = frame(BEGIN).into_iter().chain(all).chain(frame(END)).collect();
    socket.send(&batch, 0)?;
    verdicts(&socket, messages.len())
}

fn verdicts(socket: &Socket, count: usize) -> io::Result<()> {
    let mut left = count;
    while left > 0 {
        let (datagram, _from) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        let before = left;
        while let Some((kind, body)) = next(&mut rest) {
            // An acknowledgement is an error message with the code 0.
            if kind == ERROR {
                verdict(body)?;
                left = left.saturating_sub(1);
            }
        }
        // A datagram without an acknowledgement would otherwise be awaited for ever.
        if left == before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Makes an attribute that contains others.
pub(crate) fn nested(kind: u16, inner: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &inner.concat())
}

/// Makes an attribute with a text, terminated by a zero byte.
pub(crate) fn name(kind: u16, name: &str) -> Vec<u8> {
    attribute(kind, &[name.as_bytes(), &[0]].concat())
}

/// Makes an attribute with a number in network byte order.
pub(crate) fn number(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

/// Returns the values of all attributes, in order.
pub(crate) fn values(all: &[u8]) -> impl Iterator<Item = &[u8]> {
    attributes(all).map(|(_, value)| value)
}

/// Parses an address of either family, by its length.
pub(crate) fn address(value: &[u8]) -> Option<Ip> {
    match value.len() {
        4 => value.first_chunk().copied().map(Ip::v4),
        16 => value.first_chunk().copied().map(Ip::v6),
        _ => None,
    }
}

/// Makes an attribute with an address, of the type for its family.
pub(crate) fn addressed(v4: u16, v6: u16, ip: Ip) -> Vec<u8> {
    if ip.is_v4() { attribute(v4, &ip.v4_octets()) } else { attribute(v6, &ip.octets()) }
}

/// Returns a text without its terminating zero byte.
pub(crate) fn text(value: &[u8]) -> &str {
    std::str::from_utf8(value).unwrap_or_default().trim_end_matches('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_also_within_others() {
        let all = [name(1, "kube-proxy"), nested(4, &[number(1, 7), name(2, "x")])].concat();
        assert_eq!(find(&all, 1).map(text), Some("kube-proxy"));
        let inner = find(&all, 4).expect("the nested one");
        assert_eq!(find(inner, 1), Some([0, 0, 0, 7].as_slice()));
        assert_eq!(find(inner, 3), None);
        assert_eq!(values(inner).collect::<Vec<_>>(), [[0, 0, 0, 7].as_slice(), b"x\0"]);
        assert_eq!(find(&[0; 8], 1), None, "an attribute without a length ends the walk");
    }
}
