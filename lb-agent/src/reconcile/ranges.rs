//! The part of the settings that follows from the frontends: where `ClusterIP`s lie, which `NodePorts` are in
//! use, whether other addresses are. A quick "not ours" for packets; wide is slow, narrow is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::addr::{Ip, Port};
use lb_common::config::{Prefix, RANGES, Settings, other};
use lb_common::service::{Flags, Frontend, Service};

/// Computed prefixes a family gets at most; both families share [`RANGES`].
const PER_FAMILY: usize = RANGES / 2;
/// Computed prefixes are never longer (as mapped): a service more seldom moves them then.
const LONGEST: u32 = 120;

/// Counts of what the entries of `SERVICES` need.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    cluster: BTreeMap<Ip, u32>,
    node_ports: BTreeMap<u16, u32>,
    /// By their bits in [`Settings::others`].
    others: BTreeMap<u8, u32>,
    given: Vec<IpNet>,
    /// The same as `current` has them.
    cidrs: Vec<(Ip, u32)>,
    current: Vec<(Ip, u32)>,
    known: bool,
    /// Frontends that went or came to another service, see [`Settings::removals`].
    removals: u32,
    /// An address outside of `current` came, or one of its prefixes fell idle.
    stale: bool,
}

impl Ranges {
    /// The cluster's `ServiceCIDR`s, empty when they are not known.
    pub(super) fn set_cidrs(&mut self, cidrs: &[IpNet]) {
        self.given = cidrs.to_vec();
        self.cidrs = cidrs.iter().map(mapped).collect();
        self.stale = true;
    }

    /// The `ServiceCIDR`s.
    pub(super) fn given(&self) -> impl Iterator<Item = IpNet> {
        self.given.iter().copied()
    }

    /// Whether one of them holds the address.
    pub(super) fn is_given(&self, ip: &Ip) -> bool {
        holds(&self.cidrs, ip)
    }

    /// The networks of ClusterIPs: the `ServiceCIDR`s, and single addresses beside them.
    pub(super) fn of_cluster_ips(&self) -> BTreeSet<IpNet> {
        let singles = self.cluster.keys().filter(|ip| !self.is_given(ip));
        let singles = singles.map(|ip| IpNet::from(IpAddr::from(*ip)));
        self.given().chain(singles).collect()
    }

    /// Counts on from an earlier run, which may have ended before it wrote its last count.
    pub(super) const fn count_from(&mut self, removals: u32) {
        self.removals = removals.wrapping_add(1);
    }

    /// A frontend went, or came to another service.
    pub(super) const fn count_removal(&mut self) {
        self.removals = self.removals.wrapping_add(1);
    }

    /// An entry came.
    pub(super) fn add(&mut self, frontend: &Frontend, service: &Service) {
        if service.flags.has(Flags::NODE_PORT) {
            *self.node_ports.entry(frontend.port.get()).or_default() += 1;
        } else if service.flags.has(Flags::EXTERNAL) {
            *self.others.entry(other(&frontend.ip)).or_default() += 1;
        } else {
            *self.cluster.entry(frontend.ip).or_default() += 1;
            self.stale |= !holds(&self.current, &frontend.ip);
        }
    }

    /// An entry went; `service` is what it held.
    pub(super) fn remove(&mut self, frontend: &Frontend, service: &Service) {
        if service.flags.has(Flags::NODE_PORT) {
            decrement(&mut self.node_ports, &frontend.port.get());
        } else if service.flags.has(Flags::EXTERNAL) {
            decrement(&mut self.others, &other(&frontend.ip));
        } else {
            decrement(&mut self.cluster, &frontend.ip);
            let given = if self.known { self.cidrs.len() } else { 0 };
            let mut computed = self.current.iter().skip(given);
            self.stale |= computed.any(|&(ip, bits)| !self.any_within(ip, bits));
        }
    }

    /// Writes the derived fields into `settings`.
    pub(super) fn fill(&mut self, settings: &mut Settings) {
        if self.stale {
            (self.current, self.known) = self.compute();
            self.stale = false;
        }
        settings.ranges = [Prefix::default(); RANGES];
        for (place, (ip, bits)) in settings.ranges.iter_mut().zip(&self.current) {
            *place = Prefix { ip: *ip, mask: mask(*bits) };
        }
        settings.cover = [self.cover_of(true), self.cover_of(false)];
        settings.removals = self.removals;
        let low = self.node_ports.first_key_value().map_or(u16::MAX, |(port, _)| *port);
        let high = self.node_ports.last_key_value().map_or(0, |(port, _)| *port);
        settings.node_port_low = Port::new(low);
        settings.node_port_high = Port::new(high);
        let derived = Settings::RANGES_KNOWN | Settings::OTHER_FRONTENDS;
        settings.flags &= !derived;
        settings.flags |= if self.known { Settings::RANGES_KNOWN } else { 0 };
        settings.flags |= if self.others.is_empty() { 0 } else { Settings::OTHER_FRONTENDS };
        settings.others = [0; 4];
        self.others.keys().for_each(|bit| settings.add_other(*bit));
    }

    /// The longest prefix of a family that holds its part of `current`.
    fn cover_of(&self, v4: bool) -> Prefix {
        let mine = self.current.iter().filter(|(ip, _)| ip.is_v4() == v4);
        mine.copied()
            .reduce(joint)
            .map_or(Prefix::NOTHING, |(ip, bits)| Prefix { ip, mask: mask(bits) })
    }

    /// The `ServiceCIDR`s and single addresses beside them; else computed prefixes.
    fn compute(&self) -> (Vec<(Ip, u32)>, bool) {
        let outside = self.outside(&self.cidrs).take(RANGES + 1).map(|ip| (ip, 128));
        let known: Vec<(Ip, u32)> = self.cidrs.iter().copied().chain(outside).collect();
        if !self.cidrs.is_empty() && known.len() <= RANGES {
            return (known, true);
        }
        // IPv4 is mapped, so it is one run of the sorted addresses: below and above it is IPv6.
        let (v4_first, v4_last) = (Ip::v4([0; 4]), Ip::v4([255; 4]));
        let v4 = self.cover(v4_first, v4_last, PER_FAMILY);
        let below = self.cover(Ip::UNSPECIFIED, v4_first, 1);
        let above = self.cover(v4_last, Ip::v6([255; 16]), PER_FAMILY - below.len());
        ([v4, below, above].concat(), false)
    }

    /// The addresses in no prefix of `prefixes`.
    fn outside<'a>(&'a self, prefixes: &'a [(Ip, u32)]) -> impl Iterator<Item = Ip> + 'a {
        self.cluster.keys().copied().filter(move |ip| !holds(prefixes, ip))
    }

    /// Whether an address lies in a prefix.
    fn any_within(&self, ip: Ip, bits: u32) -> bool {
        self.cluster.range(ip..=last(&ip, bits)).next().is_some()
    }

    /// At most `count` prefixes that hold the addresses from `low` to `high`: the widest is split first.
    fn cover(&self, low: Ip, high: Ip, count: usize) -> Vec<(Ip, u32)> {
        let mut runs: Vec<(Ip, u32)> = self.tightest(low, high).into_iter().collect();
        while runs.len() < count {
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

    /// The longest prefix that holds every address from `low` to `high`.
    fn tightest(&self, low: Ip, high: Ip) -> Option<(Ip, u32)> {
        let mut run = self.cluster.range(low..=high).map(|(ip, _)| ip);
        let first = run.next()?;
        let last = run.next_back().unwrap_or(first);
        let differing = u128::from_be_bytes(first.octets()) ^ u128::from_be_bytes(last.octets());
        let bits = differing.leading_zeros().min(LONGEST);
        Some((truncate(first, bits), bits))
    }
}

/// The longest prefix that holds both.
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

/// A prefix as the mapped address and the mapped length.
pub(super) fn mapped(net: &IpNet) -> (Ip, u32) {
    match net {
        IpNet::V4(net) => (Ip::v4(net.network().octets()), 96 + u32::from(net.prefix_len())),
        IpNet::V6(net) => (Ip::v6(net.network().octets()), u32::from(net.prefix_len())),
    }
}

/// The mask of a mapped length.
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
