//! The rules that kube-proxy leaves on a node: tests wait for them, and remove them as `docs/takeover.md` describes.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Mode;
use crate::cluster::Published;
use crate::netns::Netns;
use crate::rig::matrix;
use crate::wait::wait_until_ok;

/// The deadline for kube-proxy's rules to be complete.
const SOON: Duration = Duration::from_mins(1);

impl Mode {
    /// Returns all rules of a node, as the mode's own tool prints them.
    pub fn rules(self, node: &Netns) -> Result<String> {
        let list = match self {
            Self::Nftables => "nft list ruleset",
            Self::Iptables => "iptables-save; ip6tables-save",
        };
        node.tool("sh", &["-c", list])
    }

    /// Waits until a node has rules for a Service in both families: kube-proxy writes all rules of a family at once.
    pub fn until_rules_are_there(self, node: &Netns, service: &Published) -> Result<()> {
        wait_until_ok(SOON, "kube-proxy's rules exist", || {
            let rules = self.rules(node)?;
            for (family, _) in matrix() {
                let ip = service.cluster_ip(family).ip();
                ensure!(rules.contains(&ip.to_string()), "{ip} is not in:\n{rules}");
            }
            Ok(())
        })
    }

    /// Removes all rules, as `docs/takeover.md` describes.
    pub fn remove_rules(self, node: &Netns) -> Result<()> {
        let commands: &[&str] = match self {
            Self::Nftables => {
                &["nft delete table ip kube-proxy", "nft delete table ip6 kube-proxy"]
            }
            Self::Iptables => &[concat!(
                "chains='SERVICES|EXTERNAL-|NODE-?PORT|FORWARD|PROXY-|LOAD-BALANCER|SOURCE-RANGES|IPVS-'\n",
                "chains=\"KUBE-($chains|SVC-|SVL-|SEP-|EXT-|FW-|XLB-)\"\n",
                "for tables in iptables ip6tables; do\n",
                "$tables-save | grep -vE \"$chains\" | $tables-restore; done",
            )],
        };
        commands.iter().try_for_each(|command| node.tool("sh", &["-c", command]).map(drop))
    }
}
