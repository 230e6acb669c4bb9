//! Packets that come in: a client asks a frontend, or a backend answers one of our own addresses.

use super::parts::{Part, Parts, end};
use super::{Role, flows, next_hop, ports, rewrite, send, short_cut, tiers};
use crate::addr::Protocol;
use crate::event::{PassReason, Sent, Translation, Turn, Verdict};
use crate::flow::{Kind, Side};
use crate::packet::Packet;
use crate::scratch::{Next, Scratch};
use crate::tables::Tables;
use crate::wire::{Piece, View};

/// Handles any packet that comes in by a device.
#[inline(always)]
pub fn whole<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    (scratch.role, scratch.headers.key.side) = (role, Side::INGRESS);
    let _ended: bool = path(packet, tables, scratch);
    scratch.verdict
}

#[inline(always)]
fn path<P: Parts<T>, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> bool {
    if packet.part(tables, scratch, Part::Parse) {
        return true;
    }
    if packet.is_frame() && !is_common(&scratch.headers.view) {
        return end(scratch, Verdict::Pass(PassReason::LeftToTc));
    }
    if scratch.headers.view.is_icmp() {
        return packet.part(tables, scratch, Part::Icmp)
            || packet.part(tables, scratch, Part::Refuse);
    }
    if scratch.headers.view.piece != Piece::Whole && packet.part(tables, scratch, Part::Place) {
        return true;
    }
    if packet.part(tables, scratch, Part::Seek) {
        return true;
    }
    let is_lost = tiers::must_mend(scratch) && packet.part(tables, scratch, Part::Mend);
    if is_lost && packet.part(tables, scratch, Part::Seek) {
        return true;
    }
    match scratch.next {
        Next::First => {
            if packet.part(tables, scratch, Part::First) {
                return scratch.next != Next::Refuse || packet.part(tables, scratch, Part::Refuse);
            }
            packet.part(tables, scratch, Part::Prepare)
                || ports::tries(packet, tables, scratch, Part::Reserve)
                || packet.part(tables, scratch, Part::Stand)
                || packet.part(tables, scratch, Part::Rewrite)
                || leave(packet, scratch, Translation::NewFlow)
        }
        Next::Direct => {
            packet.part(tables, scratch, Part::Prepare)
                || ports::tries(packet, tables, scratch, Part::Reserve)
                || packet.part(tables, scratch, Part::Stand)
                || follow(packet, tables, scratch)
        }
        Next::Refuse => packet.part(tables, scratch, Part::Refuse),
        Next::Follow | Next::Host | Next::Masquerade => follow(packet, tables, scratch),
    }
}

/// Whether XDP takes a packet: the others are rare, and tc handles them.
#[inline(always)]
pub(super) fn is_common(view: &View) -> bool {
    let is_known = view.protocol == Protocol::TCP || view.protocol == Protocol::UDP;
    is_known && view.plain && view.piece == Piece::Whole
}

/// A packet of a known flow.
#[inline(always)]
fn follow<P: Parts<T>, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> bool {
    let is_to_host =
        scratch.found.flow.kind == Kind::REPLY && scratch.found.key.side == Side::INGRESS;
    if is_to_host && packet.part(tables, scratch, Part::Delivery) {
        return true;
    }
    if flows::must_touch(tables, scratch) && packet.part(tables, scratch, Part::Touch) {
        return true;
    }
    let is_sought = scratch.exit.may_bypass && !scratch.exit.bypasses;
    if is_sought && packet.part(tables, scratch, Part::Bypass) {
        return true;
    }
    if packet.part(tables, scratch, Part::Rewrite) {
        return true;
    }
    if scratch.exit.bypasses {
        if packet.is_frame() {
            // It counts for the entry that leaves, as for the one that came in.
            if flows::must_touch(tables, scratch) && packet.part(tables, scratch, Part::Touch) {
                return true;
            }
        }
        return next_hop::take(packet, scratch);
    }
    if is_to_host && !scratch.exit.stays {
        return super::host::deliver(packet, scratch, Sent::ToHost);
    }
    let what = match scratch.found.flow.kind {
        Kind::REPLY => Translation::Reply,
        Kind::UNMASQUERADE => Translation::Unmasquerade,
        _ => Translation::Forward,
    };
    leave(packet, scratch, what)
}

/// Ends the path of a packet that has its addresses.
#[inline(always)]
fn leave<P: Packet>(packet: &mut P, scratch: &mut Scratch, what: Translation) -> bool {
    if scratch.found.flow.kind == Kind::HAIRPIN {
        return rewrite::turn_round(packet, scratch, Turn::Hairpin);
    }
    end(scratch, Verdict::Translated(what))
}

/// Decides whether a packet of a known flow goes past the stack, into `scratch.exit.bypasses`, and by which way.
#[inline(always)]
pub(super) fn bypass<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    scratch.exit.bypasses = if packet.is_frame() {
        send::prepare(packet, tables, scratch)
    } else {
        short_cut::prepare(packet, tables, scratch)
    };
    false
}
