//! The kernel's route to an address: its interface and source address.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// A route as the kernel would select it.
#[derive(Debug, Default)]
pub(super) struct KernelRoute {
    /// The index of the interface.
    pub(super) device: u32,
    /// The source address of packets that this node itself sends.
    pub(super) source: Option<IpAddr>,
}

/// Queries the route to an address. `NotFound` if there is none.
pub(super) fn to(ip: IpAddr) -> io::Result<KernelRoute> {
    let mut question = RouteMessage::default();
    let (family, bits, address) = match ip {
        IpAddr::V4(ip) => (AddressFamily::Inet, 32, RouteAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(ip)),
    };
    question.header.address_family = family;
    question.header.destination_prefix_length = bits;
    question.attributes.push(RouteAttribute::Destination(address));
    let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(question));
    // Without NLM_F_DUMP the kernel answers with the one route that it would take.
    message.header.flags = NLM_F_REQUEST;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto().map(drop)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0).map(drop)?;
    let (answer, _kernel) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) = &answer.payload {
        return Ok(read(route));
    }
    if let NetlinkPayload::Error(error) = &answer.payload {
        return Err(error.to_io());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "neither a route nor an error"))
}

fn read(message: &RouteMessage) -> KernelRoute {
    let mut route = KernelRoute::default();
    for attribute in &message.attributes {
        if let RouteAttribute::Oif(index) = attribute {
            route.device = *index;
        } else if let RouteAttribute::PrefSource(RouteAddress::Inet(ip)) = attribute {
            route.source = Some((*ip).into());
        } else if let RouteAttribute::PrefSource(RouteAddress::Inet6(ip)) = attribute {
            route.source = Some((*ip).into());
        }
    }
    route
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_by_lo() {
        let route = to([127, 0, 0, 1].into()).expect("a route");
        assert_eq!(route.device, 1);
        assert_eq!(route.source, Some([127, 0, 0, 1].into()));
    }
}
