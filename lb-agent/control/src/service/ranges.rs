//! Ranges of addresses and ports. Each has a lower band that is left to requests for a specific value.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::check::successor;
use crate::family::Family;

/// A range that is not usable.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum RangeError {
    #[error("{0} has fewer than 8 addresses")]
    TooSmall(IpNet),
    #[error("{0} is too large: at most 20 bits of IPv4, 64 bits of IPv6 may differ")]
    TooLarge(IpNet),
    #[error("{0} has bits set beyond the prefix length")]
    HostBits(IpNet),
    #[error("one or two ranges of different families are needed")]
    Families,
    #[error("{0} is not a range of ports such as 30000-32767")]
    Ports(String),
}

/// Shows which addresses and ports are booked.
pub trait Taken {
    /// Reports whether a Service has this address.
    fn has_address(&self, address: IpAddr) -> bool;
    /// Reports whether a Service has this node port.
    fn has_port(&self, port: u16) -> bool;
}

/// A source of random numbers: returns one below the argument, which is not zero.
pub type Dice<'a> = dyn FnMut(u64) -> u64 + 'a;

/// A range of cluster addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    net: IpNet,
    first: IpAddr,
    /// Number of addresses that can be given.
    size: u64,
    /// Size of the band from the first address on. Random allocation uses it only when the rest is full.
    band: u64,
}

/// Size of the lower band: `min(max(16, size / step), most)`; none in a range of 16 or fewer (KEP-3070, KEP-3668).
fn band(size: u64, step: u64, most: u64) -> u64 {
    if size <= 16 { 0 } else { (size / step).clamp(16, most) }
}

impl AddressRange {
    /// Takes a prefix of 12 to 29 bits for IPv4, 64 to 125 bits for IPv6. Errors: other lengths, or host bits set.
    pub fn new(net: IpNet) -> Result<Self, RangeError> {
        let width = u32::from(net.max_prefix_len() - net.prefix_len());
        let most = if net.addr().is_ipv4() { 20 } else { 64 };
        if net.network() != net.addr() {
            return Err(RangeError::HostBits(net));
        }
        if width > most {
            return Err(RangeError::TooLarge(net));
        }
        if width < 3 {
            return Err(RangeError::TooSmall(net));
        }
        let all = 1_u64.checked_shl(width).unwrap_or(u64::MAX);
        // Neither the network's own address nor IPv4's broadcast address is ever given.
        let size = if net.addr().is_ipv4() { all - 2 } else { all - 1 };
        let first = successor(net.network(), 1).unwrap_or_else(|| net.network());
        Ok(Self { net, first, size, band: band(all, 16, 256) })
    }

    /// Returns the family of the range.
    pub const fn family(&self) -> Family {
        match self.net {
            IpNet::V4(_) => Family::V4,
            IpNet::V6(_) => Family::V6,
        }
    }

    /// Returns the range as a prefix.
    pub const fn net(&self) -> IpNet {
        self.net
    }

    /// Returns the first address of the range, which `default/kubernetes` gets.
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// Reports whether an address can be given.
    pub fn contains(&self, address: IpAddr) -> bool {
        let is_broadcast = |net: IpNet| address.is_ipv4() && address == net.broadcast();
        self.net.contains(&address) && address != self.net.network() && !is_broadcast(self.net)
    }

    /// Returns a random free address: from the upper band, and from the lower one if that is full.
    pub fn free(&self, dice: &mut Dice<'_>, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let at = |offset: u64| successor(self.first, offset.into());
        let bands = [(self.band, self.size - self.band), (0, self.band)];
        bands.into_iter().filter(|it| it.1 > 0).find_map(|(start, length)| {
            let chosen = dice(length);
            let offsets = (chosen..length).chain(0..chosen);
            offsets.filter_map(|it| at(start + it)).find(|it| !is_taken(*it))
        })
    }
}

/// A range of node ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl Default for PortRange {
    fn default() -> Self {
        Self { first: 30_000, last: 32_767 }
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl std::str::FromStr for PortRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let ends = text.split_once('-').and_then(|(first, last)| {
            Some(Self { first: first.parse().ok()?, last: last.parse().ok()? })
        });
        ends.filter(|it| 0 < it.first && it.first <= it.last)
            .ok_or_else(|| RangeError::Ports(text.to_owned()))
    }
}

impl PortRange {
    /// Reports whether a port is in the range.
    pub fn contains(&self, port: i32) -> bool {
        (i32::from(self.first)..=i32::from(self.last)).contains(&port)
    }

    /// Returns a random free port: from the upper band, and from the lower one if that is full.
    pub fn free(&self, dice: &mut Dice<'_>, is_taken: impl Fn(u16) -> bool) -> Option<u16> {
        let size = u64::from(self.last - self.first) + 1;
        let band = band(size, 32, 128);
        // The lower band is kept for ports and addresses that users write themselves, as in upstream.
        let bands = [(band, size - band), (0, band)];
        bands.into_iter().filter(|it| it.1 > 0).find_map(|(start, length)| {
            let chosen = dice(length);
            let offsets = (chosen..length).chain(0..chosen);
            let ports = offsets.filter_map(|it| u16::try_from(start + it).ok());
            ports.map(|it| self.first + it).find(|it| !is_taken(*it))
        })
    }
}

/// All ranges of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    first: AddressRange,
    second: Option<AddressRange>,
    /// Range of node ports and health check ports.
    pub ports: PortRange,
}

impl Ranges {
    /// Takes one prefix, or two of different families.
    pub fn new(nets: &[IpNet], ports: PortRange) -> Result<Self, RangeError> {
        let (first, second) = match nets {
            [first] => (AddressRange::new(*first)?, None),
            [first, second] => (AddressRange::new(*first)?, Some(AddressRange::new(*second)?)),
            _ => return Err(RangeError::Families),
        };
        if second.is_some_and(|it| it.family() == first.family()) {
            return Err(RangeError::Families);
        }
        Ok(Self { first, second, ports })
    }

    /// Returns the range for Services that name no family.
    pub const fn first(&self) -> AddressRange {
        self.first
    }

    /// Returns the range of a family, if there is one.
    pub fn of(&self, family: Family) -> Option<AddressRange> {
        self.all().find(|it| it.family() == family)
    }

    /// Returns all ranges, the default one first.
    pub fn all(&self) -> impl Iterator<Item = AddressRange> {
        [Some(self.first), self.second].into_iter().flatten()
    }

    /// Reports whether there is a range of each family.
    pub const fn is_dual(&self) -> bool {
        self.second.is_some()
    }
}

impl Default for Ranges {
    fn default() -> Self {
        let net = IpNet::new_assert(Ipv4Addr::new(10, 96, 0, 0).into(), 16);
        let first = AddressRange {
            net,
            first: Ipv4Addr::new(10, 96, 0, 1).into(),
            size: 65_534,
            band: 256,
        };
        Self { first, second: None, ports: PortRange::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn range(net: &str) -> AddressRange {
        AddressRange::new(net.parse().unwrap()).unwrap()
    }

    #[test]
    fn statement_56_sizes_of_ranges() {
        let of = |net: &str| AddressRange::new(net.parse().unwrap()).err();
        for net in ["10.0.0.0/12", "10.0.0.0/29", "fd00::/64", "fd00::/125"] {
            assert_eq!(of(net), None, "{net}");
        }
        for net in ["10.0.0.0/11", "10.0.0.0/30", "fd00::/63", "fd00::/126", "10.0.0.1/16"] {
            assert_ne!(of(net), None, "{net}");
        }
        let nets = |nets: &[&str]| -> Result<Ranges, RangeError> {
            let nets: Vec<IpNet> = nets.iter().map(|it| it.parse().unwrap()).collect();
            Ranges::new(&nets, PortRange::default())
        };
        assert!(nets(&["10.0.0.0/16", "fd00::/112"]).unwrap().is_dual());
        assert_eq!(nets(&["10.0.0.0/16", "10.1.0.0/16"]), Err(RangeError::Families));
        assert_eq!(nets(&[]), Err(RangeError::Families));
    }

    #[test]
    fn statement_57_edges_are_never_given() {
        let (v4, v6) = (range("10.96.0.0/16"), range("fd00::/112"));
        let cases = [
            (v4, "10.96.0.0", false),
            (v4, "10.96.255.255", false),
            (v4, "10.96.255.254", true),
            (v6, "fd00::", false),
            (v6, "fd00::ffff", true),
        ];
        for (range, address, expected) in cases {
            assert_eq!(range.contains(address.parse().unwrap()), expected, "{address}");
        }
        let mut last = |most: u64| most - 1;
        assert_eq!(v6.free(&mut last, |_| false), Some("fd00::ffff".parse().unwrap()));
        assert_eq!(v4.free(&mut last, |_| false), Some("10.96.255.254".parse().unwrap()));
    }

    #[test]
    fn statement_59_the_upper_band_goes_first() {
        let range = range("10.0.0.0/24");
        let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
        for turn in 0..254 {
            let address = range.free(&mut |most| most / 2, |it| taken.contains(&it)).unwrap();
            let IpAddr::V4(v4) = address else { panic!("{address}") };
            assert_eq!(v4.octets()[3] > 16, turn < 238, "{turn}: {address}");
            assert!(taken.insert(address) && range.contains(address));
        }
        assert_eq!(range.free(&mut |_| 0, |it| taken.contains(&it)), None, "statement 61: full");
        assert_eq!(band(16, 16, 256), 0, "small ranges have no bands");
        assert_eq!((band(1 << 16, 16, 256), band(64, 16, 256)), (256, 16));
    }

    #[test]
    fn statement_69_ports_have_bands_too() {
        let range = PortRange::default();
        assert_eq!(range.free(&mut |_| 0, |_| false), Some(30_086), "2768 / 32 = 86");
        assert_eq!(range.free(&mut |_| 0, |it| it >= 30_086), Some(30_000));
        assert_eq!(range.free(&mut |_| 0, |_| true), None, "statement 75: full");
        assert_eq!("1-2".parse::<PortRange>().unwrap().to_string(), "1-2");
        for wrong in ["", "2-1", "0-5", "1-70000", "30000"] {
            assert!(wrong.parse::<PortRange>().is_err(), "{wrong}");
        }
    }
}
