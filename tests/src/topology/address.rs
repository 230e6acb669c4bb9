//! The address plan of every topology: the addresses of each member, in both families, as pure functions.
//!
//! Both families use the same digits, so that a capture is easy to read: pod 11 of node 2 is 10.244.2.11 and
//! `fd00:244:2::11`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};

/// The prefixes of the pods of all nodes, IPv4 and IPv6.
pub const POD_RANGES: [&str; 2] = ["10.244.0.0/16", "fd00:244::/32"];
/// The same prefixes in the format of `clusterCIDR`.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:244::/32";

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The name that `EndpointSlice.addressType` and `Service.spec.ipFamilies` use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The addresses of one member or Service, one for each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Addresses {
    /// Parses both addresses.
    pub fn parse(v4: &str, v6: &str) -> Result<Self> {
        Ok(Self {
            v4: v4.parse().with_context(|| format!("IPv4 address {v4}"))?,
            v6: v6.parse().with_context(|| format!("IPv6 address {v6}"))?,
        })
    }

    /// The address of a family.
    pub const fn of(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => IpAddr::V4(self.v4),
            Family::V6 => IpAddr::V6(self.v6),
        }
    }

    /// The address of a family, with a port.
    pub const fn socket(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.of(family), port)
    }

    /// Both addresses, IPv4 first.
    pub const fn both(&self) -> [IpAddr; 2] {
        [IpAddr::V4(self.v4), IpAddr::V6(self.v6)]
    }
}

/// One of the two segments outside the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// 192.168.50.0/24 and `fd00:50::/64`: interface `eth0` of nodes and client.
    First,
    /// 192.168.60.0/24 and `fd00:60::/64`: interface `eth1`, in topologies with two segments.
    Second,
}

impl Segment {
    const fn number(self) -> u8 {
        match self {
            Self::First => 50,
            Self::Second => 60,
        }
    }

    /// The interface of a member on this segment.
    pub const fn device(self) -> &'static str {
        match self {
            Self::First => "eth0",
            Self::Second => "eth1",
        }
    }

    /// The bridge of the fabric that forms this segment.
    pub(crate) const fn bridge(self) -> &'static str {
        match self {
            Self::First => "segment1",
            Self::Second => "segment2",
        }
    }

    /// The addresses of the default gateway of all members on this segment, which are those of the fabric.
    pub fn gateway(self) -> Result<Addresses> {
        self.host(GATEWAY)
    }

    /// The addresses of host `number` on this segment.
    pub fn host(self, number: u8) -> Result<Addresses> {
        let segment = self.number();
        Addresses::parse(
            &format!("192.168.{segment}.{number}"),
            &format!("fd00:{segment}::{number}"),
        )
    }
}

/// The host number of the fabric on a segment, the default gateway of all members.
pub(crate) const GATEWAY: u8 = 1;
/// The host number of the external client on a segment.
pub(crate) const CLIENT: u8 = 100;

/// The host number on a segment of node `number`, counted from 1.
pub(crate) const fn node(number: u8) -> u8 {
    10 + number
}

/// The addresses of pod `index`, counted from 1, on node `node`, counted from 1.
pub(crate) fn pod(node: u8, index: u8) -> Result<Addresses> {
    let host = 10 + index;
    Addresses::parse(&format!("10.244.{node}.{host}"), &format!("fd00:244:{node}::{host}"))
}

/// The addresses of a node on its own pod bridge.
pub(crate) fn pod_gateway(node: u8) -> Result<Addresses> {
    Addresses::parse(&format!("10.244.{node}.1"), &format!("fd00:244:{node}::1"))
}

/// The pod ranges of a node, IPv4 and IPv6.
pub(crate) fn pod_ranges(node: u8) -> [String; 2] {
    [format!("10.244.{node}.0/24"), format!("fd00:244:{node}::/64")]
}

/// The addresses of a node on the overlay.
pub(crate) fn overlay(node: u8) -> Result<Addresses> {
    Addresses::parse(&format!("10.245.0.{node}"), &format!("fd00:245::{node}"))
}

/// The `ClusterIP`s with number `index`.
pub fn cluster_ip(index: u8) -> Result<Addresses> {
    Addresses::parse(&format!("10.96.0.{index}"), &format!("fd00:10:96::{index}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_share_their_digits() {
        let pod = pod(2, 1).unwrap();
        assert_eq!(pod.of(Family::V4).to_string(), "10.244.2.11");
        assert_eq!(pod.socket(Family::V6, 80).to_string(), "[fd00:244:2::11]:80");
    }
}
