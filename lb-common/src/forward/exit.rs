//! The way out of a packet that carries its new addresses: on, back by the same interface, or past the stack.

pub(super) mod bypass;
pub(super) mod next_hop;
pub(super) mod redirect;
pub(super) mod rewrite;

use crate::config::Settings;
use crate::event::{DropReason, Redirect, Return, Translation, Verdict};
use crate::flow::{Kind, Side, Tuple};
use crate::forward::{Role, Scratch};
use crate::packet::Packet;
use crate::route::Route;
use crate::tables::Tables;
use crate::wire::View;

/// The destination of a packet when its path ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitTo {
    /// It continues as without a translation: to the stack, or out by this interface.
    #[default]
    Stack,
    /// It goes to the next hop of its route, past the stack, as a router would send it.
    NextHop,
    /// It leaves by the interface of its route, where the kernel finds the next hop.
    Device,
    /// It goes to the stack, as received at the interface of its route.
    StackAt,
}

/// The way out of a packet. Written by the files that choose it (`seek`, `bypass`, `redirect`, `host`, `icmp`), read
/// by [`leave`] and by the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Exit {
    /// The interface and the link-layer addresses of a packet that does not simply continue. For a packet that is too
    /// big, the MTU of its route (`reject`).
    pub route: Route,
    /// Not 0: the packet goes to the other end of that interface, a veth whose peer is in a pod.
    pub to_peer: u32,
    pub to: ExitTo,
    /// Whether the packet may have another exit than the stack ([`has_choice`]): then the path chooses it.
    pub has_choice: bool,
    /// The hop limit with which the packet came, if the path looks for a next hop.
    pub hops: u8,
    /// The tuple of a reply to the packet, by which the route to its source is looked up (`bypass`).
    pub tuple_back: Tuple,
    /// The route to the source of the packet, as found by `tuple_back`.
    pub route_back: Route,
    /// The addresses that an ICMP message gets (`icmp`). Any other packet gets those of the entry that it follows.
    pub icmp: Tuple,
}

impl Exit {
    /// Sends the packet to the stack by the ingress of `lo` (ADR 0027), whose address is zeros.
    #[inline(always)]
    pub(super) const fn by_loopback(&mut self) {
        self.to = ExitTo::StackAt;
        self.route.device = Role::LOOPBACK;
        self.route.hardware = [0; 3];
    }
}

/// Whether a packet that comes in may have another exit than the stack. The fast path leaves such a packet to the whole
/// one.
#[inline(always)]
pub(super) fn has_choice<P: Packet>(packet: &P, settings: &Settings) -> bool {
    settings.has(if packet.is_at_xdp() { Settings::REDIRECTS } else { Settings::BYPASSES })
}

/// Chooses the exit of a packet that [has a choice](has_choice), and its next hop, before anything is written.
#[inline(always)]
pub(super) fn choose<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    Scratch { headers, found, exit, .. }: &mut Scratch,
) {
    let bypasses = if packet.is_at_xdp() {
        redirect::prepare(packet, tables, headers, found, exit)
    } else {
        bypass::prepare(packet, tables, headers, found, exit)
    };
    if bypasses {
        exit.to = ExitTo::NextHop;
    }
}

/// The verdict about a packet that carries the addresses of an entry of this kind and simply continues. A masqueraded
/// one is marked for the program of another layout behind this one.
#[inline(always)]
pub(super) fn translated<P: Packet>(packet: &mut P, side: Side, kind: Kind) -> Verdict {
    // The side is known when this is compiled: packets that come in pay nothing.
    if side == Side::EGRESS && kind == Kind::MASQUERADE {
        packet.mark_masqueraded();
    }
    Verdict::Translated(translation(kind))
}

/// The translation of the packets that follow an entry of this kind.
#[inline(always)]
pub(super) const fn translation(kind: Kind) -> Translation {
    match kind {
        Kind::REPLY => Translation::Reply,
        Kind::MASQUERADE => Translation::Masquerade,
        Kind::UNMASQUERADE => Translation::Unmasquerade,
        _ => Translation::Forward,
    }
}

/// Ends the path of a packet that carries its new addresses. `kind`: the kind of the entry that it follows. `what`: its
/// translation, where it continues.
#[inline(always)]
pub(super) fn leave<P: Packet>(
    packet: &mut P,
    view: &View,
    kind: Kind,
    exit: &Exit,
    what: Translation,
) -> Verdict {
    let (done, verdict) = match exit.to {
        ExitTo::Stack if kind == Kind::HAIRPIN => return return_packet(packet, Return::Hairpin),
        ExitTo::Stack => return Verdict::Translated(what),
        ExitTo::Device => (clear_destination(packet), Redirect::FromHost),
        ExitTo::StackAt => (show(packet, &exit.route), Redirect::ToHost),
        ExitTo::NextHop => {
            let is_answer = matches!(kind, Kind::REPLY | Kind::UNMASQUERADE);
            let verdict = if is_answer { Redirect::Reply } else { Redirect::Forward };
            (next_hop::write(packet, view, &exit.route), verdict)
        }
    };
    match done {
        Some(()) => Verdict::Redirected(verdict),
        None => Verdict::Drop(DropReason::RewriteFailed),
    }
}

/// Clears the destination of a frame whose next hop and link-layer header come from the kernel (`bpf_redirect_neigh`):
/// that drops a frame with a broadcast address (`__bpf_redirect_neigh` in `net/core/filter.c`), which a neighbour entry
/// of a frontend may have (ADR 0027).
#[inline(always)]
fn clear_destination<P: Packet>(packet: &mut P) -> Option<()> {
    packet.write(0, [0; 6])
}

/// Addresses a frame to the interface at which the stack receives it.
#[inline(always)]
fn show<P: Packet>(packet: &mut P, route: &Route) -> Option<()> {
    packet.write(0, route.next_hop_address())
}

/// Ends the path of a packet that goes back to its sender: swaps the link-layer addresses.
#[inline(always)]
pub(super) fn return_packet<P: Packet>(packet: &mut P, why: Return) -> Verdict {
    match swap_link(packet) {
        Some(()) => Verdict::Returned(why),
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
