//! Nexthop objects (Linux 5.3): routes may refer to them by id instead of naming an interface. FRR uses them that way
//! if `net.ipv4.nexthop_compat_mode` is 0.

use std::collections::BTreeMap;
use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::{self, Notifications};

/// `RTM_NEWNEXTHOP`, `RTM_GETNEXTHOP`.
const NEW: u16 = 104;
const GET: u16 = 106;
/// `RTNLGRP_NEXTHOP` (Linux 5.3).
const CHANGES: u32 = 32;
/// Size of `struct nhmsg`, and its attributes.
const HEAD: usize = 8;
const ID: u16 = 1;
const GROUP: u16 = 2;
const DEVICE: u16 = 5;
const GATEWAY: u16 = 6;
/// Size of `struct nexthop_grp`, which begins with the id.
const MEMBER: usize = 8;

/// A next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hop {
    pub(super) device: u32,
    pub(super) has_gateway: bool,
}

/// A nexthop object: a next hop, or the ids of other objects.
#[derive(Debug, Default, PartialEq, Eq)]
struct NexthopObject {
    hop: Option<Hop>,
    members: Vec<u32>,
}

/// Notifications of changed nexthop objects: routes that use them lead elsewhere without a notification of their own.
pub(super) struct NexthopChanges(Notifications);

impl NexthopChanges {
    /// Subscribes to changes. Existing objects are not reported.
    pub(super) fn follow() -> io::Result<Self> {
        Notifications::of(&[CHANGES]).map(Self)
    }

    /// Waits for a change. Dropped notifications count as one.
    pub(super) async fn next(&mut self) -> io::Result<()> {
        self.0.next().await.map(drop)
    }
}

/// Returns the next hops of every object, by id. Blocks while the kernel replies.
pub(super) fn list() -> io::Result<BTreeMap<u32, Vec<Hop>>> {
    let mut objects = BTreeMap::new();
    netlink::list(&netlink::connect(NETLINK_ROUTE)?, GET, &[0; HEAD], |kind, body| {
        objects.extend((kind == NEW).then(|| object(body)).flatten());
    })?;
    Ok(resolved(&objects))
}

/// Resolves groups to the next hops of their members.
fn resolved(objects: &BTreeMap<u32, NexthopObject>) -> BTreeMap<u32, Vec<Hop>> {
    // One level is enough: the kernel refuses a group within a group (`valid_group_nh` in net/ipv4/nexthop.c).
    let hop = |number: &u32| objects.get(number)?.hop;
    let hops = |object: &NexthopObject| {
        object.hop.into_iter().chain(object.members.iter().filter_map(hop)).collect()
    };
    objects.iter().map(|(number, object)| (*number, hops(object))).collect()
}

fn object(body: &[u8]) -> Option<(u32, NexthopObject)> {
    let (mut number, mut device, mut has_gateway) = (None, None, false);
    let mut object = NexthopObject::default();
    for (kind, value) in netlink::attributes(body.get(HEAD..)?) {
        let word = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        match kind {
            ID => number = word,
            DEVICE => device = word,
            GATEWAY => has_gateway = true,
            GROUP => {
                let members = value.chunks_exact(MEMBER).filter_map(|it| it.first_chunk());
                object.members.extend(members.map(|bytes| u32::from_ne_bytes(*bytes)));
            }
            _ => {}
        }
    }
    object.hop = device.map(|device| Hop { device, has_gateway });
    Some((number?, object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(number: u32, attributes: &[(u16, Vec<u8>)]) -> (u32, NexthopObject) {
        let all = [&[(ID, number.to_ne_bytes().to_vec())], attributes].concat();
        let mut body = vec![0; HEAD];
        for (kind, value) in all {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(&value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        object(&body).unwrap()
    }

    #[test]
    fn objects_lead_to_devices_and_groups_to_those_of_their_members() {
        let device = |index: u32| (DEVICE, index.to_ne_bytes().to_vec());
        let member = |number: u32| [number.to_ne_bytes(), [0; 4]].concat();
        let objects = BTreeMap::from([
            one(1, &[device(4), (GATEWAY, vec![10, 0, 0, 1])]),
            one(2, &[device(5)]),
            one(7, &[(GROUP, [member(1), member(2)].concat())]),
            one(8, &[(4, Vec::new())]),
        ]);
        let (first, second) =
            (Hop { device: 4, has_gateway: true }, Hop { device: 5, has_gateway: false });
        let expected = [(1, vec![first]), (2, vec![second]), (7, vec![first, second]), (8, vec![])];
        assert_eq!(resolved(&objects), BTreeMap::from(expected));
        assert!(object(&[0; 4]).is_none(), "cut short");
    }

    #[test]
    fn the_kernel_lists_its_objects() {
        // There may be no nexthop objects at all.
        assert!(list().is_ok_and(|objects| objects.len() < 1_000_000));
    }
}
