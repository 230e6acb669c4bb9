//! Who would miss packets that go past the stack (ADR 0021): netfilter, `IPsec`, others' queues and programs. Only looks.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_XFRM};

use crate::datapath::{Direction, Role, beside};
use crate::netlink::{attribute, dump};

/// `NFT_MSG_GETCHAIN` of nfnetlink's subsystem 10.
const GET_CHAIN: u16 = 10 << 8 | 4;
/// Attributes of a chain: its table ...
const TABLE: u16 = 1;
/// ... its name ...
const NAME: u16 = 3;
/// ... where it is hooked ...
const HOOK: u16 = 4;
/// ... what it says when no rule does ...
const POLICY: u16 = 5;
/// ... and who refers to it: of one that is hooked, its rules.
const USE: u16 = 6;
/// Of a hook: its number.
const NUMBER: u16 = 1;
/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;
/// `XFRM_MSG_GETPOLICY`.
const GET_POLICY: u16 = 0x15;
/// `RTM_GETQDISC`.
const GET_QUEUE: u16 = 38;
/// Length of `struct tcmsg`.
const QUEUE: usize = 20;
/// `TCA_KIND`.
const KIND: u16 = 1;

/// Who sees packets of the whole node on their way through the stack; nothing: nobody.
pub fn of_node() -> Option<String> {
    let unknown = |what: &str, error: &io::Error| Some(format!("{what} cannot be asked: {error}"));
    let chains = dump(NETLINK_NETFILTER, GET_CHAIN, &[0; 4]);
    let chains = match chains {
        Ok(chains) => chains,
        Err(error) if is_absent(&error) => Vec::new(),
        Err(error) => return unknown("nftables", &error),
    };
    if let Some(chain) = chains.iter().find_map(|chain| base_chain(chain)) {
        return Some(format!("nftables: {chain}"));
    }
    for file in ["ip_tables_names", "ip6_tables_names"] {
        // Not there where the kernel has none of them.
        let tables = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        if let Some(table) = tables.unwrap_or_default().lines().next() {
            return Some(format!("iptables (legacy): table {table}"));
        }
    }
    match dump(NETLINK_XFRM, GET_POLICY, &[]) {
        Ok(policies) if policies.is_empty() => None,
        Ok(_) => Some("IPsec policies".to_owned()),
        Err(error) if is_absent(&error) => None,
        Err(error) => unknown("IPsec", &error),
    }
}

/// A kernel without it.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::EINVAL | libc::EOPNOTSUPP))
}

/// Names a chain (`struct nfgenmsg`, then attributes) that packets on their way through the node go through, and that does
/// something about them.
fn base_chain(body: &[u8]) -> Option<String> {
    // `NFPROTO_...`, `NF_INET_LOCAL_IN` and `NF_INET_LOCAL_OUT`.
    const INET: u8 = 1;
    const IPV4: u8 = 2;
    const ARP: u8 = 3;
    const NETDEV: u8 = 5;
    const BRIDGE: u8 = 7;
    const IPV6: u8 = 10;
    const LOCAL_IN: u32 = 1;
    const LOCAL_OUT: u32 = 3;
    let family = *body.first()?;
    let attributes = body.get(4..)?;
    let word = |bytes: &[u8]| bytes.first_chunk().map(|word| u32::from_be_bytes(*word));
    let hook = attribute(attribute(attributes, HOOK)?, NUMBER).and_then(word)?;
    let rules = attribute(attributes, USE).and_then(word);
    let policy = attribute(attributes, POLICY).and_then(word);
    let is_passed = match family {
        ARP => false,
        INET | IPV4 | IPV6 | BRIDGE => !matches!(hook, LOCAL_IN | LOCAL_OUT),
        _ => true,
    };
    if !is_passed || rules == Some(0) && policy.is_none_or(|policy| policy == ACCEPT) {
        return None;
    }
    let family = match family {
        INET => "inet",
        IPV4 => "ip",
        NETDEV => "netdev",
        BRIDGE => "bridge",
        IPV6 => "ip6",
        _ => "other",
    };
    let text = |kind| attribute(attributes, kind).map(text).unwrap_or_default();
    Some(format!("chain {family} {} {}", text(TABLE), text(NAME)))
}

/// A text that ends with a zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// Who else has to do with packets at these devices, by device.
pub fn of_devices(devices: &BTreeMap<u32, Role>) -> io::Result<BTreeMap<u32, String>> {
    let mut found = BTreeMap::new();
    for queue in dump(NETLINK_ROUTE, GET_QUEUE, &[0; QUEUE])? {
        if let Some((index, kind)) = queue_of(&queue)
            && let Some(role) = devices.get(&index)
            && minds(*role, &kind)
        {
            drop(found.insert(index, format!("it has a queueing discipline ({kind})")));
        }
    }
    for (index, role) in devices {
        match is_shared(*index, *role) {
            Ok(false) => {}
            Ok(true) => drop(found.insert(*index, "somebody else has a program on it".to_owned())),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                drop(found.insert(*index, "it is gone".to_owned()));
            }
            Err(error) => drop(found.insert(*index, format!("it cannot be asked: {error}"))),
        }
    }
    Ok(found)
}

/// Whether a program that is not ours would be passed by.
fn is_shared(index: u32, role: Role) -> io::Result<bool> {
    let others = |direction| Ok::<_, io::Error>(beside(index, direction)?.len() > 1);
    // What goes out by a device to the outside meets the programs there.
    Ok(others(Direction::Ingress)? || role == Role::Pod && others(Direction::Egress)?)
}

/// Whether packets that enter a pod, or go past what looks at those that come in, would miss it.
fn minds(role: Role, kind: &str) -> bool {
    match role {
        Role::Pod => kind != "noqueue",
        Role::Edge | Role::Bare => matches!(kind, "clsact" | "ingress"),
    }
}

fn queue_of(body: &[u8]) -> Option<(u32, String)> {
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    Some((index, text(attribute(body.get(QUEUE..)?, KIND)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn chain(family: u8, hook: u32, rules: u32, policy: u32) -> Vec<u8> {
        let nested = 0x8000;
        [
            vec![family, 0, 0, 0],
            put(TABLE, b"filter\0"),
            put(NAME, b"FORWARD\0"),
            put(HOOK | nested, &put(NUMBER, &hook.to_be_bytes())),
            put(POLICY, &policy.to_be_bytes()),
            put(USE, &rules.to_be_bytes()),
        ]
        .concat()
    }

    #[test]
    fn chains_count_that_packets_on_their_way_through_meet() {
        let (accepts, drops) = (1, 0);
        let forward = Some("chain ip filter FORWARD".to_owned());
        for (family, hook, rules, policy, expected) in [
            (2, 2, 1, accepts, forward.clone()),
            (2, 2, 0, drops, forward),
            (2, 2, 0, accepts, None),
            (2, 1, 9, drops, None),
            (2, 3, 9, drops, None),
            (3, 0, 9, drops, None),
            (5, 0, 1, accepts, Some("chain netdev filter FORWARD".to_owned())),
        ] {
            assert_eq!(base_chain(&chain(family, hook, rules, policy)), expected);
        }
        let plain = [vec![2, 0, 0, 0], put(TABLE, b"filter\0"), put(NAME, b"called\0")].concat();
        assert_eq!(base_chain(&plain), None, "only called by others");
    }

    #[test]
    fn queues_are_minded_where_they_would_be_passed_by() {
        let mut queue = vec![0; QUEUE];
        queue[4] = 7;
        queue.extend(put(KIND, b"tbf\0"));
        assert_eq!(queue_of(&queue), Some((7, "tbf".to_owned())));
        assert!(
            minds(Role::Pod, "tbf") && minds(Role::Pod, "clsact") && minds(Role::Edge, "clsact")
        );
        assert!(!minds(Role::Pod, "noqueue") && !minds(Role::Edge, "fq_codel"));
    }
}
