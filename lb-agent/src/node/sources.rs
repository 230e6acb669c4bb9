//! The source addresses that a masqueraded packet may get at an interface (contract 3.10).

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::Device;

use super::identity::Primary;
use super::view::{Address, InterfaceAddresses, Link, NetnsView};

/// Returns the source of each family for interfaces without a global address: the node's primary address if an
/// interface has it, else a global address of another interface.
///
/// The primary address may be missing: the Node object has an earlier one, or `bindAddress` has moved to another node.
pub(super) fn unnumbered(view: &NetnsView, primary: Primary) -> Primary {
    let of = |v4: bool| {
        let own = || view.addresses.iter().filter(|own| own.ip.is_ipv4() == v4);
        let node = primary.of(v4).filter(|ip| own().any(|own| own.ip == *ip));
        let others = || own().filter(|own| is_usable(own) && own.is_global);
        // The kernel, too, takes one of another interface (`inet_select_addr`, `ipv6_dev_get_saddr`).
        node.or_else(|| others().min_by_key(|own| own.index).map(|own| own.ip))
    };
    Primary { v4: of(true), v6: of(false) }
}

/// Finds the source addresses of an interface, in a view of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceAddresses<'a> {
    pub(super) link: &'a Link,
    pub(super) view: &'a NetnsView,
    pub(super) addresses: &'a InterfaceAddresses<'a>,
    /// The result of [`unnumbered`].
    pub(super) unnumbered: Primary,
}

impl<'a> SourceAddresses<'a> {
    /// Returns the default source of a family: a global address of the interface or of its bridge, else that of
    /// unnumbered interfaces, else any address of the interface.
    pub(super) fn first(self, v4: bool) -> Ip {
        let of = |index| self.usable(index).filter(|own| own.ip.is_ipv4() == v4);
        let own = || of(self.link.index);
        let mut all = own().chain(self.link.controller.into_iter().flat_map(of));
        // The kernel, too, prefers an address of the outgoing interface.
        let global = all.find(|own| own.is_global).map(|own| own.ip);
        let any = || own().next().map(|own| own.ip);
        global.or_else(|| self.unnumbered.of(v4)).or_else(any).map_or(Ip::UNSPECIFIED, Ip::from)
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
        self.addresses.on(index).filter(|own| is_usable(own))
    }
}

const fn is_usable(own: &Address) -> bool {
    own.is_preferred && !own.ip.is_loopback()
}
