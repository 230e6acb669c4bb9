//! Messages about links and addresses that the parser of the library refuses as a whole.
//!
//! One attribute is enough: an alias, a second name or a label that is no UTF-8, as the kernel takes any bytes. The
//! library skips such a message without an error, so the interface would count as removed. This module reduces these
//! messages to the attributes that the agent reads, and makes names printable.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{NetlinkDeserializable as _, NetlinkHeader};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::{attribute, attributes, connect, find, list};

/// `RTM_NEWLINK`, `RTM_DELLINK` and `RTM_GETLINK`, and the size of `struct ifinfomsg`.
const LINK_KINDS: [u16; 2] = [16, 17];
const GET_LINKS: u16 = 18;
const LINK: usize = 16;
/// `RTM_NEWADDR`, `RTM_DELADDR` and `RTM_GETADDR`, and the size of `struct ifaddrmsg`.
const ADDRESS_KINDS: [u16; 2] = [20, 21];
const GET_ADDRESSES: u16 = 22;
const ADDRESS: usize = 8;
/// `IFLA_IFNAME` and `IFLA_LINKINFO`.
const NAME: u16 = 3;
const INFO: u16 = 18;
/// `IFLA_ADDRESS`, `IFLA_LINK`, `IFLA_MASTER`, `IFLA_LINK_NETNSID` and `IFLA_XDP`.
const OF_LINK: [u16; 5] = [1, 5, 10, 37, 43];
/// `IFA_ADDRESS`, `IFA_LOCAL` and `IFA_FLAGS`.
const OF_ADDRESS: [u16; 3] = [1, 2, 8];
/// `IFLA_INFO_KIND` and `IFLA_INFO_DATA`.
const KIND: u16 = 1;
const DATA: u16 = 2;

/// Parses a message by its type, if need be with less of its attributes; `None` if it cannot be parsed.
pub(in crate::node) fn read(kind: u16, body: &[u8]) -> Option<RouteNetlinkMessage> {
    parse(kind, body).or_else(|| parse(kind, &reduced(kind, body)?))
}

/// Returns the links that are not `known`, and all addresses, that the library cannot parse.
pub(super) fn look(known: &BTreeSet<u32>) -> io::Result<Vec<RouteNetlinkMessage>> {
    let socket = connect(NETLINK_ROUTE)?;
    let mut found = Vec::new();
    let mut see = |kind, body: &[u8]| {
        let is_known = || index(body).is_some_and(|index| known.contains(&index));
        let is_parsed =
            if LINK_KINDS.contains(&kind) { is_known() } else { parse(kind, body).is_some() };
        if !is_parsed {
            found.extend(read(kind, body));
        }
    };
    list(&socket, GET_LINKS, &[0; LINK], &mut see)?;
    list(&socket, GET_ADDRESSES, &[0; ADDRESS], &mut see)?;
    Ok(found)
}

/// Returns the index of the interface that a message is about (`ifi_index`).
fn index(body: &[u8]) -> Option<u32> {
    body.get(4..)?.first_chunk().map(|index| u32::from_ne_bytes(*index))
}

fn parse(kind: u16, body: &[u8]) -> Option<RouteNetlinkMessage> {
    let mut header = NetlinkHeader::default();
    header.message_type = kind;
    RouteNetlinkMessage::deserialize(&header, body).ok()
}

/// A function that reduces an attribute, given its type and value.
type Keep = fn(u16, &[u8]) -> Option<Vec<u8>>;

/// Returns a message with the attributes that the agent reads.
fn reduced(kind: u16, body: &[u8]) -> Option<Vec<u8>> {
    let (size, keep): (usize, Keep) = if LINK_KINDS.contains(&kind) {
        (LINK, of_link)
    } else if ADDRESS_KINDS.contains(&kind) {
        (ADDRESS, |kind, value| OF_ADDRESS.contains(&kind).then(|| attribute(kind, value)))
    } else {
        return None;
    };
    let (header, rest) = body.split_at_checked(size)?;
    let kept: Vec<Vec<u8>> =
        attributes(rest).filter_map(|(kind, value)| keep(kind, value)).collect();
    Some([header, &kept.concat()].concat())
}

fn of_link(kind: u16, value: &[u8]) -> Option<Vec<u8>> {
    match kind {
        NAME => {
            let printable = String::from_utf8_lossy(value);
            Some(attribute(kind, printable.as_bytes()))
        }
        INFO => {
            let of = find(value, KIND)?;
            // Only of netkit interfaces more than the kind is read: their mode.
            let data = find(value, DATA).filter(|_| of.starts_with(b"netkit"));
            let data = data.map(|data| attribute(DATA, data)).unwrap_or_default();
            Some(attribute(kind, &[attribute(KIND, of), data].concat()))
        }
        kind => OF_LINK.contains(&kind).then(|| attribute(kind, value)),
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};

    use super::*;

    /// `IFLA_IFALIAS`.
    const ALIAS: u16 = 20;

    fn link_message(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; LINK];
        if let Some(index) = body.get_mut(4..8) {
            index.copy_from_slice(&7_u32.to_ne_bytes());
        }
        body.extend(attributes.iter().flat_map(|(kind, value)| attribute(*kind, value)));
        body
    }

    fn link(attributes: &[(u16, &[u8])]) -> LinkMessage {
        match read(LINK_KINDS[0], &link_message(attributes)) {
            Some(RouteNetlinkMessage::NewLink(link)) => link,
            other => panic!("no link: {other:?}"),
        }
    }

    fn names(link: &LinkMessage) -> Vec<String> {
        let name = |it: &LinkAttribute| {
            if let LinkAttribute::IfName(name) = it { Some(name.clone()) } else { None }
        };
        link.attributes.iter().filter_map(name).collect()
    }

    #[test]
    fn link_with_an_alias_in_another_encoding_is_read() {
        let alias: (u16, &[u8]) = (ALIAS, b"B\xfcro\0");
        assert!(parse(LINK_KINDS[0], &link_message(&[alias])).is_none(), "the library reads it");
        let link = link(&[(NAME, b"eth0\0"), alias, (10, &3_u32.to_ne_bytes())]);
        assert_eq!((link.header.index, names(&link)), (7, vec!["eth0".to_owned()]));
        assert!(link.attributes.contains(&LinkAttribute::Controller(3)));
    }

    #[test]
    fn name_in_another_encoding_becomes_printable() {
        let info = attribute(KIND, b"veth\0");
        let link = link(&[(NAME, b"\xfcber\0"), (INFO, &info)]);
        assert_eq!(names(&link), ["\u{fffd}ber"]);
        assert!(link.attributes.iter().any(|it| matches!(it, LinkAttribute::LinkInfo(_))));
    }

    #[test]
    fn address_with_a_label_in_another_encoding_is_read() {
        /// `IFA_LABEL`.
        const LABEL: u16 = 3;
        let mut body = vec![2, 24, 0, 0, 7, 0, 0, 0];
        body.extend(attribute(2, &[10, 0, 0, 1]));
        body.extend(attribute(LABEL, b"eth0:\xfc\0"));
        assert!(parse(ADDRESS_KINDS[0], &body).is_none());
        assert!(matches!(read(ADDRESS_KINDS[0], &body), Some(RouteNetlinkMessage::NewAddress(_))));
    }

    #[test]
    fn links_that_are_known_are_left_out() {
        let of = |known| look(&known).expect("a list");
        let mut found = of(BTreeSet::new());
        found.retain(|it| matches!(it, RouteNetlinkMessage::NewLink(_)));
        assert!(!found.is_empty());
        let known = (0..1 << 16).collect();
        assert!(!of(known).iter().any(|it| matches!(it, RouteNetlinkMessage::NewLink(_))));
    }
}
