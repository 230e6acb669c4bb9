//! Chains of kube-proxy's modes `iptables` and `ipvs`: found, and removed with the iptables tools.
//!
//! They are distinguished from those of the kubelet and of network policies (`KUBE-ROUTER-*`, `KUBE-POD-FW-*`,
//! `KUBE-NWPLCY-*`).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use super::Error;
use crate::syscall;

/// The tools for nftables and for the older tables, of both families.
const TOOLS: [&str; 4] = ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"];
/// An empty chain by which kube-proxy notices that the rules were flushed. `kube-proxy --cleanup` leaves it.
const CANARY: &str = "KUBE-PROXY-CANARY";
/// Chains that only kube-proxy creates.
const OWN: [&str; 11] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    CANARY,
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];
/// Prefixes of its chains for a Service or an endpoint; the last one was used before Kubernetes 1.24.
const OWN_PREFIXES: [&str; 6] =
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"];
/// Chains that a kubelet before Kubernetes 1.28 creates as well: alone they do not show a kube-proxy.
const MARKING: &str = "KUBE-MARK-MASQ";
const SHARED: [&str; 2] = [MARKING, "KUBE-POSTROUTING"];
/// A chain that exists in every mode `iptables`, as the older tables store its name.
const SERVICES: &[u8] = b"KUBE-SERVICES\0";

/// Reports whether a chain of this name shows that kube-proxy's rules are there: only kube-proxy creates it, and its
/// cleanup removes it.
pub(super) fn shows_rules(chain: &str) -> bool {
    chain != CANARY && is_kube_proxys(chain)
}

/// Reports whether only kube-proxy creates a chain of this name.
fn is_kube_proxys(chain: &str) -> bool {
    OWN.contains(&chain) || OWN_PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// Reports whether the older tables (`iptables-legacy`) have chains of kube-proxy.
pub(super) fn has_older() -> bool {
    [false, true].into_iter().any(|is_v6| {
        let entries = syscall::packet_filter_entries("nat", is_v6).unwrap_or_default();
        entries.windows(SERVICES.len()).any(|bytes| bytes == SERVICES)
    })
}

/// Removes kube-proxy's chains and the rules that jump to them, and nothing else: rules that other programs write
/// meanwhile stay.
pub(super) fn remove() -> Result<Vec<String>, Error> {
    let (mut removed, mut is_any_there) = (Vec::new(), false);
    for tool in TOOLS {
        let saved = match Command::new(format!("{tool}-save")).output() {
            Ok(saved) => saved,
            // A host may lack some of the tools.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::System("run iptables-save", error)),
        };
        is_any_there = true;
        let script = removal(&String::from_utf8_lossy(&saved.stdout));
        if !script.is_empty() {
            restore(tool, &script)?;
            removed.push(format!("chains of {tool}"));
        }
    }
    if is_any_there { Ok(removed) } else { Err(Error::NoTool) }
}

/// Returns the input for `iptables-restore --noflush` that removes kube-proxy's chains from a saved table.
fn removal(saved: &str) -> String {
    let mut script = String::new();
    let lines: Vec<&str> = saved.lines().collect();
    for table in lines.split(|line| *line == "COMMIT") {
        let Some(title) = table.iter().find(|line| line.starts_with('*')) else { continue };
        let chains = removed_chains(table);
        if chains.is_empty() {
            continue;
        }
        // With `--noflush`, the declaration of a chain that exists flushes only that chain. A chain can be deleted when
        // it is empty and no rule jumps to it, hence the order of the three parts.
        let flushed = chains.iter().map(|chain| format!(":{chain} - [0:0]"));
        let leading = rules(table)
            .filter(|(_, from, target)| !chains.contains(from) && chains.contains(target))
            .map(|(rule, ..)| format!("-D {rule}"));
        let deleted = chains.iter().map(|chain| format!("-X {chain}"));
        let lines: Vec<String> = flushed.chain(leading).chain(deleted).collect();
        if writeln!(script, "{title}\n{}\nCOMMIT", lines.join("\n")).is_err() {
            // Writing to a string cannot fail.
        }
    }
    script
}

/// Returns the chains of a saved table to remove: kube-proxy's own, and with them the shared ones, which an old kubelet
/// creates again.
fn removed_chains<'a>(table: &[&'a str]) -> BTreeSet<&'a str> {
    let named = || table.iter().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    let mut chains: BTreeSet<&str> = named().filter(|chain| is_kube_proxys(chain)).collect();
    // The CNI plugin `portmap` may jump there for its own masquerade (`externalSetMarkChain`).
    let is_used = rules(table).any(|(_, from, target)| target == MARKING && !chains.contains(from));
    if !chains.is_empty() && !is_used {
        chains.extend(named().filter(|chain| SHARED.contains(chain)));
    }
    chains
}

/// Returns the rules of a saved table that jump to a chain: the rule, its chain, and the target chain.
fn rules<'a>(table: &[&'a str]) -> impl Iterator<Item = (&'a str, &'a str, &'a str)> {
    table.iter().filter_map(|line| {
        let rule = line.strip_prefix("-A ")?;
        Some((rule, rule.split(' ').next()?, jump(rule)?))
    })
}

/// Returns the target chain of a rule.
fn jump(rule: &str) -> Option<&str> {
    // The last match counts, because a comment of the rule may contain ` -j `, too.
    let (_, target) = rule.rsplit_once(" -j ").or_else(|| rule.rsplit_once(" -g "))?;
    target.split(' ').next()
}

fn restore(tool: &str, script: &str) -> Result<(), Error> {
    let failed = |error| Error::System("run iptables-restore", error);
    let mut child = Command::new(format!("{tool}-restore"))
        // Without `--noflush` the tool would delete all other rules of the table; `--wait` waits for the lock of other
        // programs.
        .args(["--noflush", "--wait"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // The pipe closes at the end of this block; otherwise the tool would wait for more input.
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(failed)?;
    }
    let ended = child.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
    if ended.status.success() { Ok(()) } else { Err(failed(io::Error::other(said))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "# Generated\n*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n\
        :KUBE-ROUTER-INPUT - [0:0]\n:KUBE-POD-FW-A - [0:0]\n:KUBE-NWPLCY-A - [0:0]\n\
        -A INPUT -j KUBE-FIREWALL\n-A INPUT -j KUBE-ROUTER-INPUT\n\
        -A KUBE-ROUTER-INPUT -d 10.1.0.5/32 -j KUBE-POD-FW-A\n-A KUBE-POD-FW-A -j KUBE-NWPLCY-A\n\
        COMMIT\n# Completed\n# Generated\n*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n*nat\n\
        :PREROUTING ACCEPT [1:2]\n:POSTROUTING ACCEPT [1:2]\n\
        :KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n\
        :KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n:CNI - [0:0]\n\
        -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
        -A PREROUTING -j CNI\n-A POSTROUTING -j KUBE-POSTROUTING\n\
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
        -A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-A\n-A KUBE-SVC-A -j KUBE-MARK-MASQ\n\
        COMMIT\n# Completed\n";

    #[test]
    fn chains_of_the_kubelet_and_of_others_stay() {
        let expected = "*nat\n:KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n\
            :KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n\
            -D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -D POSTROUTING -j KUBE-POSTROUTING\n-X KUBE-MARK-MASQ\n-X KUBE-POSTROUTING\n\
            -X KUBE-SERVICES\n-X KUBE-SVC-A\nCOMMIT\n";
        assert_eq!(removal(SAVED), expected);
        assert_eq!(removal(&SAVED.replace("KUBE-S", "CNI-S")), "", "an old kubelet's");
    }

    #[test]
    fn shared_chains_stay_while_other_rules_use_them() {
        let used = SAVED.replace("-A PREROUTING -j CNI\n", "-A CNI -j KUBE-MARK-MASQ\n");
        let script = removal(&used);
        assert!(script.contains("-X KUBE-SVC-A") && !script.contains("KUBE-MARK-MASQ"), "{script}");
        assert!(!script.contains("KUBE-POSTROUTING"), "{script}");
    }

    #[test]
    fn chains_are_kube_proxys_by_their_names() {
        for own in ["KUBE-SERVICES", "KUBE-SEP-A", "KUBE-FW-A", "KUBE-PROXY-CANARY"] {
            assert!(is_kube_proxys(own), "{own}");
            assert_eq!(shows_rules(own), own != CANARY, "{own}");
        }
        let others = ["KUBE-IPTABLES-HINT", "KUBE-POD-FW-A", "KUBE-NWPLCY-A", "KUBE-ROUTER-INPUT"];
        for other in SHARED.iter().chain(&others) {
            assert!(!is_kube_proxys(other) && !shows_rules(other), "{other}");
        }
    }
}
