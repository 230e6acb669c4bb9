//! The way out of a packet: to the stack, or past it.

use crate::flow::Tuple;
use crate::route::Route;

/// The way out of a packet. Written by the stages that choose it (`seek`, `short_cut`, `send`, `host`, `icmp`), read by those
/// that end the path, and by the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Exit {
    /// The next hop of a packet that bypasses the stack. With a packet that is too big, the MTU of its route (`reject`).
    pub route: Route,
    /// The hop limit that such a packet came with.
    pub hops: u8,
    /// Not 0: the packet goes to the other end of that device, which is a pod's.
    pub to_peer: u32,
    /// Whether the settings let packets of flows bypass the stack here: then a next hop is looked for.
    pub may_bypass: bool,
    /// Whether the packet does: its next hop was found.
    pub bypasses: bool,
    /// Whether a packet of this host, or the answer to one, is for this host itself, by the interface where it is.
    pub stays: bool,
    /// The tuple of an answer to the packet, by which the way to its source is looked up (`short_cut`) ...
    pub back: Tuple,
    /// ... and that way.
    pub way_back: Route,
    /// The addresses that an ICMP message gets (`icmp`). Any other packet gets those of the entry that it follows.
    pub icmp: Tuple,
}
