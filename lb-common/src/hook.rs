//! The hook at which a program sees a packet, and the questions about routes that the kernel answers there.

use crate::addr::{Ip, Protocol};
use crate::flow::Tuple;
use crate::route::{Route, RouteResult, Traffic};

/// The point of the kernel at which a program runs.
///
/// A constant of each kind of packet: the verifier must see at load time that a tc program has no XDP path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before the stack. Not every interface can send replies from here, and a partial checksum cannot be distinguished
    /// from a complete one.
    Xdp,
    /// At tc, where the stack receives a packet (ingress) or sends it (egress).
    Tc,
}

/// Properties of a packet that its bytes do not show: its hook, its interface and its possible routes.
///
/// The role of the interface is that of the program ([`crate::forward::Role`]).
pub trait Hooked {
    /// The point of the kernel at which the packet is.
    fn point(&self) -> Point;

    /// Whether the packet has not entered the stack yet (XDP).
    #[inline(always)]
    fn is_at_xdp(&self) -> bool {
        self.point() == Point::Xdp
    }

    /// Index of the interface: the one of arrival on ingress, the one of departure on egress.
    fn device(&self) -> u32;

    /// Whether this host's own stack created the packet (only asked on egress).
    fn is_from_host(&self) -> bool;

    /// Marks a packet that got an address of this node as its source, for [`Hooked::is_masqueraded`].
    #[inline(always)]
    fn mark_masqueraded(&mut self) {}

    /// Whether another program of this data path has marked the packet at this hook, right before: during an upgrade
    /// the programs of two layouts run there (ADR 0005).
    #[inline(always)]
    fn is_masqueraded(&self) -> bool {
        false
    }

    /// Queues a copy of the packet at the ingress of the same interface, behind the packets that wait there.
    fn requeue(&mut self) -> Option<()>;

    /// Looks up the route by which a packet of this tuple would be forwarded if it came in by this packet's interface.
    fn route(
        &self,
        tuple: &Tuple,
        protocol: Protocol,
        traffic: Traffic,
        into: &mut Route,
    ) -> RouteResult;

    /// Looks up the route by which a packet of this tuple, created by this host, would leave. The next hop's link-layer
    /// address is not returned; without one the result is [`RouteResult::NoNeighbour`]. `length`: of the packet, in
    /// bytes; with 0 the kernel compares the packet itself with the MTU.
    fn route_of_host(
        &self,
        tuple: &Tuple,
        protocol: Protocol,
        length: u16,
        into: &mut Route,
    ) -> RouteResult;

    /// Looks up which of this node's addresses the kernel uses as source for packets that leave by `device` to the
    /// destination of this tuple. `None` where the kernel gives no answer.
    fn source(&self, tuple: &Tuple, protocol: Protocol, device: u32) -> Option<Ip>;

    /// Whether a socket of this node has the tuple of a packet that arrives: a TCP socket in any state but listening
    /// (`TIME_WAIT` counts), or a connected UDP socket. No other protocol has this lookup.
    ///
    /// Minimum kernel: 5.2 (`bpf_skc_lookup_tcp`).
    fn has_socket(&self, tuple: &Tuple, protocol: Protocol) -> bool;
}
