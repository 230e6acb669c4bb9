//! The settings that follow from Services: where frontends may be. Their only author is `reconcile/ranges` in the
//! agent.

use super::{AddressFilter, Prefix};
use crate::addr::{Ip, Port};
use crate::layout::plain;

/// Number of service ranges that the data path compares.
pub const RANGES: usize = 8;

/// Filters that recognise a packet for no Service without a lookup: each covers all frontends of its kind, and maybe
/// other addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRanges {
    /// Counts the frontends that were removed or now belong to another Service. A flow with this number need not look
    /// up its frontend; see [`crate::flow::Flow::frontends_epoch`].
    pub frontends_epoch: u32,
    /// Lowest `NodePort` in use; high < low means there is none.
    pub node_port_low: Port,
    /// Highest `NodePort` in use.
    pub node_port_high: Port,
    /// One prefix for each family, IPv4 first, around `ranges`: an address outside it is no ClusterIP. Read by
    /// [`Prefix::covers`].
    pub cluster_ip_cover: [Prefix; 2],
    /// Prefixes that hold the ClusterIPs.
    pub ranges: [Prefix; RANGES],
    /// Not 0: `ranges` are the cluster's `ServiceCIDR`s, and single ClusterIPs outside of them. A packet to an unused
    /// address inside is then dropped; otherwise it passes.
    pub known: u32,
    /// Zero.
    pub pad: u32,
    /// The external IPs and VIPs: addresses outside of `ranges` that have a frontend. The last field, so that those read
    /// for each packet share cache lines.
    pub vip_filter: AddressFilter,
}

plain!(ServiceRanges = 848 { frontends_epoch, node_port_low, node_port_high, cluster_ip_cover, ranges, known, pad,
    vip_filter });

impl Default for ServiceRanges {
    /// No frontend at all.
    fn default() -> Self {
        Self {
            frontends_epoch: 0,
            node_port_low: Port::new(u16::MAX),
            node_port_high: Port::NONE,
            cluster_ip_cover: [Prefix::NOTHING; 2],
            ranges: [Prefix::default(); RANGES],
            known: 0,
            pad: 0,
            vip_filter: AddressFilter::default(),
        }
    }
}

impl ServiceRanges {
    /// Whether an unused address of `ranges` is known to belong to no Service.
    #[inline(always)]
    pub const fn are_known(&self) -> bool {
        self.known != 0
    }

    /// Whether an address may be a ClusterIP. `v4`: the address is IPv4.
    #[inline(always)]
    pub const fn may_be_cluster_ip(&self, ip: &Ip, v4: bool) -> bool {
        let [cover4, cover6] = &self.cluster_ip_cover;
        let cover = if v4 { cover4 } else { cover6 };
        cover.covers(ip)
    }

    /// Whether an address lies in one of the service ranges.
    #[inline(always)]
    pub fn contain(&self, ip: &Ip) -> bool {
        self.ranges.iter().any(|range| range.contains(ip))
    }

    /// Whether an address outside of `ranges` may have a frontend: an external IP or a VIP.
    #[inline(always)]
    pub fn may_be_vip(&self, ip: &Ip) -> bool {
        self.vip_filter.may_hold(ip)
    }

    /// Whether a port lies between the lowest and the highest `NodePort` in use.
    #[inline(always)]
    pub const fn may_be_node_port(&self, port: Port) -> bool {
        let number = port.get();
        number >= self.node_port_low.get() && number <= self.node_port_high.get()
    }
}
