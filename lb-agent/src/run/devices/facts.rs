//! The facts about this node that do not come from its interfaces: from the configuration, the Node object and an
//! earlier run.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use lb_common::addr::Ip;
use lb_common::config::{NodeSettings, Prefix, Settings};
use tracing::warn;

use crate::config::Config;
use crate::node::{Identity, Primary, settings};
use crate::run::error::Error;
use crate::snapshot::NodeSpec;
use crate::syscall::netns_cookie;
use crate::words;

/// The facts that decide roles, addresses and settings.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) config: Arc<Config>,
    pub(super) identity: Identity,
    pub(super) netns_cookie: u64,
    /// Sources that count as pods of this node; until the Node object is known, those of the configuration, else an
    /// earlier run's.
    pub(super) local: [Prefix; 2],
    /// Networks of the cluster's pods; until the Node object is known, those of the configuration, else an earlier
    /// run's.
    pub(super) pods: [Prefix; 2],
    /// [`NodeSettings::secret`]. A restart with the same maps keeps it, so that all fragments of a datagram are treated
    /// alike.
    pub(super) secret: u32,
    /// An earlier run had kube-proxy's source translation, whose flows may still exist.
    pub(super) had_masqueraded_pods: bool,
    /// The ports that translated sources of flows may have, of this run and earlier ones.
    answer_ports: Option<RangeInclusive<u16>>,
}

/// Returns the prefixes of the configuration, or those of an earlier run if it names none.
fn known(configured: [Prefix; 2], before: [Prefix; 2]) -> [Prefix; 2] {
    if configured.iter().any(Prefix::is_set) { configured } else { before }
}

impl Facts {
    /// Starts with the addresses and prefixes of an earlier run, until the Node object is known.
    pub(super) fn after(before: &NodeSettings, config: Arc<Config>) -> Result<Self, Error> {
        // Earlier versions wrote a loopback `bindAddress` here.
        let usable = |ip| address(ip).filter(|ip| !ip.is_loopback());
        let primary = Primary { v4: usable(before.address4), v6: usable(before.address6) };
        let (low, high) = (before.answer_port_low.get(), before.answer_port_high.get());
        let pods = known(config.pods(None), before.pods);
        let mut identity = Identity::of(&config, primary);
        if identity.pod_ranges.is_empty() {
            // Without any range, a veth that is a second uplink would become a pod's interface for the time being.
            identity.pod_ranges = pods.iter().filter_map(words::network).collect();
        }
        Ok(Self {
            answer_ports: (high != 0).then_some(low..=high),
            identity,
            netns_cookie: netns_cookie()?,
            local: known(config.local(None), before.local),
            pods,
            had_masqueraded_pods: before.flags & Settings::ANY_MASQUERADE_AT_PODS != 0,
            secret: if before.secret == 0 { settings::secret() } else { before.secret },
            config,
        })
    }

    /// Takes over the Node object, and its primary addresses.
    pub(super) fn learn(&mut self, node: &NodeSpec, primary: Primary) {
        let earlier = self.identity.kept.clone();
        self.identity.learn(&self.config, node, primary);
        let kept = &self.identity.kept;
        if !kept.is_empty() && *kept != earlier {
            warn!(
                ?kept,
                "the Node object names no address of a family; the earlier ones stay in use"
            );
        }
        self.local = self.config.local(Some(node));
        self.pods = self.config.pods(Some(node));
    }

    /// Widens the ports at which answers are looked up by those for new flows: flows keep their ports when
    /// `net.ipv4.ip_local_port_range` changes. Returns all of them.
    pub(super) fn widen(&mut self, ports: &RangeInclusive<u16>) -> RangeInclusive<u16> {
        let earlier = self.answer_ports.get_or_insert_with(|| ports.clone());
        *earlier = *earlier.start().min(ports.start())..=*earlier.end().max(ports.end());
        earlier.clone()
    }
}

/// Returns an address from the settings; `None` if it is unspecified.
pub(in crate::run) fn address(ip: Ip) -> Option<IpAddr> {
    (ip != Ip::UNSPECIFIED).then(|| IpAddr::from(ip))
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use lb_common::fake::world::prefix;

    use super::*;
    use crate::run::lost;

    /// Flows towards pods may be masqueraded, and have ports that are not those of this run.
    #[test]
    fn flows_of_a_run_whose_settings_are_lost_are_looked_up() {
        let ports = 40_000..=50_000;
        let mut facts = Facts::after(&lost::unknown(7).node, Arc::default()).unwrap();
        assert!(facts.had_masqueraded_pods);
        assert_eq!(facts.widen(&ports), 1_024..=50_000);
        let mut first = Facts::after(&NodeSettings::default(), Arc::default()).unwrap();
        assert!(!first.had_masqueraded_pods, "a first start");
        assert_eq!(first.widen(&ports), ports);
    }

    #[test]
    fn pod_ranges_are_those_of_the_earlier_run_until_the_node_object_is_known() {
        let nets = |texts: &[&str]| -> Vec<IpNet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let pods = [prefix("10.244.0.0", 16), prefix("fd00:1::", 32)];
        let before = NodeSettings { pods, ..NodeSettings::default() };
        let mut facts = Facts::after(&before, Arc::default()).unwrap();
        assert_eq!(facts.identity.pod_ranges, nets(&["10.244.0.0/16", "fd00:1::/32"]));
        let pod_cidrs = nets(&["10.244.1.0/24"]).into();
        let node = NodeSpec { pod_cidrs, ..NodeSpec::default() };
        facts.learn(&node, Primary::default());
        assert_eq!(facts.identity.pod_ranges, nets(&["10.244.1.0/24"]));
        let first = Facts::after(&NodeSettings::default(), Arc::default()).unwrap();
        assert!(first.identity.pod_ranges.is_empty());
    }
}
