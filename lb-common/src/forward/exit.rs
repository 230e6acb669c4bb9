//! The way out of a packet that carries its new addresses: on, back by the same interface, or past the stack.

pub(super) mod bypass;
pub(super) mod next_hop;
pub(super) mod redirect;
pub(super) mod rewrite;

use crate::config::Settings;
use crate::event::{DropReason, Redirect, Return, Translation, Verdict};
use crate::flow::{Kind, Side};
use crate::forward::{Exit, Scratch};
use crate::packet::Packet;
use crate::route::Route;
use crate::tables::Tables;
use crate::wire::View;

/// Whether a packet in this direction may have another exit than the stack. The fast path leaves such a packet to the
/// whole one.
#[inline(always)]
pub(super) fn has_choice<P: Packet>(packet: &P, settings: &Settings, side: Side) -> bool {
    // The point is a constant of the program, so it tests one bit. The two bits are independent settings (ADR 0019,
    // ADR 0021).
    let flag = if packet.is_at_xdp() { Settings::REDIRECTS } else { Settings::BYPASSES };
    // The side is known when this is compiled: packets that go out pay nothing.
    side == Side::INGRESS && settings.has(flag)
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
        let is_answer = found.flow.is_answer();
        exit.to = Some(if is_answer { Redirect::Reply } else { Redirect::Forward });
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
    let (done, to) = match exit.to {
        // Both ends are behind this interface, and the packet never enters the stack (ADR 0003).
        None if kind == Kind::HAIRPIN => return return_packet(packet, Return::Hairpin),
        None => return Verdict::Translated(what),
        Some(to @ (Redirect::Forward | Redirect::Reply)) => {
            (next_hop::write(packet, view, &exit.route), to)
        }
        Some(Redirect::FromHost) => (clear_destination(packet), Redirect::FromHost),
        Some(Redirect::ToHost) => (address_to(packet, &exit.route), Redirect::ToHost),
    };
    match done {
        Some(()) => Verdict::Redirected(to),
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
fn address_to<P: Packet>(packet: &mut P, route: &Route) -> Option<()> {
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
