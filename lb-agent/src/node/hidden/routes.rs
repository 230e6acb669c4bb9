//! The routes of a pod: decides whether the pod reaches a network through a certain interface.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};

/// A route in the main table of a pod. Other tables are for certain sources, which an unbound socket does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodRoute {
    pub(super) to: IpNet,
    pub(super) metric: u32,
    pub(super) devices: Vec<u32>,
}

/// The routes of a pod as seen from one of its interfaces: network, metric, and whether the route leads through it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) struct PodRoutes(Vec<(IpNet, u32, bool)>);

impl PodRoutes {
    pub(super) fn by(device: u32, routes: &[PodRoute]) -> Self {
        let seen = |route: &PodRoute| (route.to, route.metric, route.devices.contains(&device));
        Self(routes.iter().map(seen).collect())
    }

    /// Reports whether packets to a network, or to a part of it, leave through the interface.
    pub(super) fn lead_to(&self, network: &IpNet) -> bool {
        // The kernel chooses the longest prefix, then the lowest metric; a longer route to a part of the network wins
        // for that part.
        let around = self.0.iter().filter(|(to, ..)| to.contains(network));
        let chosen = around.max_by_key(|(to, metric, _)| (to.prefix_len(), Reverse(*metric)));
        let is_part = |(to, _, is_its): &(IpNet, u32, bool)| *is_its && network.contains(to);
        chosen.is_some_and(|(_, _, is_its)| *is_its) || self.0.iter().any(is_part)
    }
}

/// Parses a unicast route of the main table; `None` for others.
pub(super) fn route(message: &RouteMessage) -> Option<PodRoute> {
    let header = &message.header;
    if header.table != RouteHeader::RT_TABLE_MAIN || header.kind != RouteType::Unicast {
        return None;
    }
    // A default route has no destination attribute.
    let mut ip = if header.address_family == AddressFamily::Inet6 {
        IpAddr::from(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::from(Ipv4Addr::UNSPECIFIED)
    };
    let (mut metric, mut devices) = (0, Vec::new());
    for attribute in &message.attributes {
        if let RouteAttribute::Destination(RouteAddress::Inet(to)) = attribute {
            ip = (*to).into();
        } else if let RouteAttribute::Destination(RouteAddress::Inet6(to)) = attribute {
            ip = (*to).into();
        } else if let RouteAttribute::Priority(number) = attribute {
            metric = *number;
        } else if let RouteAttribute::Oif(device) = attribute {
            devices.push(*device);
        // A route with several next hops has no `RTA_OIF` of its own.
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            devices.extend(hops.iter().map(|hop| hop.interface_index));
        }
    }
    let to = IpNet::new(ip, header.destination_prefix_length).ok()?;
    Some(PodRoute { to, metric, devices })
}
