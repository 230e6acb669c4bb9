//! The node's addresses, as the map `ADDRESSES` has them.

use std::collections::BTreeMap;

use lb_common::addr::Ip;
use lb_common::config::{AddressFilter, NodeSettings};
use tracing::warn;

use crate::maps::Maps;

/// The addresses that were written to the map, with their flags.
#[derive(Debug)]
pub(super) struct Addresses {
    written: BTreeMap<Ip, u32>,
    /// Filter of the addresses that this node has or had: flows may still have an old one as their source.
    own: AddressFilter,
}

impl Addresses {
    /// Starts with the addresses that an earlier run wrote.
    pub(super) fn after(maps: &Maps, before: &NodeSettings) -> Result<Self, crate::maps::Error> {
        Ok(Self { written: maps.addresses()?.into_iter().collect(), own: before.own })
    }

    pub(super) const fn written(&self) -> &BTreeMap<Ip, u32> {
        &self.written
    }

    /// Returns the filter of addresses that this node has or had.
    pub(super) const fn own(&self) -> AddressFilter {
        self.own
    }

    /// Writes the addresses that changed, new ones first, so that an address that stays always has its entry.
    pub(super) fn put(&mut self, wanted: &BTreeMap<Ip, u32>, maps: &mut Maps) {
        let changed = wanted.iter().filter(|(ip, bits)| self.written.get(ip) != Some(bits));
        let gone = self.written.keys().filter(|ip| !wanted.contains_key(ip)).map(|ip| (*ip, 0));
        let writes: Vec<(Ip, u32)> = changed.map(|(ip, bits)| (*ip, *bits)).chain(gone).collect();
        for ip in wanted.keys() {
            self.own.add(ip);
        }
        for (ip, bits) in writes {
            match maps.put_address(ip, bits) {
                Ok(()) if bits == 0 => drop(self.written.remove(&ip)),
                Ok(()) => drop(self.written.insert(ip, bits)),
                Err(error) => {
                    warn!(error = %crate::chain(&error), "writing an address failed");
                }
            }
        }
    }
}
