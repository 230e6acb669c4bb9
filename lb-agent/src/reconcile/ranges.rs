//! The settings that follow from the frontends: prefixes of the `ClusterIP`s, the range of `NodePorts` in use, and a
//! filter of other addresses.
//!
//! Packets outside of them pass as "not ours" without a lookup. Prefixes that are too wide cost lookups; too narrow
//! ones would be wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::addr::{Ip, Port};
use lb_common::config::{AddressFilter, Prefix, RANGES, ServiceRanges};
use lb_common::service::{Flags, Frontend, Service};

/// Most computed prefixes for each family; both families share [`RANGES`].
const PER_FAMILY: usize = RANGES / 2;
/// Longest computed prefix (v4-mapped), so that single services rarely change the prefixes.
const LONGEST: u32 = 120;

/// Counts of the entries of `SERVICES` that the settings cover.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    cluster: BTreeMap<Ip, u32>,
    node_ports: BTreeMap<u16, u32>,
    /// Other frontends, by their bits in [`ServiceRanges::vip_filter`].
    vips: BTreeMap<u16, u32>,
    given: Vec<IpNet>,
    /// The `ServiceCIDR`s in the form of `current`.
    cidrs: Vec<(Ip, u32)>,
    current: Vec<(Ip, u32)>,
    known: bool,
    /// See [`ServiceRanges::frontends_epoch`].
    epoch: u32,
    /// Whether `current` must be computed again: an address outside of it was added, one of its prefixes has no address
    /// left, or the `ServiceCIDR`s may fit again.
    stale: bool,
}

impl Ranges {
    /// Sets the prefixes of all `ServiceCIDR`s; empty if they are not known.
    pub(super) fn set_cidrs(&mut self, cidrs: &[IpNet]) {
        self.given = cidrs.to_vec();
        self.cidrs = cidrs.iter().map(mapped).collect();
        self.stale = true;
    }

    /// Returns the configured prefixes of Services (`ServiceCIDR`s).
    pub(super) fn given(&self) -> impl Iterator<Item = IpNet> {
        self.given.iter().copied()
    }

    /// Reports whether a `ServiceCIDR` contains the address.
    pub(super) fn is_given(&self, ip: &Ip) -> bool {
        holds(&self.cidrs, ip)
    }

    /// Returns the networks of `ClusterIP`s: the `ServiceCIDR`s, and single addresses outside them.
    pub(super) fn of_cluster_ips(&self) -> BTreeSet<IpNet> {
        let singles = self.cluster.keys().filter(|ip| !self.is_given(ip));
        let singles = singles.map(|ip| IpNet::from(IpAddr::from(*ip)));
        self.given().chain(singles).collect()
    }

    /// Continues the count of an earlier run, which may have ended before it wrote its last one.
    pub(super) const fn count_from(&mut self, epoch: u32) {
        self.epoch = epoch.wrapping_add(1);
    }

    /// Counts a frontend that was removed or changed service.
    pub(super) const fn count_removal(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Counts an entry that was written.
    pub(super) fn add(&mut self, frontend: &Frontend, service: &Service) {
        if service.flags.has(Flags::NODE_PORT) {
            *self.node_ports.entry(frontend.port.get()).or_default() += 1;
        } else if service.flags.has(Flags::EXTERNAL) {
            *self.vips.entry(AddressFilter::bit(&frontend.ip)).or_default() += 1;
        } else {
            *self.cluster.entry(frontend.ip).or_default() += 1;
            // The prefixes are computed again only if an address lies outside, because that takes a walk over all
            // addresses.
            self.stale |= !holds(&self.current, &frontend.ip);
        }
    }

    /// Removes an entry; `service` is its old value.
    pub(super) fn remove(&mut self, frontend: &Frontend, service: &Service) {
        if service.flags.has(Flags::NODE_PORT) {
            decrement(&mut self.node_ports, &frontend.port.get());
        } else if service.flags.has(Flags::EXTERNAL) {
            decrement(&mut self.vips, &AddressFilter::bit(&frontend.ip));
        } else {
            decrement(&mut self.cluster, &frontend.ip);
            // Prefixes of `ServiceCIDR`s stay even without a Service in them.
            let given = if self.known { self.cidrs.len() } else { 0 };
            let mut computed = self.current.iter().skip(given);
            self.stale |= computed.any(|&(ip, bits)| !self.any_within(ip, bits));
            // The addresses outside of the `ServiceCIDR`s were too many. One that is inside changes nothing.
            self.stale |= !self.known && !self.cidrs.is_empty() && !self.is_given(&frontend.ip);
        }
    }

    /// Returns the part of the settings that follows from the entries.
    pub(super) fn derive(&mut self) -> ServiceRanges {
        if self.stale {
            (self.current, self.known) = self.compute();
            self.stale = false;
        }
        let mut ranges = [Prefix::default(); RANGES];
        for (place, (ip, bits)) in ranges.iter_mut().zip(&self.current) {
            *place = Prefix { ip: *ip, mask: mask(*bits) };
        }
        // Without NodePorts the range is empty: its low end lies above its high end.
        let low = self.node_ports.first_key_value().map_or(u16::MAX, |(port, _)| *port);
        let high = self.node_ports.last_key_value().map_or(0, |(port, _)| *port);
        let mut vip_filter = AddressFilter::default();
        self.vips.keys().for_each(|bit| vip_filter.add_bit(*bit));
        ServiceRanges {
            frontends_epoch: self.epoch,
            node_port_low: Port::new(low),
            node_port_high: Port::new(high),
            vip_filter,
            cluster_ip_cover: [self.cover_of(true), self.cover_of(false)],
            ranges,
            known: self.known.into(),
            pad: 0,
        }
    }

    /// Returns the longest prefix that contains `current` in one family.
    fn cover_of(&self, v4: bool) -> Prefix {
        let mine = self.current.iter().filter(|(ip, _)| ip.is_v4() == v4);
        mine.copied()
            .reduce(joint)
            .map_or(Prefix::NOTHING, |(ip, bits)| Prefix { ip, mask: mask(bits) })
    }

    /// Returns the `ServiceCIDR`s and single addresses outside them; or computed prefixes if there are none, or too
    /// many. Returns true for the former.
    fn compute(&self) -> (Vec<(Ip, u32)>, bool) {
        let outside = self.outside(&self.cidrs).take(RANGES + 1).map(|ip| (ip, 128));
        let known: Vec<(Ip, u32)> = self.cidrs.iter().copied().chain(outside).collect();
        if !self.cidrs.is_empty() && known.len() <= RANGES {
            return (known, true);
        }
        // Mapped IPv4 addresses are one run of the sorted addresses, with IPv6 below and above it.
        let (v4_first, v4_last) = (Ip::v4([0; 4]), Ip::v4([255; 4]));
        let v4 = self.cover(v4_first, v4_last, PER_FAMILY);
        let below = self.cover(Ip::UNSPECIFIED, v4_first, 1);
        let above = self.cover(v4_last, Ip::v6([255; 16]), PER_FAMILY - below.len());
        ([v4, below, above].concat(), false)
    }

    /// Returns the addresses outside of all prefixes.
    fn outside<'a>(&'a self, prefixes: &'a [(Ip, u32)]) -> impl Iterator<Item = Ip> + 'a {
        self.cluster.keys().copied().filter(move |ip| !holds(prefixes, ip))
    }

    /// Reports whether a prefix contains an address.
    fn any_within(&self, ip: Ip, bits: u32) -> bool {
        self.cluster.range(ip..=last(&ip, bits)).next().is_some()
    }

    /// Returns at most `count` prefixes that contain the addresses from `low` to `high`. The widest one is split first.
    fn cover(&self, low: Ip, high: Ip, count: usize) -> Vec<(Ip, u32)> {
        let mut runs: Vec<(Ip, u32)> = self.tightest(low, high).into_iter().collect();
        while runs.len() < count {
            // The widest prefix costs lookups for most addresses without a frontend.
            runs.sort_by_key(|(_, bits)| *bits);
            let Some(&(ip, bits)) = runs.first().filter(|(_, bits)| *bits < LONGEST) else {
                break;
            };
            let middle = with_bit(&ip, bits);
            let lower = self.tightest(ip, last(&ip, bits + 1));
            let upper = self.tightest(middle, last(&ip, bits));
            runs.remove(0);
            runs.extend(lower.into_iter().chain(upper));
        }
        runs
    }

    /// Returns the longest prefix that contains every address from `low` to `high`.
    fn tightest(&self, low: Ip, high: Ip) -> Option<(Ip, u32)> {
        let mut run = self.cluster.range(low..=high).map(|(ip, _)| ip);
        let first = run.next()?;
        let last = run.next_back().unwrap_or(first);
        let differing = u128::from_be_bytes(first.octets()) ^ u128::from_be_bytes(last.octets());
        let bits = differing.leading_zeros().min(LONGEST);
        Some((truncate(first, bits), bits))
    }
}

/// Returns the longest prefix that contains both.
fn joint((left, left_bits): (Ip, u32), (right, right_bits): (Ip, u32)) -> (Ip, u32) {
    let differing = u128::from_be_bytes(left.octets()) ^ u128::from_be_bytes(right.octets());
    let bits = differing.leading_zeros().min(left_bits).min(right_bits);
    (truncate(&left, bits), bits)
}

fn holds(prefixes: &[(Ip, u32)], ip: &Ip) -> bool {
    prefixes.iter().any(|&(net, bits)| truncate(ip, bits) == net)
}

pub(super) fn decrement<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Returns a prefix as mapped address and mapped length.
pub(super) fn mapped(net: &IpNet) -> (Ip, u32) {
    match net {
        IpNet::V4(net) => (Ip::v4(net.network().octets()), 96 + u32::from(net.prefix_len())),
        IpNet::V6(net) => (Ip::v6(net.network().octets()), u32::from(net.prefix_len())),
    }
}

/// Returns the mask of a mapped length.
pub(super) const fn mask(bits: u32) -> Ip {
    let mask = match u128::MAX.checked_shl(128 - bits) {
        Some(mask) => mask,
        None => 0,
    };
    Ip::v6(mask.to_be_bytes())
}

const fn truncate(ip: &Ip, bits: u32) -> Ip {
    let mask = u128::from_be_bytes(mask(bits).octets());
    Ip::v6((u128::from_be_bytes(ip.octets()) & mask).to_be_bytes())
}

const fn last(ip: &Ip, bits: u32) -> Ip {
    let mask = u128::from_be_bytes(mask(bits).octets());
    Ip::v6((u128::from_be_bytes(ip.octets()) | !mask).to_be_bytes())
}

const fn with_bit(ip: &Ip, bit: u32) -> Ip {
    Ip::v6((u128::from_be_bytes(ip.octets()) | 1 << (127 - bit)).to_be_bytes())
}

#[cfg(test)]
mod tests;
