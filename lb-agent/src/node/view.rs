//! Links, addresses and routes of one network namespace, as netlink tells them.

mod message;

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;

use self::message::{address, link};
use super::hidden::device::Hidden;
use super::ways::Ways;

/// The kind of device that a link is, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// One end of a pair, its other one with a pod as a rule: veth, or netkit with Ethernet's headers.
    Veth,
    /// A netkit without them.
    Netkit,
    Bridge,
    /// vxlan, geneve, wireguard, ipip, gre and their like.
    Tunnel,
    /// macvlan, ipvlan and their taps, and VLANs: over another device.
    Over,
    /// A bond or a team, whose ports carry its packets.
    Bond,
    /// `lo`.
    Loopback,
    /// Anything else.
    #[default]
    Other,
}

/// The header that packets begin with at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// The header of Ethernet.
    #[default]
    Ethernet,
    /// The header of IP: a tunnel, or a line between two.
    Ip,
    /// Another: nothing that the programs could read.
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    pub name: String,
    pub kind: LinkKind,
    /// The header that its packets begin with.
    pub head: Head,
    /// Administratively up.
    pub is_up: bool,
    /// The device it is a port of.
    pub controller: Option<u32>,
    /// The device at its other end or below it.
    pub peer: Option<u32>,
    /// That device is in another network namespace: the number by which ours knows that one.
    pub elsewhere: Option<i32>,
    /// Number of the XDP program on it, ours or another's; 0 for none.
    pub xdp: u32,
    /// Its link-layer address, where it has one as Ethernet does.
    pub hardware: Option<[u8; 6]>,
    /// It is of no kind that somebody can make (`IFLA_INFO_KIND`): a network card, or a virtual function of one.
    pub is_card: bool,
}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The device.
    pub index: u32,
    pub ip: IpAddr,
    /// Bits of its prefix; all of them where it has no network of its own.
    pub prefix: u8,
    /// Valid beyond the link: neither link-local nor host scope.
    pub is_global: bool,
    /// The kernel would choose it as a source: neither secondary nor deprecated nor tentative.
    pub is_preferred: bool,
}

/// One network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// By interface index.
    pub links: BTreeMap<u32, Link>,
    pub addresses: Vec<Address>,
    /// Devices that routes lead to.
    pub ways: Ways,
    /// Devices of pods over those of this namespace.
    pub hidden: Vec<Hidden>,
}

impl Address {
    /// Whether others are reached at the same link: it comes with a network.
    pub const fn has_network(&self) -> bool {
        self.prefix < if self.ip.is_ipv4() { 32 } else { 128 }
    }
}

impl View {
    /// The addresses of a device, in the order in which the kernel tells them.
    pub fn addresses_of(&self, index: u32) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(move |address| address.index == index)
    }

    /// The ports of a bridge.
    pub fn ports(&self, bridge: u32) -> impl Iterator<Item = &Link> {
        self.links.values().filter(move |link| link.controller == Some(bridge))
    }

    /// The bridge that a device is a port of.
    pub fn bridge_of(&self, link: &Link) -> Option<&Link> {
        let controller = self.links.get(&link.controller?)?;
        (controller.kind == LinkKind::Bridge).then_some(controller)
    }

    /// A link is new or another.
    pub fn put_link(&mut self, message: &LinkMessage) {
        let link = link(message);
        drop(self.links.insert(link.index, link));
    }

    /// A link is gone, with its addresses.
    pub fn remove_link(&mut self, message: &LinkMessage) {
        let index = message.header.index;
        drop(self.links.remove(&index));
        self.addresses.retain(|address| address.index != index);
        self.ways.forget(index);
    }

    /// An address is new or another.
    pub fn put_address(&mut self, message: &AddressMessage) {
        let Some(new) = address(message) else { return };
        let same = |old: &&mut Address| (old.index, old.ip) == (new.index, new.ip);
        match self.addresses.iter_mut().find(same) {
            Some(old) => *old = new,
            None => self.addresses.push(new),
        }
    }

    /// An address is gone.
    pub fn remove_address(&mut self, message: &AddressMessage) {
        if let Some(gone) = address(message) {
            self.addresses.retain(|old| (old.index, old.ip) != (gone.index, gone.ip));
        }
    }
}
