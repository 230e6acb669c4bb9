//! The source addresses that a masqueraded packet may get at an interface (contract 3.10).

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::Device;

use super::identity::Primary;
use super::view::{Address, Link, NetnsView};

/// Finds the source addresses of an interface, in a view of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceAddresses<'a> {
    pub(super) link: &'a Link,
    pub(super) view: &'a NetnsView,
    pub(super) primary: Primary,
}

impl<'a> SourceAddresses<'a> {
    /// Returns the default source of a family: a global address of the interface or of its bridge, else the node's
    /// primary address, else a global address of another interface, as the kernel takes one (`inet_select_addr`,
    /// `ipv6_dev_get_saddr`), else any address of the interface.
    pub(super) fn first(self, v4: bool) -> Ip {
        let is_family = |ip: &IpAddr| ip.is_ipv4() == v4;
        let of = |index| self.usable(index).filter(|own| is_family(&own.ip));
        let own = || of(self.link.index);
        let mut all = own().chain(self.link.controller.into_iter().flat_map(of));
        // The kernel, too, prefers an address of the outgoing interface.
        let global = all.find(|own| own.is_global).map(|own| own.ip);
        let node = self.primary.of(v4).filter(is_family);
        let others = || {
            let others = self.view.addresses.iter().filter(|own| is_usable(own) && own.is_global);
            others.filter(|own| is_family(&own.ip)).min_by_key(|own| own.index).map(|own| own.ip)
        };
        let any = || own().next().map(|own| own.ip);
        global.or(node).or_else(others).or_else(any).map_or(Ip::UNSPECIFIED, Ip::from)
    }

    /// Returns flags of [`Device`] for the families in which the kernel's route selects the source: those with
    /// addresses in several networks.
    pub(super) fn flags(self) -> u32 {
        let flag = |v4, flag| if self.has_several(v4) { flag } else { 0 };
        flag(true, Device::SOURCES4) | flag(false, Device::SOURCES6)
    }

    /// Returns all addresses that a route may select as the source, for families with a choice.
    pub(super) fn chosen(self) -> Vec<Ip> {
        let families = [true, false].map(|v4| (v4, self.has_several(v4)));
        let is_chosen = |ip: &IpAddr| families.contains(&(ip.is_ipv4(), true));
        let mut all: Vec<Ip> =
            self.global().map(|own| own.ip).filter(is_chosen).map(Ip::from).collect();
        all.sort();
        all
    }

    fn has_several(self, v4: bool) -> bool {
        let of_family = self.global().filter(|own| own.ip.is_ipv4() == v4);
        let network = |own: &Address| IpNet::new(own.ip, own.prefix).ok().map(|net| net.trunc());
        of_family.map(network).collect::<BTreeSet<_>>().len() > 1
    }

    /// Returns the global addresses of the interface that routes name: `link`, or the bridge that it is a port of.
    fn global(self) -> impl Iterator<Item = &'a Address> {
        let routed = self.view.bridge_of(self.link).unwrap_or(self.link);
        self.usable(routed.index).filter(|own| own.is_global)
    }

    fn usable(self, index: u32) -> impl Iterator<Item = &'a Address> {
        self.view.addresses_of(index).filter(|own| is_usable(own))
    }
}

const fn is_usable(own: &Address) -> bool {
    own.is_preferred && !own.ip.is_loopback()
}
