//! Finds rules of nftables that drop packets to an address before netfilter translates destinations.
//!
//! Docker 28 writes such rules for containers without published ports (table `raw`, chain `PREROUTING`). They are meant
//! for packets that arrive on another interface for the container's own address. A packet to a Service already has that
//! address when it reaches them, because the data path comes first. Tables of the older interface (`iptables-legacy`)
//! are not read.

use std::collections::BTreeMap;
use std::io;

use lb_common::addr::Ip;

use crate::netfilter::{CHAINS, TABLES, address, dump, find, name, text, values};

/// `NFT_MSG_GETRULE` (`linux/netfilter/nf_tables.h`).
const RULES: u16 = TABLES | 7;
/// `NF_INET_PRE_ROUTING`, and the priority of destination NAT (`NF_IP_PRI_NAT_DST`).
const PREROUTING: u32 = 0;
const TRANSLATION: i32 = -100;
/// `NFT_PAYLOAD_NETWORK_HEADER`, and offset and length of the destination in IPv4 and IPv6 headers.
const NETWORK_HEADER: u32 = 1;
const DESTINATIONS: [(u32, u32); 2] = [(16, 4), (24, 16)];

/// A chain that sees packets before destination NAT.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chain {
    family: u8,
    table: String,
    name: String,
}

/// Returns the addresses to which packets are dropped, each with the chain that drops them.
pub fn dropped() -> io::Result<BTreeMap<Ip, String>> {
    let mut chains = Vec::new();
    dump(CHAINS, libc::AF_UNSPEC as u8, &[], |family, attributes| {
        chains.extend(chain(family, attributes));
    })?;
    let mut all = BTreeMap::new();
    for Chain { family, table, name: chain } in chains {
        let which = [name(1, &table), name(2, &chain)].concat();
        dump(RULES, family, &which, |_, attributes| {
            // Before 6.0, Linux lists the rules of all chains of the table.
            if find(attributes, 2).map(text) == Some(&chain)
                && let Some(ip) = destination_of_drop(attributes)
            {
                all.insert(ip, format!("{chain} of nft table {} {table}", family_name(family)));
            }
        })?;
    }
    Ok(all)
}

const fn family_name(family: u8) -> &'static str {
    match family {
        1 => "inet",
        2 => "ip",
        _ => "ip6",
    }
}

/// Parses a base chain at prerouting, before destination NAT; `None` for others.
fn chain(family: u8, attributes: &[u8]) -> Option<Chain> {
    let hook = find(attributes, 4)?;
    let number = |kind| Some(u32::from_be_bytes(*find(hook, kind)?.first_chunk()?));
    let is_early = number(1)? == PREROUTING && number(2)?.cast_signed() < TRANSLATION;
    let of = |kind| find(attributes, kind).map(text).map(str::to_owned);
    is_early.then_some(Chain { family, table: of(1)?, name: of(3)? })
}

/// Returns the destination that a rule matches whose verdict is drop.
fn destination_of_drop(rule: &[u8]) -> Option<Ip> {
    let (mut loaded, mut destination, mut drops) = (None, None, false);
    for expression in values(find(rule, 4)?) {
        let data = find(expression, 2).unwrap_or_default();
        let number = |kind| Some(u32::from_be_bytes(*find(data, kind)?.first_chunk()?));
        match text(find(expression, 1)?) {
            "payload" => {
                let place = (number(3)?, number(4)?);
                let is_destination =
                    number(2) == Some(NETWORK_HEADER) && DESTINATIONS.contains(&place);
                // A load puts a part of the packet into a register; the comparison that follows names the same
                // register.
                loaded = if is_destination { number(1) } else { None };
            }
            // A masked address stands for more than one destination.
            "bitwise" => loaded = None,
            "cmp" if loaded.is_some() && loaded == number(1) && number(2) == Some(0) => {
                destination = find(find(data, 3)?, 1).and_then(address);
            }
            "immediate" => {
                let code = find(data, 2).and_then(|data| find(find(data, 2)?, 1));
                // `NF_DROP` is 0.
                drops |= code == Some([0; 4].as_slice());
            }
            _ => {}
        }
    }
    destination.filter(|_| drops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netfilter::{attribute, nested, number};

    fn expression(kind: &str, data: &[Vec<u8>]) -> Vec<u8> {
        nested(1, &[name(1, kind), nested(2, data)])
    }

    fn loads_destination() -> Vec<u8> {
        expression("payload", &[number(1, 1), number(2, 1), number(3, 16), number(4, 4)])
    }

    fn compares(operator: u32) -> Vec<u8> {
        let value = nested(3, &[attribute(1, &[172, 17, 0, 2])]);
        expression("cmp", &[number(1, 1), number(2, operator), value])
    }

    fn ends(verdict: u32) -> Vec<u8> {
        expression("immediate", &[number(1, 0), nested(2, &[nested(2, &[number(1, verdict)])])])
    }

    #[test]
    fn destination_of_a_rule_that_drops_is_found() {
        let found = |all: &[Vec<u8>]| destination_of_drop(&nested(4, all));
        let container = Some(Ip::v4([172, 17, 0, 2]));
        let counter = expression("counter", &[]);
        assert_eq!(found(&[loads_destination(), compares(0), counter, ends(0)]), container);
        assert_eq!(found(&[loads_destination(), compares(0), ends(1)]), None, "accepted");
        assert_eq!(found(&[loads_destination(), compares(1), ends(0)]), None, "all others");
        assert_eq!(found(&[compares(0), ends(0)]), None, "compared with something else");
        let masks = expression("bitwise", &[number(1, 1)]);
        assert_eq!(found(&[loads_destination(), masks, compares(0), ends(0)]), None, "a network");
    }

    #[test]
    fn only_base_chains_before_the_translation_count() {
        let message = |hook: u32, priority: i32| {
            let hook = nested(4, &[number(1, hook), number(2, priority.cast_unsigned())]);
            [name(1, "raw"), name(3, "PREROUTING"), hook].concat()
        };
        assert_eq!(chain(2, &message(0, -300)).map(|chain| chain.table), Some("raw".to_owned()));
        assert_eq!(chain(2, &message(0, -100)), None);
        assert_eq!(chain(2, &message(2, -300)), None, "another hook");
        assert_eq!(chain(2, &[name(1, "raw"), name(3, "DOCKER")].concat()), None, "no base chain");
    }
}
