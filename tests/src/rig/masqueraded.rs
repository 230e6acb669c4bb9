//! Connections that netfilter masquerades on a node, as CNI plugins have it for their pods.

use std::fmt::Display;

use anyhow::{Error, Result, ensure};

use super::{Rig, TARGET, matrix};
use crate::campaign;
use crate::join_all::join_all;
use crate::topology::{Member, Node};
use crate::traffic::Ask;

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

/// Asks the server outside by this number of connections for each family and transport, and fails if one is lost.
/// `what` follows the names of the figures.
///
/// Two pods of node-a ask at the same time, so that their connections share the node's address and its ports.
pub fn ask_masqueraded(rig: &Rig, connections: u32, what: &str) -> Result<()> {
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, rig.client().addresses().socket(family, TARGET));
        let asked = [rig.pod(0, 0)?.peer(), rig.pod(0, 1)?.peer()]
            .map(|it| move || it.ask_many(question, connections / 2).map_err(Error::from));
        let mut answered = 0;
        for tally in join_all(asked)? {
            ensure!(tally.failed() == 0, "{question:?}: {tally:?}");
            answered += tally.answered();
        }
        campaign::figure(
            &format!("masqueraded connections, none lost, {family:?} {protocol:?} {what}"),
            answered,
            "connections",
        );
    }
    Ok(())
}
