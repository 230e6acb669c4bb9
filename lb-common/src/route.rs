//! The lookup of a route in the kernel before a packet bypasses the stack.

use crate::addr::Ip;

/// The properties of a packet by which the kernel chooses its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// IPv4, else IPv6.
    pub v4: bool,
    /// IPv4: type of service in the first byte in memory; IPv6: the header's first word in memory without the version.
    pub class: u32,
    /// Bytes of the IP packet, or of each packet into which the interface will split it.
    pub length: u16,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteResult {
    /// Forwarding is on, and the next hop is known.
    Known,
    /// The packet is larger than the route's MTU.
    TooBig,
    /// The link-layer address of the next hop is not resolved yet.
    NoNeighbour,
    /// The data path cannot forward the packet: no route, a route to this node, forwarding off, or an encapsulation.
    None,
}

/// The next hop: an interface and a link-layer address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface.
    pub device: u32,
    /// The link-layer addresses of a frame to the next hop: destination, then source, in memory order.
    pub hardware: [u32; 3],
    /// With [`RouteResult::TooBig`]: bytes of the largest IP packet.
    pub mtu: u32,
    /// The address of the next hop, for a packet of this host; unspecified where the kernel must look up the route.
    pub gateway: Ip,
}

impl Route {
    /// The link-layer address of the next hop, in the order of a frame.
    #[inline(always)]
    pub const fn next_hop_address(&self) -> [u8; 6] {
        let [first, second, _] = self.hardware;
        let ([a, b, c, d], [e, f, ..]) = (first.to_ne_bytes(), second.to_ne_bytes());
        [a, b, c, d, e, f]
    }
}
