//! The node's addresses, and the map that has them.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::addr::Ip;
use tracing::warn;

use super::Devices;
use crate::node::Primary;
use crate::plan::Family;
use crate::reconcile::wire;

impl Devices {
    /// Returns the node's addresses with their bits, and for each family whether `NodePorts` are served on all
    /// addresses.
    pub(in crate::run) fn served(&self) -> (&BTreeMap<Ip, u32>, [bool; 2]) {
        let Primary { v4, v6 } = self.identity.primary;
        let all = |family, primary| self.identity.node_ports.is_all(family, primary);
        (&self.addresses, [all(Family::V4, v4), all(Family::V6, v6)])
    }

    /// Returns the node's primary address of each family.
    pub(in crate::run) const fn primary(&self) -> Primary {
        self.identity.primary
    }

    /// Reports whether an address belongs to the node.
    pub(in crate::run) fn is_own(&self, ip: &Ip) -> bool {
        self.addresses.contains_key(ip)
    }

    /// Reports whether an address may belong to the node. At a first start, objects may arrive before the interfaces
    /// are listed; then any address may.
    pub(in crate::run) fn may_be_own(&self, ip: &Ip) -> bool {
        self.addresses.is_empty() || self.is_own(ip)
    }

    /// Returns the node's addresses on which a process may listen. Those of `kube-ipvs0` are left out: kube-proxy in
    /// mode ipvs put every `ClusterIP` there.
    pub(in crate::run) fn listening(&self) -> BTreeSet<Ip> {
        let Some(view) = &self.view else { return BTreeSet::new() };
        let is_left_over =
            |index: &u32| view.links.get(index).is_some_and(|link| link.name == "kube-ipvs0");
        let own = view.addresses.iter().filter(|own| !is_left_over(&own.index));
        own.map(|own| wire(own.ip)).collect()
    }

    /// Writes the addresses that changed, new ones first, so that an address that stays always has its entry.
    pub(super) fn put_addresses(&mut self, wanted: &BTreeMap<Ip, u32>) {
        let changed = wanted.iter().filter(|(ip, bits)| self.addresses.get(ip) != Some(bits));
        let gone = self.addresses.keys().filter(|ip| !wanted.contains_key(ip)).map(|ip| (*ip, 0));
        let writes: Vec<(Ip, u32)> = changed.map(|(ip, bits)| (*ip, *bits)).chain(gone).collect();
        for ip in wanted.keys() {
            self.own.add(ip);
        }
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
