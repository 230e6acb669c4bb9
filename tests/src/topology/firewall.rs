//! The netfilter rules of a typical node: FORWARD drops by default, and packets of pods are masqueraded.
//!
//! They apply to all packets that our programs leave to the stack, and drop or rewrite those that connection tracking
//! finds invalid.

use anyhow::Result;

use super::address::{POD_RANGES, pod_ranges};
use crate::netns::Netns;

/// Installs the rules in a node.
pub(crate) fn install(node: &Netns, number: u8) -> Result<()> {
    let [all4, all6] = POD_RANGES;
    let [own4, own6] = pod_ranges(number);
    let rules = format!(
        "table inet cni {{
           chain forward {{
             type filter hook forward priority filter; policy drop;
             ct state invalid counter drop comment \"invalid\"
             ct state established,related accept
             ip saddr {all4} accept
             ip daddr {all4} accept
             ip6 saddr {all6} accept
             ip6 daddr {all6} accept
             ip daddr 192.168.50.0/24 accept comment \"backends on host networks\"
             ip6 daddr fd00:50::/64 accept
             meta l4proto ipv6-icmp accept
             counter comment \"refused\"
           }}
           chain postrouting {{
             type nat hook postrouting priority srcnat; policy accept;
             ip saddr {own4} ip daddr != {all4} counter masquerade
             ip6 saddr {own6} ip6 daddr != {all6} counter masquerade
           }}
         }}"
    );
    node.tool_fed("nft", &["-f", "-"], &rules).map(drop)
}
