//! Parses netlink messages about links and addresses.

use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoNetkit, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkLayerType,
    LinkMessage, LinkXdp, NetkitMode,
};

use super::{Address, Head, Link, LinkKind};

pub(super) fn link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        head: head(&message.header),
        is_up: flags.contains(LinkFlags::Up),
        lacks_carrier: !flags.contains(LinkFlags::LowerUp),
        kind: if flags.contains(LinkFlags::Loopback) {
            LinkKind::Loopback
        } else {
            LinkKind::Other
        },
        is_card: !flags.contains(LinkFlags::Loopback),
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
        } else if let LinkAttribute::LinkNetNsId(number) = attribute {
            link.elsewhere = Some(*number);
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
            // The kernel sets `IFLA_XDP_PROG_ID` only if exactly one mode has a program (`rtnl_xdp_fill` in
            // net/core/rtnetlink.c).
            link.xdp = numbers.fold(0, |_, number| number);
        } else if let LinkAttribute::LinkInfo(infos) = attribute {
            for info in infos {
                if let LinkInfo::Kind(kind) = info {
                    // The kernel reports a kind only for interfaces that software created.
                    (link.kind, link.is_card) = (kind_of(kind), false);
                } else if let LinkInfo::Data(InfoData::Netkit(all)) = info
                    && all.iter().any(|one| matches!(one, InfoNetkit::Mode(NetkitMode::L3)))
                {
                    link.kind = LinkKind::Netkit;
                }
            }
        }
    }
    // A tun or a PPP link has another kind, but leads elsewhere as a tunnel does.
    if link.head == Head::Ip {
        link.kind = LinkKind::Tunnel;
    }
    link
}

/// Returns the header of packets by link type, as the kernel's `dev_is_mac_header_xmit` (`linux/if_arp.h`) does. A gre
/// tunnel with many remotes has a header of its own, that of the outer packet.
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

#[expect(clippy::wildcard_enum_match_arm, reason = "fifty kinds of device, eight matter")]
fn kind_of(kind: &InfoKind) -> LinkKind {
    match kind {
        InfoKind::Veth | InfoKind::Netkit => LinkKind::Veth,
        InfoKind::Bridge => LinkKind::Bridge,
        InfoKind::MacVlan
        | InfoKind::MacVtap
        | InfoKind::IpVlan
        | InfoKind::IpVtap
        | InfoKind::Vlan => LinkKind::Over,
        InfoKind::Bond | InfoKind::Team => LinkKind::Bond,
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
        // A tun has the same kind; its packets have no Ethernet header.
        InfoKind::Tun => LinkKind::Tap,
        // `internal_dev_link_ops` in net/openvswitch/vport-internal_dev.c.
        InfoKind::Other(name) if name == "openvswitch" => LinkKind::Switch,
        _ => LinkKind::Other,
    }
}

pub(super) fn address(message: &AddressMessage) -> Option<Address> {
    let (mut local, mut other) = (None, None);
    // The header has only the low 8 flags; the attribute, where the kernel sends it, has all.
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    for attribute in &message.attributes {
        if let AddressAttribute::Local(address) = attribute {
            local = Some(*address);
        } else if let AddressAttribute::Address(address) = attribute {
            // On a point-to-point interface this is the other end. IPv6 has no other attribute without one.
            other = Some(*address);
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
    let ip = local.or(other)?;
    Some(Address {
        index: message.header.index,
        ip,
        prefix: message.header.prefix_len,
        peer: other.unwrap_or(ip),
        is_global: message.header.scope == AddressScope::Universe,
        is_preferred: !flags.intersects(unfit),
    })
}
