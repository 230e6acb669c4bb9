//! The node's addresses in their map.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::addr::Ip;
use lb_common::config::Settings;
use tracing::warn;

use super::Devices;
use crate::node::Primary;
use crate::plan::Family;

impl Devices {
    /// The node's addresses, and in which families `NodePorts` are served on all of them.
    pub(in crate::run) fn served(&self) -> (&BTreeMap<Ip, u32>, [bool; 2]) {
        let Primary { v4, v6 } = self.identity.primary;
        let all = |family, primary| self.identity.node_ports.is_all(family, primary);
        (&self.addresses, [all(Family::V4, v4), all(Family::V6, v6)])
    }

    /// The node's own addresses, one of each family.
    pub(in crate::run) const fn primary(&self) -> Primary {
        self.identity.primary
    }

    /// Whether an address is one of the node's.
    pub(in crate::run) fn is_own(&self, ip: &Ip) -> bool {
        self.addresses.contains_key(ip)
    }

    /// Whether an address is one of the node's, as far as is known: at a first start, objects may come before the
    /// interfaces were listed.
    pub(in crate::run) fn may_be_own(&self, ip: &Ip) -> bool {
        self.addresses.is_empty() || self.is_own(ip)
    }

    /// The node's addresses that a process may listen at: not those
    /// of `kube-ipvs0`, where kube-proxy has every ClusterIP.
    pub(in crate::run) fn listening(&self) -> BTreeSet<Ip> {
        let Some(view) = &self.view else { return BTreeSet::new() };
        let is_left_over =
            |index: &u32| view.links.get(index).is_some_and(|link| link.name == "kube-ipvs0");
        let own = view.addresses.iter().filter(|own| !is_left_over(&own.index));
        own.map(|own| Ip::from(own.ip)).collect()
    }

    /// New addresses first: a packet to one that stays is never without its entry.
    pub(super) fn put_addresses(&mut self, wanted: &BTreeMap<Ip, u32>) {
        let changed = wanted.iter().filter(|(ip, bits)| self.addresses.get(ip) != Some(bits));
        let gone = self.addresses.keys().filter(|ip| !wanted.contains_key(ip)).map(|ip| (*ip, 0));
        let writes: Vec<(Ip, u32)> = changed.map(|(ip, bits)| (*ip, *bits)).chain(gone).collect();
        let mut settings = Settings { own: self.own, ..Settings::default() };
        for ip in wanted.keys() {
            settings.add_own(ip);
        }
        self.own = settings.own;
        for (ip, bits) in writes {
            match self.maps.put_address(ip, bits) {
                Ok(()) if bits == 0 => drop(self.addresses.remove(&ip)),
                Ok(()) => drop(self.addresses.insert(ip, bits)),
                Err(error) => {
                    warn!(error = %crate::chain(&error), "writing an address failed");
                }
            }
        }
    }
}
