//! The facts about this node that do not come from its interfaces: from the configuration, the Node object and an
//! earlier run.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::{NodeSettings, Prefix, Settings};
use tracing::warn;

use crate::config::{Config, DetectLocalMode};
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
    /// The networks in `local` and `pods` that are earlier ones, because the Node object names none of their family.
    kept: Vec<IpNet>,
    /// Whether a Node object was taken over in this run.
    has_learned: bool,
    /// Whether the earlier run detected local pods by interface, so that `pods` may be from its `clusterCIDR`.
    had_local_devices: bool,
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

/// Returns the prefixes; a family without one has that of `earlier`.
const fn or([v4, v6]: [Prefix; 2], [earlier4, earlier6]: [Prefix; 2]) -> [Prefix; 2] {
    [if v4.is_set() { v4 } else { earlier4 }, if v6.is_set() { v6 } else { earlier6 }]
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
            kept: Vec::new(),
            has_learned: false,
            had_local_devices: before.flags & Settings::LOCAL_BY_DEVICE != 0,
            had_masqueraded_pods: before.flags & Settings::ANY_MASQUERADE_AT_PODS != 0,
            secret: if before.secret == 0 { settings::secret() } else { before.secret },
            config,
        })
    }

    /// Takes over the Node object, and its primary addresses.
    pub(super) fn learn(&mut self, node: &NodeSpec, primary: Primary) {
        if !std::mem::replace(&mut self.has_learned, true) {
            self.forget_cluster_cidr();
        }
        let earlier = self.identity.kept.clone();
        self.identity.learn(&self.config, node, primary);
        let kept = &self.identity.kept;
        if !kept.is_empty() && *kept != earlier {
            warn!(
                ?kept,
                "the Node object names no address of a family; the earlier ones stay in use"
            );
        }
        self.learn_prefixes(node);
    }

    /// Forgets the prefixes that an earlier run may have had from its `clusterCIDR`: the configuration may have lost it
    /// since. With it, pods of this node and those of the cluster are in the same prefix, or local pods are detected by
    /// interface.
    fn forget_cluster_cidr(&mut self) {
        for (local, pods) in self.local.iter_mut().zip(&mut self.pods) {
            if self.had_local_devices && !local.is_set() || local == pods {
                (*local, *pods) = (Prefix::default(), Prefix::default());
            }
        }
        self.identity.pod_ranges = self.pods.iter().filter_map(words::network).collect();
    }

    /// Takes over `podCIDRs`. A family of which the Node object names none keeps its earlier prefixes: an object that
    /// was created again has none until a controller assigns them, and without them no pod would count as local.
    fn learn_prefixes(&mut self, node: &NodeSpec) {
        let (local, pods) = (self.config.local(Some(node)), self.config.pods(Some(node)));
        let [mut all_local, mut all_pods] = [local, pods];
        if self.config.detect_local.value == DetectLocalMode::NodeCidr {
            all_local = or(local, self.local);
        }
        if self.config.cluster_cidr.value.is_empty() {
            all_pods = or(pods, self.pods);
        }
        (self.local, self.pods) = (all_local, all_pods);
        let named = [local, pods].concat();
        let all = [all_local, all_pods].concat();
        let kept = all.iter().filter(|prefix| !named.contains(*prefix));
        let kept: Vec<IpNet> = kept.filter_map(words::network).collect();
        if !kept.is_empty() && kept != self.kept {
            warn!(
                ?kept,
                "the Node object names no podCIDR of a family; the earlier networks of pods stay in use"
            );
        }
        self.kept = kept;
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
    use lb_common::fake::world::prefix;

    use super::*;
    use crate::config::Setting;
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

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn learn(facts: &mut Facts, pod_cidrs: &[&str]) {
        let node = NodeSpec { pod_cidrs: nets(pod_cidrs).into(), ..NodeSpec::default() };
        facts.learn(&node, Primary::default());
    }

    /// As of an object that was deleted and created again.
    #[test]
    fn a_family_of_which_the_node_object_names_no_pod_cidr_keeps_the_earlier_prefixes() {
        let detect_local = Setting::new(DetectLocalMode::NodeCidr);
        let config = Arc::new(Config { detect_local, ..Config::default() });
        let mut facts = Facts::after(&NodeSettings::default(), Arc::clone(&config)).unwrap();
        learn(&mut facts, &[]);
        assert!(facts.kept.is_empty() && facts.identity.pod_ranges.is_empty());
        let own = ["10.244.1.0/24", "fd00:1:0:1::/64"];
        learn(&mut facts, &own);
        let (local, pods) = (facts.local, facts.pods);
        assert_eq!(local, [prefix("10.244.1.0", 24), prefix("fd00:1:0:1::", 64)]);
        assert_eq!(pods, [prefix("10.244.0.0", 16), prefix("fd00:1::", 32)]);
        learn(&mut facts, &[]);
        assert_eq!((facts.local, facts.pods), (local, pods));
        assert_eq!(facts.identity.pod_ranges, nets(&own));
        let all = nets(&["10.244.1.0/24", "fd00:1:0:1::/64", "10.244.0.0/16", "fd00:1::/32"]);
        assert_eq!(facts.kept, all);
        learn(&mut facts, &["10.244.7.0/24"]);
        assert_eq!(facts.local, [prefix("10.244.7.0", 24), prefix("fd00:1:0:1::", 64)]);
        assert_eq!(facts.identity.pod_ranges, nets(&["10.244.7.0/24", "fd00:1:0:1::/64"]));
        let before = NodeSettings { local, pods, ..NodeSettings::default() };
        let mut restarted = Facts::after(&before, config).unwrap();
        learn(&mut restarted, &[]);
        assert_eq!((restarted.local, restarted.pods), (local, pods));
    }

    #[test]
    fn pod_cidrs_of_the_earlier_run_stay_without_a_detector() {
        let pods = [prefix("10.244.0.0", 16), Prefix::default()];
        let before = NodeSettings { pods, ..NodeSettings::default() };
        let mut facts = Facts::after(&before, Arc::default()).unwrap();
        learn(&mut facts, &[]);
        assert_eq!((facts.pods, facts.kept.len()), (pods, 1));
        let before = NodeSettings { flags: Settings::LOCAL_BY_DEVICE, ..before };
        let mut facts = Facts::after(&before, Arc::default()).unwrap();
        learn(&mut facts, &[]);
        assert_eq!(facts.pods, [Prefix::default(); 2], "they may be those of a clusterCIDR");
    }

    #[test]
    fn cluster_cidr_of_the_earlier_run_ends_with_the_node_object() {
        let pods = [prefix("10.244.0.0", 16), Prefix::default()];
        let before = NodeSettings { local: pods, pods, ..NodeSettings::default() };
        let mut facts = Facts::after(&before, Arc::default()).unwrap();
        assert_eq!(facts.pods, pods);
        learn(&mut facts, &[]);
        assert_eq!(facts.pods, [Prefix::default(); 2]);
        assert!(facts.identity.pod_ranges.is_empty() && facts.kept.is_empty());
    }

    #[test]
    fn pod_ranges_are_those_of_the_earlier_run_until_the_node_object_is_known() {
        let pods = [prefix("10.244.0.0", 16), prefix("fd00:1::", 32)];
        let before = NodeSettings { pods, ..NodeSettings::default() };
        let mut facts = Facts::after(&before, Arc::default()).unwrap();
        assert_eq!(facts.identity.pod_ranges, nets(&["10.244.0.0/16", "fd00:1::/32"]));
        learn(&mut facts, &["10.244.1.0/24", "fd00:1:0:1::/64"]);
        assert_eq!(facts.identity.pod_ranges, nets(&["10.244.1.0/24", "fd00:1:0:1::/64"]));
        let first = Facts::after(&NodeSettings::default(), Arc::default()).unwrap();
        assert!(first.identity.pod_ranges.is_empty());
    }
}
