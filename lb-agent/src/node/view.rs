//! Links, addresses and default routes of one network namespace, as netlink tells them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};

/// What kind of device a link is, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// One end of a pair.
    Veth,
    /// A bridge.
    Bridge,
    /// vxlan, geneve, wireguard, ipip, gre and their like.
    Tunnel,
    /// `lo`.
    Loopback,
    /// Anything else.
    #[default]
    Other,
}

/// What packets begin with at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// The header of Ethernet.
    #[default]
    Ethernet,
    /// That of IP: a tunnel, or a line between two.
    Ip,
    /// Another: nothing that the programs could read.
    Other,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: LinkKind,
    /// What its packets begin with.
    pub head: Head,
    /// Administratively up.
    pub is_up: bool,
    /// The device it is a port of.
    pub controller: Option<u32>,
    /// The device at its other end or below it.
    pub peer: Option<u32>,
    /// That device is in another network namespace.
    pub peer_is_elsewhere: bool,
    /// Number of the XDP program on it, ours or another's; 0 for none.
    pub xdp: u32,
    /// Its link-layer address, where it has one as Ethernet does.
    pub hardware: Option<[u8; 6]>,
}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The device.
    pub index: u32,
    /// The address.
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
    /// Every address.
    pub addresses: Vec<Address>,
    /// Devices that default routes lead to.
    pub default_routes: BTreeSet<u32>,
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
        let _: bool = self.default_routes.remove(&index);
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

/// Devices that a route leads to, if it is a default route.
pub(super) fn default_route(message: &RouteMessage) -> Vec<u32> {
    if message.header.destination_prefix_length != 0 || message.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let mut devices = Vec::new();
    for attribute in &message.attributes {
        if let RouteAttribute::Oif(index) = attribute {
            devices.push(*index);
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            devices.extend(hops.iter().map(|hop| hop.interface_index));
        }
    }
    devices
}

fn link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        head: head(&message.header),
        is_up: flags.contains(LinkFlags::Up),
        kind: if flags.contains(LinkFlags::Loopback) {
            LinkKind::Loopback
        } else {
            LinkKind::Other
        },
        ..Link::default()
    };
    for attribute in &message.attributes {
        if let LinkAttribute::IfName(name) = attribute {
            link.name.clone_from(name);
        } else if let LinkAttribute::Address(address) = attribute {
            link.hardware = address.as_slice().try_into().ok();
        } else if let LinkAttribute::Controller(index) = attribute {
            link.controller = Some(*index);
        } else if let LinkAttribute::Link(index) = attribute {
            link.peer = Some(*index);
        } else if let LinkAttribute::LinkNetNsId(_) = attribute {
            link.peer_is_elsewhere = true;
        } else if let LinkAttribute::Xdp(all) = attribute {
            let numbers = all.iter().filter_map(|one| match one {
                LinkXdp::ProgId(number) => Some(*number),
                LinkXdp::Fd(_)
                | LinkXdp::Attached(_)
                | LinkXdp::Flags(_)
                | LinkXdp::DrvProgId(_)
                | LinkXdp::SkbProgId(_)
                | LinkXdp::HwProgId(_)
                | LinkXdp::ExpectedFd(_)
                | LinkXdp::Other(_)
                | _ => None,
            });
            link.xdp = numbers.fold(0, |_, number| number);
        } else if let LinkAttribute::LinkInfo(infos) = attribute {
            let kinds = infos.iter().filter_map(|info| match info {
                LinkInfo::Kind(kind) => Some(kind_of(kind)),
                LinkInfo::Xstats(_)
                | LinkInfo::Data(_)
                | LinkInfo::PortKind(_)
                | LinkInfo::PortData(_)
                | LinkInfo::Other(_)
                | _ => None,
            });
            link.kind = kinds.fold(link.kind, |_, kind| kind);
        }
    }
    if link.head == Head::Ip {
        link.kind = LinkKind::Tunnel;
    }
    link
}

/// As the kernel's `dev_is_mac_header_xmit` tells them apart. A gre with many other ends has a header of its own: that of
/// the outer packet.
#[expect(clippy::wildcard_enum_match_arm, reason = "sixty types of device, ten matter")]
const fn head(header: &LinkHeader) -> Head {
    match header.link_layer_type {
        LinkLayerType::Ether | LinkLayerType::Loopback => Head::Ethernet,
        LinkLayerType::None
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ppp
        | LinkLayerType::Rawip => Head::Ip,
        LinkLayerType::Ipgre | LinkLayerType::Ip6gre
            if header.flags.contains(LinkFlags::Pointopoint) =>
        {
            Head::Ip
        }
        _ => Head::Other,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "fifty kinds of device, three matter")]
const fn kind_of(kind: &InfoKind) -> LinkKind {
    match kind {
        InfoKind::Veth => LinkKind::Veth,
        InfoKind::Bridge => LinkKind::Bridge,
        InfoKind::Vxlan
        | InfoKind::Geneve
        | InfoKind::Wireguard
        | InfoKind::IpIp
        | InfoKind::Ip6Tnl
        | InfoKind::SitTun
        | InfoKind::GreTun
        | InfoKind::GreTun6
        | InfoKind::GreTap
        | InfoKind::GreTap6 => LinkKind::Tunnel,
        _ => LinkKind::Other,
    }
}

fn address(message: &AddressMessage) -> Option<Address> {
    let mut ip = None;
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    for attribute in &message.attributes {
        if let AddressAttribute::Local(local) = attribute {
            // A point-to-point device: `Address` is the other end.
            ip = Some(*local);
        } else if let AddressAttribute::Address(address) = attribute {
            ip = ip.or(Some(*address));
        } else if let AddressAttribute::Flags(all) = attribute {
            flags = *all;
        }
    }
    let unfit = AddressFlags::Secondary
        | AddressFlags::Deprecated
        | AddressFlags::Tentative
        | AddressFlags::Dadfailed;
    debug_assert_eq!(
        AddressHeaderFlags::Secondary.bits(),
        1,
        "the header's flags are the low ones"
    );
    Some(Address {
        index: message.header.index,
        ip: ip?,
        prefix: message.header.prefix_len,
        is_global: message.header.scope == AddressScope::Universe,
        is_preferred: !flags.intersects(unfit),
    })
}
