//! The way out of a packet: where it goes when its path ends, and by which route.

use crate::event::Redirect;
use crate::flow::Tuple;
use crate::forward::Role;
use crate::route::Route;

/// The way out of a packet. Written by the files that choose it (`seek`, `bypass`, `redirect`, `host`, `icmp`), read
/// by `exit::leave` and by the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Exit {
    /// The interface and the link-layer addresses of a packet that does not simply continue. For a packet that is too
    /// big, the MTU of its route (`reject`).
    pub route: Route,
    /// Not 0: the packet goes to the other end of that interface, a veth whose peer is in a pod.
    pub to_peer: u32,
    /// The redirect of the packet, by [`Exit::route`]. `None`: it continues as without a translation, to the stack or
    /// out by this interface.
    pub to: Option<Redirect>,
    /// Whether the packet may have another exit than the stack (`exit::has_choice`): then the path chooses it.
    pub has_choice: bool,
    /// The hop limit with which the packet came, if the path looks for a next hop.
    pub hops: u8,
    /// The tuple of a reply to the packet, by which the route to its source is looked up (`bypass`).
    pub tuple_back: Tuple,
    /// The route to the source of the packet, as found by `tuple_back`.
    pub route_back: Route,
    /// The addresses that the outermost header of a packet gets, where it does not get those of the entry that it
    /// follows: those of an ICMP message (`icmp`).
    pub outer: Tuple,
}

impl Exit {
    /// Sends the packet to the stack by the ingress of `lo` (ADR 0027), whose address is zeros.
    #[inline(always)]
    pub(in crate::forward) const fn by_loopback(&mut self) {
        self.to = Some(Redirect::ToHost);
        self.route.device = Role::LOOPBACK;
        self.route.hardware = [0; 3];
    }
}
