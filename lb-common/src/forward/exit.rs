//! The way out of a packet that carries its new addresses: on, back by the same device, or past the stack.

pub(super) mod bypass;
pub(super) mod next_hop;
pub(super) mod redirect;
pub(super) mod rewrite;

use crate::event::{DropReason, Sent, Translation, Turn, Verdict};
use crate::flow::{Kind, Tuple};
use crate::packet::Packet;
use crate::route::Route;
use crate::wire::View;

/// Where a packet goes from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitTo {
    /// On, as it would have gone: to the stack, or out by this device.
    #[default]
    Stack,
    /// To the next hop of its route, past the stack, as a router would send it.
    NextHop,
    /// By the device of its route, where the kernel finds the next hop.
    Device,
    /// To the stack, shown at the device of its route.
    StackAt,
}

/// The way out of a packet. Written by the stages that choose it (`seek`, `bypass`, `redirect`, `host`, `icmp`), read by
/// [`leave`] and by the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Exit {
    /// The device and the link-layer addresses by which a packet goes that does not simply go on. With a packet that
    /// is too big, the MTU of its route (`reject`).
    pub route: Route,
    /// Not 0: the packet goes to the other end of that device, which is a pod's.
    pub to_peer: u32,
    pub to: ExitTo,
    /// Whether the settings let packets of flows bypass the stack here: then a next hop is looked for.
    pub may_bypass: bool,
    /// The hop limit that a packet came with for which one is looked for.
    pub hops: u8,
    /// The tuple of an answer to the packet, by which the way to its source is looked up (`bypass`) ...
    pub tuple_back: Tuple,
    /// ... and that way.
    pub route_back: Route,
    /// The addresses that an ICMP message gets (`icmp`). Any other packet gets those of the entry that it follows.
    pub icmp: Tuple,
}

/// Ends the path of a packet that has its addresses. `kind`: that of the
/// entry that it follows. `what`: its translation, where it goes on.
#[inline(always)]
pub(super) fn leave<P: Packet>(
    packet: &mut P,
    view: &View,
    kind: Kind,
    exit: &Exit,
    what: Translation,
) -> Verdict {
    let (done, verdict) = match exit.to {
        ExitTo::Stack if kind == Kind::HAIRPIN => return turn_round(packet, Turn::Hairpin),
        ExitTo::Stack => return Verdict::Translated(what),
        ExitTo::Device => return Verdict::Sent(Sent::FromHost),
        ExitTo::StackAt => (show(packet, &exit.route), Sent::ToHost),
        ExitTo::NextHop => {
            let is_answer = matches!(kind, Kind::REPLY | Kind::UNMASQUERADE);
            let verdict = if is_answer { Sent::Reply } else { Sent::Forward };
            (next_hop::write(packet, view, &exit.route), verdict)
        }
    };
    match done {
        Some(()) => Verdict::Sent(verdict),
        None => Verdict::Drop(DropReason::RewriteFailed),
    }
}

/// Addresses a packet to the device at which the stack is shown it.
#[inline(always)]
fn show<P: Packet>(packet: &mut P, route: &Route) -> Option<()> {
    packet.write(0, route.next_hop_address())
}

/// Ends the path of a packet that goes back to where it came from: swaps the link-layer addresses.
#[inline(always)]
pub(super) fn turn_round<P: Packet>(packet: &mut P, why: Turn) -> Verdict {
    match swap_link(packet) {
        Some(()) => Verdict::TurnedRound(why),
        None => Verdict::Drop(DropReason::RewriteFailed),
    }
}

#[inline(always)]
fn swap_link<P: Packet>(packet: &mut P) -> Option<()> {
    let destination: [u8; 6] = packet.read(0)?;
    let source: [u8; 6] = packet.read(6)?;
    packet.write(0, source)?;
    packet.write(6, destination)
}
