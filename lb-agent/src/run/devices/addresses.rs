//! The node's addresses, as the map `ADDRESSES` has them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lb_common::addr::Ip;
use lb_common::config::{AddressFilter, NodeSettings, address};
use lb_common::maps::name;
use tracing::warn;

use crate::maps::{Error, Maps};

/// The addresses that were written to the map, with their flags.
#[derive(Debug)]
pub(super) struct Addresses {
    written: BTreeMap<Ip, u32>,
    /// Filter of the addresses that this node has or had: flows may still have an old one as their source.
    own: AddressFilter,
    /// The problem of addresses that the map refused, for operators.
    problem: Option<String>,
}

impl Addresses {
    /// Starts with the addresses that an earlier run wrote.
    pub(super) fn after(maps: &Maps, before: &NodeSettings) -> Result<Self, Error> {
        let written: BTreeMap<Ip, u32> = maps.addresses()?.into_iter().collect();
        let own = inherited(&before.own, &written);
        Ok(Self { written, own, problem: None })
    }

    pub(super) const fn written(&self) -> &BTreeMap<Ip, u32> {
        &self.written
    }

    /// Returns the problem of addresses that could not be written.
    pub(super) const fn problem(&self) -> Option<&String> {
        self.problem.as_ref()
    }

    /// Returns the filter of addresses that this node has or had.
    pub(super) const fn own(&self) -> AddressFilter {
        self.own
    }

    /// Writes the addresses that changed, new ones first, so that an address that stays always has its entry.
    pub(super) fn put(&mut self, wanted: &BTreeMap<Ip, u32>, maps: &mut Maps) {
        let changed = wanted.iter().filter(|(ip, bits)| self.written.get(ip) != Some(bits));
        let mut changed: Vec<(Ip, u32)> = changed.map(|(ip, bits)| (*ip, *bits)).collect();
        // The ClusterIPs on `kube-ipvs0` may be more than the map holds, and must not keep the others out.
        changed.sort_by_key(|(_, bits)| bits & address::NODE_PORTS == 0);
        let gone = self.written.keys().filter(|ip| !wanted.contains_key(ip)).map(|ip| (*ip, 0));
        let gone: Vec<(Ip, u32)> = gone.collect();
        for ip in wanted.keys().filter(|ip| may_be_source(ip)) {
            self.own.add(ip);
        }
        let mut refused = self.write(changed, maps);
        // A full map may have room now.
        let freed = gone.len();
        let mut stuck = self.write(gone, maps);
        if freed > 0 {
            refused = self.write(refused.into_iter().map(|(written, _)| written).collect(), maps);
        }
        refused.append(&mut stuck);
        self.report(&refused);
    }

    /// Writes addresses with their flags, 0 to remove one. Returns those that the map refused, with the reason.
    fn write(&mut self, writes: Vec<(Ip, u32)>, maps: &mut Maps) -> Vec<((Ip, u32), Error)> {
        let mut refused = Vec::new();
        for (ip, bits) in writes {
            match maps.put_address(ip, bits) {
                Ok(()) if bits == 0 => drop(self.written.remove(&ip)),
                Ok(()) => drop(self.written.insert(ip, bits)),
                Err(error) => refused.push(((ip, bits), error)),
            }
        }
        refused
    }

    /// Keeps a sentence about refused addresses, and logs it if it is new.
    fn report(&mut self, refused: &[((Ip, u32), Error)]) {
        let problem = refused.first().map(|((ip, _), error)| {
            let (ip, count, error) = (IpAddr::from(*ip), refused.len(), crate::chain(error));
            let map = name::ADDRESSES;
            format!(
                "{count} addresses of this node could not be written, among them {ip}, and NodePorts are not served \
                 on them: {error}; if the map is full, raise it with --map-size {map}=N"
            )
        });
        if let Some(problem) =
            problem.as_ref().filter(|problem| self.problem.as_ref() != Some(problem))
        {
            warn!(problem, "writing addresses failed");
        }
        self.problem = problem;
    }
}
/// Reports whether an address belongs into the filter. Link-local ones do not: each interface of a pod has one, the
/// filter forgets none, and no route leads to them.
pub(super) fn may_be_source(ip: &Ip) -> bool {
    !matches!(IpAddr::from(*ip), IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns the filter to begin with: that of an earlier run, or one of the addresses that it wrote, if its own is lost
/// or no longer distinguishes addresses. Earlier versions added link-local ones.
fn inherited(before: &AddressFilter, written: &BTreeMap<Ip, u32>) -> AddressFilter {
    let bits: u32 = before.words.iter().map(|word| word.count_ones()).sum();
    if bits != 0 && bits as usize <= before.words.len() * 16 {
        return *before;
    }
    let mut own = AddressFilter::default();
    for ip in written.keys().filter(|ip| may_be_source(ip)) {
        own.add(ip);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_of_many_link_local_addresses_is_begun_anew_with_the_others() {
        let mut before = AddressFilter::default();
        let own = Ip::v4([192, 0, 2, 1]);
        before.add(&own);
        let of_pod = |number: u16| {
            let [high, low] = number.to_be_bytes();
            let mut octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 1, high, low, 7, high, low, 9];
            (octets[9], octets[15]) = (low, low.wrapping_mul(31) ^ high);
            Ip::from(IpAddr::from(octets))
        };
        assert_eq!(inherited(&before, &BTreeMap::new()), before, "few bits");
        let lost = inherited(&AddressFilter::default(), &[(own, 1)].into());
        assert!(lost.may_hold(&own) && lost == before, "the addresses that were written");
        let mut written: BTreeMap<Ip, u32> = (0..9_000).map(|pod| (of_pod(pod), 1)).collect();
        for ip in written.keys() {
            before.add(ip);
        }
        written.insert(own, 1);
        let after = inherited(&before, &written);
        assert!(after.may_hold(&own));
        assert_eq!(after.words.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
    }
}
