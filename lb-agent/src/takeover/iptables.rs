//! Chains of kube-proxy's iptables mode: found, distinguished from those of the kubelet, and removed with the iptables
//! tools.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use super::Error;
use crate::syscall;

/// Those that write what nftables has, those of the older tables, of both families.
const TOOLS: [&str; 4] = ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"];
/// The kubelet makes these, and keeps them.
const KUBELETS: [&str; 3] = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-MARK-DROP"];
/// A chain that each mode `iptables` has, as the older tables store its name.
const SERVICES: &[u8] = b"KUBE-SERVICES\0";

/// Whether a chain is one of kube-proxy.
pub(super) fn is_kube_proxys(chain: &str) -> bool {
    chain.starts_with("KUBE-") && !KUBELETS.contains(&chain)
}

/// Whether the older tables (`iptables-legacy`) have chains of kube-proxy.
pub(super) fn has_older() -> bool {
    [false, true].into_iter().any(|is_v6| {
        let entries = syscall::packet_filter_entries("nat", is_v6).unwrap_or_default();
        entries.windows(SERVICES.len()).any(|bytes| bytes == SERVICES)
    })
}

/// Removes kube-proxy's chains and what leads to them, and nothing else: rules that others write meanwhile stay.
pub(super) fn remove() -> Result<Vec<String>, Error> {
    let (mut removed, mut is_any_there) = (Vec::new(), false);
    for tool in TOOLS {
        let saved = match Command::new(format!("{tool}-save")).output() {
            Ok(saved) => saved,
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

/// The input for `iptables-restore --noflush` that removes kube-proxy's chains from a saved table.
fn removal(saved: &str) -> String {
    let mut script = String::new();
    let lines: Vec<&str> = saved.lines().collect();
    for table in lines.split(|line| *line == "COMMIT") {
        let Some(title) = table.iter().find(|line| line.starts_with('*')) else { continue };
        let named = table.iter().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        let chains: BTreeSet<&str> = named.filter(|chain| is_kube_proxys(chain)).collect();
        if chains.is_empty() {
            continue;
        }
        let flushed = chains.iter().map(|chain| format!(":{chain} - [0:0]"));
        let leading = table.iter().filter_map(|line| {
            let rule = line.strip_prefix("-A ")?;
            let (from, target) = (rule.split(' ').next()?, jump(rule)?);
            (!chains.contains(from) && chains.contains(target)).then(|| format!("-D {rule}"))
        });
        let deleted = chains.iter().map(|chain| format!("-X {chain}"));
        let lines: Vec<String> = flushed.chain(leading).chain(deleted).collect();
        if writeln!(script, "{title}\n{}\nCOMMIT", lines.join("\n")).is_err() {
            // Writing to a string cannot fail.
        }
    }
    script
}

/// The chain that a rule leads to.
fn jump(rule: &str) -> Option<&str> {
    let (_, target) = rule.rsplit_once(" -j ").or_else(|| rule.rsplit_once(" -g "))?;
    target.split(' ').next()
}

fn restore(tool: &str, script: &str) -> Result<(), Error> {
    let failed = |error| Error::System("run iptables-restore", error);
    let mut child = Command::new(format!("{tool}-restore"))
        .args(["--noflush", "--wait"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
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

    #[test]
    fn chains_of_the_kubelet_and_of_others_stay() {
        let saved = "# Generated\n*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n\
            -A INPUT -j KUBE-FIREWALL\nCOMMIT\n# Completed\n# Generated\n*nat\n:PREROUTING ACCEPT [1:2]\n\
            :KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n:CNI - [0:0]\n\
            -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -A PREROUTING -j CNI\n-A KUBE-SERVICES -d 10.96.0.1/32 -j KUBE-SVC-A\nCOMMIT\n# Completed\n";
        let expected = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n\
            -D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -X KUBE-SERVICES\n-X KUBE-SVC-A\nCOMMIT\n";
        assert_eq!(removal(saved), expected);
        assert_eq!(removal(&expected.replace("KUBE-S", "CNI-S")), "");
    }
}
