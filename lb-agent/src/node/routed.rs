//! The interfaces that routes lead to: default routes, routes through a gateway, and routes to a network on the link. A
//! route may name a nexthop object instead of an interface.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use futures::stream::TryStreamExt as _;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::nexthops::{self, Hop};

/// Interfaces that routes lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutedInterfaces {
    /// Interfaces with a default route.
    pub default: BTreeSet<u32>,
    /// Interfaces with a route through a gateway, to any destination.
    pub gateways: BTreeSet<u32>,
    /// Interfaces with a configured route to a network without a gateway. The kernel's own routes are known by the
    /// address.
    pub networks: BTreeSet<u32>,
}

/// The consequence of a changed route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asks {
    /// No change: the route adds no external interface.
    Nothing,
    /// All routes must be listed.
    List,
}

/// The next hops of a route, and the kind of its destination.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct RouteHops {
    is_default: bool,
    is_to_network: bool,
    hops: Vec<Hop>,
    /// Id of the nexthop object that has the hops.
    object: Option<u32>,
}

impl RoutedInterfaces {
    /// Removes an interface that is gone, with its routes.
    pub fn forget(&mut self, index: u32) {
        for devices in [&mut self.default, &mut self.gateways, &mut self.networks] {
            devices.remove(&index);
        }
    }

    /// Lists all routes of the kernel.
    pub(super) async fn list(handle: &Handle) -> Result<Self, rtnetlink::Error> {
        let (mut routed, mut of_objects) = (Self::default(), BTreeSet::new());
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        for question in [v4, v6] {
            let mut routes = handle.route().get(question).execute();
            while let Some(message) = routes.try_next().await? {
                let Some(route) = route(&message) else { continue };
                // A route with a nexthop object names no interface itself, unless the kernel adds the object's hops.
                match route.object.filter(|_| route.hops.is_empty()) {
                    None => routed.add(&route),
                    // Many routes have one object.
                    Some(object) => drop(of_objects.insert((object, route))),
                }
            }
        }
        if !of_objects.is_empty() {
            // Routes by nexthop objects are rare; those whose object cannot be read lead nowhere.
            let objects = tokio::task::spawn_blocking(nexthops::list).await;
            let objects: BTreeMap<u32, Vec<Hop>> =
                objects.ok().and_then(Result::ok).unwrap_or_default();
            for (object, mut route) in of_objects {
                route.hops = objects.get(&object).cloned().unwrap_or_default();
                routed.add(&route);
            }
        }
        Ok(routed)
    }

    fn add(&mut self, route: &RouteHops) {
        for hop in &route.hops {
            if route.is_default {
                self.default.insert(hop.device);
            }
            if hop.has_gateway {
                self.gateways.insert(hop.device);
            } else if route.is_to_network {
                self.networks.insert(hop.device);
            }
        }
    }

    /// Applies a new route. One that leads where others do changes nothing.
    pub(super) fn learn(&mut self, message: &RouteMessage) -> Asks {
        match route(message) {
            // The route names only a nexthop object, whose interfaces a list of the objects shows.
            Some(route) if route.hops.is_empty() => Asks::List,
            Some(route) => {
                self.add(&route);
                Asks::Nothing
            }
            None => Asks::Nothing,
        }
    }

    /// Applies the removal of a route. Others may still lead where it did, so a list is needed.
    pub(super) fn unlearn(message: &RouteMessage) -> Asks {
        let may_matter = |route: &RouteHops| {
            route.is_default
                || route.is_to_network
                || route.hops.is_empty()
                || route.hops.iter().any(|hop| hop.has_gateway)
        };
        if route(message).as_ref().is_some_and(may_matter) { Asks::List } else { Asks::Nothing }
    }
}

/// Parses a unicast route; `None` for other types.
fn route(message: &RouteMessage) -> Option<RouteHops> {
    if message.header.kind != RouteType::Unicast {
        return None;
    }
    let header = &message.header;
    let length = header.destination_prefix_length;
    // Routes to single addresses (`/32`, `/128`) are those of pods, and there are many.
    let whole = if header.address_family == AddressFamily::Inet6 { 128 } else { 32 };
    let mut route = RouteHops {
        is_default: length == 0,
        is_to_network: length != 0 && length < whole && header.protocol != RouteProtocol::Kernel,
        ..RouteHops::default()
    };
    let is_gateway = |attribute: &RouteAttribute| {
        matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_))
    };
    let has_gateway = message.attributes.iter().any(is_gateway);
    for attribute in &message.attributes {
        if let RouteAttribute::Oif(device) = attribute {
            route.hops.push(Hop { device: *device, has_gateway });
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            route.hops.extend(hops.iter().map(|hop| Hop {
                device: hop.interface_index,
                has_gateway: hop.attributes.iter().any(is_gateway),
            }));
        } else if let RouteAttribute::NhId(number) = attribute {
            route.object = Some(*number);
        }
    }
    Some(route)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteAddress;

    use super::*;

    fn message(prefix: u8, attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.kind = RouteType::Unicast;
        message.header.destination_prefix_length = prefix;
        message.attributes = attributes;
        message
    }

    fn routed<const N: usize>(
        default: [u32; N],
        gateways: &[u32],
        networks: &[u32],
    ) -> RoutedInterfaces {
        let [gateways, networks] = [gateways, networks].map(|all| all.iter().copied().collect());
        RoutedInterfaces { default: default.into(), gateways, networks }
    }

    #[test]
    fn routes_lead_to_devices_by_default_by_gateways_and_by_objects() {
        let gateway = || RouteAttribute::Gateway(RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, 1)));
        let mut found = RoutedInterfaces::default();
        let by_gateway = message(24, vec![RouteAttribute::Oif(4), gateway()]);
        assert_eq!(found.learn(&by_gateway), Asks::Nothing);
        assert_eq!(found.learn(&message(0, vec![RouteAttribute::Oif(5)])), Asks::Nothing);
        assert_eq!(found, routed([5], &[4], &[]));
        let by_object = message(24, vec![RouteAttribute::NhId(9)]);
        assert_eq!(found.learn(&by_object), Asks::List, "it says no device");
        let both = message(0, vec![RouteAttribute::NhId(9), RouteAttribute::Oif(6), gateway()]);
        assert_eq!(found.learn(&both), Asks::Nothing);
        assert_eq!(found, routed([5, 6], &[4, 6], &[]));
        assert_eq!(RoutedInterfaces::unlearn(&by_gateway), Asks::List);
        found.forget(6);
        assert_eq!(found, routed([5], &[4], &[]));
        let mut local = message(0, vec![RouteAttribute::Oif(7)]);
        local.header.kind = RouteType::Local;
        assert_eq!((found.learn(&local), found.default.contains(&7)), (Asks::Nothing, false));
    }

    /// An interface to a private network may have no address, because the node's address is on `lo`.
    #[test]
    fn routes_to_networks_without_a_gateway_count_and_those_to_one_machine_do_not() {
        let mut found = RoutedInterfaces::default();
        let network = message(24, vec![RouteAttribute::Oif(3)]);
        let pod = message(32, vec![RouteAttribute::Oif(4)]);
        let mut of_the_kernel = message(24, vec![RouteAttribute::Oif(5)]);
        of_the_kernel.header.protocol = RouteProtocol::Kernel;
        for route in [&network, &pod, &of_the_kernel] {
            assert_eq!(found.learn(route), Asks::Nothing);
        }
        assert_eq!(found, routed([], &[], &[3]));
        assert_eq!(RoutedInterfaces::unlearn(&network), Asks::List);
        assert_eq!(RoutedInterfaces::unlearn(&pod), Asks::Nothing, "pods come and go");
        let mut v6 = message(64, vec![RouteAttribute::Oif(6)]);
        v6.header.address_family = AddressFamily::Inet6;
        assert_eq!(found.learn(&v6), Asks::Nothing);
        found.forget(3);
        assert_eq!(found, routed([], &[], &[6]));
    }
}
