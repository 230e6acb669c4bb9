//! Rules with the names of kube-proxy's tables and chains, written by the test: faster than a real kube-proxy, and only
//! as many as a test needs.

use std::net::SocketAddr;

use anyhow::Result;

use crate::netns::Netns;

/// A translation: the address of the frontend, and the backend to which the rules send its packets.
pub type Translation = (SocketAddr, SocketAddr);

/// The tools of mode iptables, one for each family.
const TOOLS: [&str; 2] = ["iptables-nft", "ip6tables-nft"];
/// Chains with names of kube-proxy.
const CHAINS: [&str; 4] = [
    "-t nat -N KUBE-SERVICES",
    "-t nat -N KUBE-SVC-A",
    "-t nat -A PREROUTING -j KUBE-SERVICES",
    "-t nat -A KUBE-SERVICES -p tcp --dport 9 -j KUBE-SVC-A",
];
/// Chains of the kubelet, of kube-router's network policies (also used by k3s), and of a CNI plugin.
const NEIGHBOURS: [&str; 14] = [
    "-t mangle -N KUBE-IPTABLES-HINT",
    "-t mangle -N KUBE-KUBELET-CANARY",
    "-t nat -N CNI",
    "-t nat -A PREROUTING -j CNI",
    "-t filter -N KUBE-FIREWALL",
    "-t filter -A KUBE-FIREWALL -m mark --mark 0x8000 -j DROP",
    "-t filter -A INPUT -j KUBE-FIREWALL",
    "-t filter -N KUBE-NWPLCY-A",
    "-t filter -N KUBE-POD-FW-A",
    "-t filter -A KUBE-POD-FW-A -j KUBE-NWPLCY-A",
    "-t filter -N KUBE-ROUTER-INPUT",
    "-t filter -A KUBE-ROUTER-INPUT -p tcp --dport 9 -j KUBE-POD-FW-A",
    "-t filter -A INPUT -j KUBE-ROUTER-INPUT",
    "-t filter -A FORWARD -p tcp --dport 9 -j KUBE-POD-FW-A",
];
/// Chains of a kubelet before Kubernetes 1.28, which kube-proxy uses as well.
const SHARED: [&str; 4] = [
    "-t nat -N KUBE-MARK-MASQ",
    "-t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
    "-t nat -N KUBE-POSTROUTING",
    "-t nat -A POSTROUTING -j KUBE-POSTROUTING",
];

/// Writes tables with this name, one for each family, which apply these translations.
pub fn write(node: &Netns, table: &str, translations: &[Translation]) -> Result<()> {
    translations.iter().try_for_each(|(asked, to)| {
        let (family, asked) = (family(asked), asked.ip());
        let serve =
            |protocol| format!("{family} daddr {asked} meta l4proto {protocol} dnat to {to}");
        let chain = |hook| {
            format!(
                "chain {hook} {{\ntype nat hook {hook} priority -100\n{}\n{}\n}}\n",
                serve("tcp"),
                serve("udp")
            )
        };
        let (of_others, own) = (chain("prerouting"), chain("output"));
        let rules = format!("table {family} {table} {{\n{of_others}{own}}}\n");
        node.tool_fed("nft", &["-f", "-"], &rules).map(drop)
    })
}

const fn family(address: &SocketAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip6" }
}

/// Deletes the tables with this name, of both families.
pub fn delete(node: &Netns, table: &str) -> Result<()> {
    let delete = |family| node.tool("nft", &["delete", "table", family, table]).map(drop);
    ["ip", "ip6"].into_iter().try_for_each(delete)
}

/// Writes chains of kube-proxy in mode iptables.
pub fn write_chains(node: &Netns) -> Result<()> {
    write_each(node, &CHAINS)
}

/// Writes chains with names similar to kube-proxy's, which belong to the kubelet and to other programs.
pub fn write_neighbours(node: &Netns) -> Result<()> {
    write_each(node, &NEIGHBOURS)?;
    write_each(node, &SHARED)
}

fn write_each(node: &Netns, rules: &[&str]) -> Result<()> {
    for tool in TOOLS {
        for rule in rules {
            let words: Vec<&str> = rule.split(' ').collect();
            drop(node.tool(tool, &words)?);
        }
    }
    Ok(())
}
