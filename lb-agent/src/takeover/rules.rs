//! Rules of kube-proxy in this network namespace, in all three modes, and their removal.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use super::anchor::DELETE_TABLE;
use super::{Error, iptables};
use crate::netfilter::{CHAINS, body, change, dump, find, name, text};

/// Name of the tables of mode `nftables`, in families `ip` and `ip6`.
const TABLE: &str = "kube-proxy";
const FAMILIES: [u8; 2] = [2, 10];
/// The interface of mode `ipvs`, which has every served address.
const DEVICE: &str = "kube-ipvs0";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Families of nftables tables named `kube-proxy`.
    nftables: BTreeSet<u8>,
    /// Whether nftables or the older tables have chains of mode `iptables`.
    iptables: bool,
    /// Whether the interface of mode `ipvs` exists.
    ipvs: bool,
}

impl Rules {
    /// Searches for rules. A table that cannot be read counts as empty: without nftables in the kernel it cannot exist.
    pub fn find() -> Self {
        let mut rules = Self { ipvs: device().is_some(), ..Self::default() };
        let listed = chains(|family, table, chain| {
            if table == TABLE {
                rules.nftables.insert(family);
            } else if iptables::shows_rules(chain) {
                rules.iptables = true;
            }
        });
        if let Err(error) = listed {
            tracing::debug!(%error, "no tables of nftables");
        }
        // The legacy backend of iptables is not visible through nftables.
        rules.iptables |= iptables::has_older();
        rules
    }

    /// Reports whether rules lead to endpoints in each wanted family, IPv4 and IPv6.
    ///
    /// Mode `nftables` writes all rules of a family at once. Mode `iptables` creates the chain of a Service with
    /// endpoints together with all others; before that there are only empty chains. The older tables and IPVS only show
    /// that something exists.
    pub fn serve(wanted: [bool; 2]) -> bool {
        const WITH_ENDPOINTS: [&str; 3] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-"];
        let mut there = BTreeSet::new();
        let listed = chains(|family, table, chain| {
            if table == TABLE || WITH_ENDPOINTS.iter().any(|prefix| chain.starts_with(prefix)) {
                there.insert(family);
            }
        });
        let is_there = |family| there.contains(&family);
        let serves =
            wanted.iter().zip(FAMILIES).all(|(wanted, family)| !wanted || is_there(family));
        listed.is_ok() && serves || device().is_some() || iptables::has_older()
    }

    /// Reports whether there are no rules.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Removes the rules of modes `nftables` and `iptables`, and returns what was removed. With the anchor in place,
    /// their connections continue.
    pub fn remove(&self) -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        if !self.nftables.is_empty() {
            let families = FAMILIES.iter().filter(|family| self.nftables.contains(family));
            let all: Vec<_> =
                families.map(|family| (DELETE_TABLE, 0, body(*family, &name(1, TABLE)))).collect();
            change(&all).map_err(|error| Error::System("delete table kube-proxy", error))?;
            removed.push(format!("{} nftables tables named kube-proxy", all.len()));
        }
        if self.iptables {
            removed.extend(iptables::remove()?);
        }
        Ok(removed)
    }

    /// Removes the interface of mode `ipvs`, and returns what was removed. Connections need it until the last one has
    /// ended.
    pub fn remove_device(&self) -> Result<Vec<String>, Error> {
        let Some(index) = device() else { return Ok(Vec::new()) };
        let failed = |error| Error::System("delete kube-ipvs0", error);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        runtime.block_on(async {
            let (connection, handle, _messages) = rtnetlink::new_connection().map_err(failed)?;
            drop(tokio::spawn(connection));
            let deleted = handle.link().del(index).execute().await;
            deleted.map_err(|error| failed(io::Error::other(error)))
        })?;
        Ok(vec![format!("interface {DEVICE}")])
    }
}

/// Calls `see` for each chain of nftables, with family, table and name.
fn chains(mut see: impl FnMut(u8, &str, &str)) -> io::Result<()> {
    dump(CHAINS, libc::AF_UNSPEC as u8, &[], |family, chain| {
        let of = |kind| find(chain, kind).map(text).unwrap_or_default();
        see(family, of(1), of(3));
    })
}

fn device() -> Option<u32> {
    nix::net::if_::if_nametoindex(DEVICE).ok()
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modes = [
            (!self.nftables.is_empty(), "nftables"),
            (self.iptables, "iptables"),
            (self.ipvs, "ipvs (kube-ipvs0)"),
        ];
        let there: Vec<&str> = modes.iter().filter(|(is, _)| *is).map(|(_, mode)| *mode).collect();
        if there.is_empty() { write!(f, "none") } else { write!(f, "{}", there.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_named_by_their_mode() {
        assert_eq!(Rules::default().to_string(), "none");
        assert!(Rules::default().is_empty());
        let all = Rules { nftables: FAMILIES.into(), iptables: true, ipvs: true };
        assert_eq!(all.to_string(), "nftables, iptables, ipvs (kube-ipvs0)");
        assert!(!all.is_empty());
    }
}
