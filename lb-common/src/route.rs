//! The lookup of a route in the kernel before a packet bypasses the stack.

/// How a packet is to be treated on its way, as far as routes are chosen by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// IPv4, else IPv6.
    pub v4: bool,
    /// IPv4: type of service in the first byte in memory; IPv6: the header's first word in memory without the version.
    pub class: u32,
    /// Bytes of the IP packet, or of each that the device will make of it.
    pub length: u16,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteResult {
    /// Forwarding is on, and the next hop is known.
    Known,
    /// Larger than the route's MTU.
    TooBig,
    /// The next hop was not asked for its link-layer address yet.
    NoNeighbour,
    /// Not forwarded at all, or only as the stack can: no route, one to this node, forwarding off, an encapsulation.
    None,
}

/// The next hop.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Index of the device.
    pub device: u32,
    /// The addresses of a frame that goes there, as it begins: destination and source, in memory order.
    pub hardware: [u32; 3],
    /// With [`RouteResult::TooBig`]: bytes of the largest IP packet.
    pub mtu: u32,
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
