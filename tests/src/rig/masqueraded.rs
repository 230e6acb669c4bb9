//! Connections that netfilter masquerades on a node, as CNI plugins have it for their pods.

use std::fmt::Display;

use anyhow::Result;

use crate::topology::{Member, Node};

/// Masquerades the connections from these sources (IPv4, IPv6) to a machine with the node's address and these ports.
///
/// The ports are text of nft(8): `30080` or `30000-32767 random`. The rules of an earlier call are replaced.
pub fn masquerade<T: Display>(node: &Node, from: [T; 2], to: &Member, ports: &str) -> Result<()> {
    let ([from4, from6], to) = (from, to.addresses());
    let rules = format!(
        "table inet t; delete table inet t;
         table inet t {{ chain c {{
           type nat hook postrouting priority srcnat;
           ip saddr {from4} ip daddr {} meta l4proto {{ tcp, udp }} masquerade to :{ports}
           ip6 saddr {from6} ip6 daddr {} meta l4proto {{ tcp, udp }} masquerade to :{ports}
         }}; }}",
        to.v4, to.v6
    );
    node.netns().tool_fed("nft", &["-f", "-"], &rules).map(drop)
}

/// Removes the rules of [`masquerade`]. If no other table translates, this ends the masqueraded connections as well.
pub fn masquerade_no_more(node: &Node) -> Result<()> {
    node.netns().tool("nft", &["delete", "table", "inet", "t"]).map(drop)
}
