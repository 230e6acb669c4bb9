//! What messages of netlink say about links, addresses and routes.

use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};

use super::{Address, Head, Link, LinkKind};

/// Devices that a route leads to, if it is a default route.
pub(in crate::node) fn default_route(message: &RouteMessage) -> Vec<u32> {
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

pub(super) fn link(message: &LinkMessage) -> Link {
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

pub(super) fn address(message: &AddressMessage) -> Option<Address> {
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
