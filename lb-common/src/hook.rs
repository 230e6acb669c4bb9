//! The hook at which a packet is met, and what the kernel says there of its way.

use crate::addr::{Ip, Protocol};
use crate::flow::Tuple;
use crate::route::{Route, RouteResult, Traffic};

/// The point of the kernel at which a program runs. A constant of each kind of packet: the verifier must see at load
/// time that a tc program has no XDP path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before the stack: a frame cannot be answered from here on every interface, and nothing distinguishes a checksum
    /// that a device is still to complete from a whole one.
    Xdp,
    /// At the stack's edge, in or out.
    Tc,
}

/// What the bytes of a packet do not say: where it is, and which way it may go. The role of the interface is that of
/// the program ([`crate::forward::Role`]).
pub trait Hooked {
    /// The point of the kernel at which the packet is.
    fn point(&self) -> Point;

    /// Whether the packet is not in the stack yet.
    #[inline(always)]
    fn is_at_xdp(&self) -> bool {
        self.point() == Point::Xdp
    }

    /// Index of the device it came in by or goes out by.
    fn device(&self) -> u32;

    /// Whether this host's own stack made it (only asked on the way out).
    fn is_from_host(&self) -> bool;

    /// Lets a copy of the packet come in once more by the same device, behind what waits there.
    fn again(&mut self) -> Option<()>;

    /// Asks the kernel by which way a packet of this tuple goes on that came in by this one's device.
    fn route(
        &self,
        tuple: &Tuple,
        protocol: Protocol,
        traffic: Traffic,
        into: &mut Route,
    ) -> RouteResult;

    /// Asks the kernel by which way a packet of this tuple leaves
    /// that this host has made. The next hop is not asked for.
    fn route_of_host(
        &self,
        tuple: &Tuple,
        protocol: Protocol,
        length: u16,
        into: &mut Route,
    ) -> RouteResult;

    /// Asks the kernel which of this node's addresses is the source of what goes out by `device` to the destination
    /// of this tuple; nothing where it does not say.
    fn source(&self, tuple: &Tuple, protocol: Protocol, device: u32) -> Option<Ip>;
}
