//! Links, addresses and routes of a network namespace, as netlink reports them.

mod message;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_common::addr::Ip;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;

use self::message::{address, link};
use super::hidden::device::Hidden;
use super::routed::RoutedInterfaces;

/// The kind of a link, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// One end of a pair whose other end is usually a pod's: veth, or netkit in mode l2.
    Veth,
    /// A netkit in mode l3, without Ethernet headers.
    Netkit,
    Bridge,
    /// vxlan, geneve, wireguard, ipip, gre and similar.
    Tunnel,
    /// macvlan, ipvlan, their taps, and VLANs: all are over another interface.
    Over,
    /// A bond or a team, whose ports carry its packets.
    Bond,
    /// Open vSwitch: its datapath (`ovs-system`), whose ports have it as their controller, or an internal port with
    /// addresses of the node (`br-int`, `antrea-gw0`).
    Switch,
    /// A tap, whose other end is a process: a virtual machine or a VPN.
    Tap,
    /// `lo`.
    Loopback,
    /// Any other kind, for example a physical or dummy interface.
    #[default]
    Other,
}

/// The header that packets at an interface begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// An Ethernet header, as loopback also has it.
    #[default]
    Ethernet,
    /// An IP header: a tunnel, or a point-to-point link.
    Ip,
    /// Another header, which the programs cannot parse.
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index in this network namespace.
    pub index: u32,
    pub name: String,
    pub kind: LinkKind,
    /// The header that packets begin with.
    pub head: Head,
    /// Whether the link is administratively up.
    pub is_up: bool,
    /// Whether nothing arrives by it although it is up: no cable is connected, or the other end is down.
    pub lacks_carrier: bool,
    /// The interface that this one is a port of (bridge, bond or VRF).
    pub controller: Option<u32>,
    /// The interface at its other end, or below it.
    pub peer: Option<u32>,
    /// Id of the network namespace of `peer`, if it is not the agent's own.
    pub elsewhere: Option<i32>,
    /// Id of the XDP program on it, of any owner; 0 for none.
    pub xdp: u32,
    /// Link-layer address, if it has one of six bytes.
    pub hardware: Option<[u8; 6]>,
    /// Distinguishes the link from an earlier one with the same index, which was removed.
    pub number: u64,
    /// Whether it has no `IFLA_INFO_KIND`, so was not created by software: a network card, or a virtual function of
    /// one.
    pub is_card: bool,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Index of the interface.
    pub index: u32,
    pub ip: IpAddr,
    /// Prefix length; that of a single address if no network belongs to it.
    pub prefix: u8,
    /// The other end of a point-to-point link, else the address itself (`IFA_ADDRESS`).
    pub peer: IpAddr,
    /// Whether the scope is global: neither link-local nor host.
    pub is_global: bool,
    /// Whether the kernel would select it as a source: neither secondary, nor deprecated, nor tentative.
    pub is_preferred: bool,
}

/// The state of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetnsView {
    /// Links by interface index.
    pub links: BTreeMap<u32, Link>,
    /// Addresses of all interfaces. Those of one interface, family and scope are in the order of their age.
    pub addresses: Vec<Address>,
    /// Interfaces that routes lead to.
    pub routed: RoutedInterfaces,
    /// Interfaces of pods that no program of this host serves.
    pub hidden: Vec<Hidden>,
    /// The number of links that appeared so far.
    pub appeared: u64,
}

/// The addresses of a view, sorted by interface once for a look at each of many.
#[derive(Debug)]
pub(super) struct InterfaceAddresses<'a>(Vec<&'a Address>);

impl<'a> InterfaceAddresses<'a> {
    pub(super) fn of(view: &'a NetnsView) -> Self {
        let mut sorted: Vec<&Address> = view.addresses.iter().collect();
        // A stable sort, so that those of one interface keep their order.
        sorted.sort_by_key(|own| own.index);
        Self(sorted)
    }

    /// Returns the addresses of an interface, of each family the oldest first.
    pub(super) fn on(&self, index: u32) -> impl Iterator<Item = &'a Address> {
        let first = self.0.partition_point(|own| own.index < index);
        let rest = self.0.get(first..).unwrap_or_default();
        rest.iter().copied().take_while(move |own| own.index == index)
    }
}

impl Link {
    /// Reports whether packets can arrive and leave.
    pub const fn works(&self) -> bool {
        self.is_up && !self.lacks_carrier
    }
}

impl Address {
    /// Reports whether a network on the link belongs to the address.
    pub const fn has_network(&self) -> bool {
        self.prefix < if self.ip.is_ipv4() { 32 } else { 128 }
    }

    /// Reports whether the address names the other end of the link.
    pub fn has_peer(&self) -> bool {
        self.peer != self.ip
    }

    /// Reports whether both are one address to the kernel. It keeps an IPv4 address once for each network
    /// (`__inet_insert_ifa` in `net/ipv4/devinet.c`), and an IPv6 address once.
    fn is_same(&self, other: &Self) -> bool {
        let is_one_network = (self.prefix, self.peer) == (other.prefix, other.peer);
        (self.index, self.ip) == (other.index, other.ip) && (self.ip.is_ipv6() || is_one_network)
    }
}

impl NetnsView {
    /// Returns the addresses on which a process may listen: not those of `kube-ipvs0`, where kube-proxy puts every
    /// `ClusterIP`.
    pub fn listening(&self) -> BTreeSet<Ip> {
        let is_left_over =
            |index: &u32| self.links.get(index).is_some_and(|link| link.name == "kube-ipvs0");
        let own = self.addresses.iter().filter(|own| !is_left_over(&own.index));
        own.map(|own| Ip::from(own.ip)).collect()
    }

    /// Returns the ports of a bridge.
    pub fn ports(&self, bridge: u32) -> impl Iterator<Item = &Link> {
        self.links.values().filter(move |link| link.controller == Some(bridge))
    }

    /// Returns the interface that another one is a port of.
    pub fn controller_of(&self, link: &Link) -> Option<&Link> {
        self.links.get(&link.controller?)
    }

    /// Returns the bridge that an interface is a port of.
    pub fn bridge_of(&self, link: &Link) -> Option<&Link> {
        self.controller_of(link).filter(|it| it.kind == LinkKind::Bridge)
    }

    /// Reports whether an interface is a port of Open vSwitch, which takes its packets before the stack routes them.
    pub fn is_port_of_switch(&self, link: &Link) -> bool {
        self.controller_of(link).is_some_and(|it| it.kind == LinkKind::Switch)
    }

    /// Adds or updates a link.
    pub fn put_link(&mut self, message: &LinkMessage) {
        let link = link(message);
        self.put(link);
    }

    /// Replaces all links and addresses by a list of them.
    pub fn replace(&mut self, listed: Self) {
        self.links.retain(|index, _| listed.links.contains_key(index));
        listed.links.into_values().for_each(|link| self.put(link));
        self.addresses = listed.addresses;
    }

    fn put(&mut self, mut link: Link) {
        let known = self.links.get(&link.index).map(|known| known.number);
        link.number = known.unwrap_or_else(|| {
            self.appeared += 1;
            self.appeared
        });
        drop(self.links.insert(link.index, link));
    }

    /// Removes a link with its addresses and routes.
    pub fn remove_link(&mut self, message: &LinkMessage) {
        let index = message.header.index;
        drop(self.links.remove(&index));
        self.addresses.retain(|address| address.index != index);
        self.routed.forget(index);
    }

    /// Puts the addresses of a list in the order in which events report them.
    ///
    /// The kernel lists IPv6 addresses of one scope newest first (`ipv6_link_dev_addr` in `net/ipv6/addrconf.c`). The
    /// first address of an interface would change with the next list.
    pub fn sort_listed(&mut self) {
        let listed = std::mem::take(&mut self.addresses).into_iter();
        let (v4, v6): (Vec<Address>, Vec<Address>) = listed.partition(|own| own.ip.is_ipv4());
        self.addresses = v4.into_iter().chain(v6.into_iter().rev()).collect();
    }

    /// Adds or updates an address.
    pub fn put_address(&mut self, message: &AddressMessage) {
        let Some(new) = address(message) else { return };
        match self.addresses.iter_mut().find(|old| old.is_same(&new)) {
            Some(old) => *old = new,
            None => self.addresses.push(new),
        }
    }

    /// Removes the address of an `RTM_DELADDR` message.
    pub fn remove_address(&mut self, message: &AddressMessage) {
        if let Some(gone) = address(message) {
            self.addresses.retain(|old| !old.is_same(&gone));
        }
    }
}

#[cfg(test)]
mod tests;
