//! The addresses that a masqueraded packet may get when it leaves by an interface.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::Device;

use super::identity::Primary;
use super::view::{Address, Link, View};

/// The addresses of one device for one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    pub(super) link: &'a Link,
    pub(super) view: &'a View,
    pub(super) primary: Primary,
}

impl<'a> Sources<'a> {
    /// The first of a family: the device's own global one or that of its bridge, the node's, its own of any scope.
    pub(super) fn first(self, v4: bool) -> Ip {
        let is_family = |ip: &IpAddr| ip.is_ipv4() == v4;
        let of = |index| self.usable(index).filter(|own| is_family(&own.ip));
        let own = || of(self.link.index);
        let mut all = own().chain(self.link.controller.into_iter().flat_map(of));
        let global = all.find(|own| own.is_global).map(|own| own.ip);
        let node = if v4 { self.primary.v4 } else { self.primary.v6 }.filter(is_family);
        let any = || own().next().map(|own| own.ip);
        global.or(node).or_else(any).map_or(Ip::UNSPECIFIED, Ip::from)
    }

    /// In which families the kernel's route decides, as flags of
    /// [`Device`]: where there are addresses of several networks.
    pub(super) fn flags(self) -> u32 {
        let flag = |v4, flag| if self.has_several(v4) { flag } else { 0 };
        flag(true, Device::SOURCES4) | flag(false, Device::SOURCES6)
    }

    /// All that a route may name there, of families in which there is one to choose.
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

    /// The global addresses of what packets are routed to: the device, or the bridge that it is a port of.
    fn global(self) -> impl Iterator<Item = &'a Address> {
        let routed = self.view.bridge_of(self.link).unwrap_or(self.link);
        self.usable(routed.index).filter(|own| own.is_global)
    }

    fn usable(self, index: u32) -> impl Iterator<Item = &'a Address> {
        let usable = |own: &&Address| own.is_preferred && !own.ip.is_loopback();
        self.view.addresses_of(index).filter(usable)
    }
}
