//! Datagrams in pieces: only the first fragment carries ports, so they are remembered for the others.
//!
//! One that comes before the first is held, if it goes to an address where frontends may be. The first
//! goes its way, and a copy of it comes in again as a *carrier*: it becomes a held fragment, which then
//! finds the ports of its datagram, after having sent in the next carrier. So each run of the program
//! handles one packet, and no order is lost (ADR 0014).

use super::Step;
use super::parts::end;
use crate::addr::Port;
use crate::config::Settings;
use crate::event::{DropReason, Event, PassReason, Turn, Verdict};
use crate::flow::{FlowKey, Fragment, Held, Ports, Tuple};
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::Piece;

#[inline(always)]
const fn key(scratch: &Scratch) -> Fragment {
    let FlowKey { tuple, protocol, side, .. } = &scratch.headers.key;
    Fragment::new(tuple.source, tuple.destination, scratch.headers.id.value, *protocol, *side)
}

/// The known ports of a datagram. Identifications come round: an entry written for an older one of the same ends is not
/// this one's.
#[inline(always)]
fn known<T: Tables>(tables: &T, fragment: &Fragment) -> Option<Ports> {
    tables.fragment(fragment).filter(|ports| ports.is_fresh(tables.now()))
}

/// Finds the place of a fragment that comes in: gives a later one the ports of its datagram, or holds it; an
/// end for the packet where it is done with.
#[inline(always)]
pub(super) fn place<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    match find_place(packet, tables, settings, scratch) {
        Ok(()) => false,
        Err(verdict) => end(scratch, verdict),
    }
}

#[inline(always)]
fn find_place<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Step<()> {
    scratch.fragment = key(scratch);
    let known = known(tables, &scratch.fragment).unwrap_or_default();
    let has_first = known.destination != Port::NONE;
    if scratch.headers.view.piece == Piece::Later {
        if has_first {
            scratch.headers.key.tuple.source_port = known.source;
            scratch.headers.key.tuple.destination_port = known.destination;
            return Ok(());
        }
        return hold(packet, tables, settings, scratch, known.held);
    }
    if known.held > 0 && has_first {
        return carry(packet, tables, scratch, known.held);
    }
    if known.held > 0 || may_be_frontend(tables, settings, scratch) {
        write(tables, scratch, known.held);
    }
    if known.held > 0 && packet.again().is_some() {
        tables.count(Event::FragmentsReleased);
    }
    Ok(())
}

/// Whether frontends may be at the address that a packet goes to.
#[inline(always)]
fn may_be_frontend<T: Tables>(tables: &T, settings: &Settings, scratch: &mut Scratch) -> bool {
    let to = scratch.headers.key.tuple.destination;
    scratch.choice.frontend = Frontend::cluster_address(to);
    settings.may_be_other(&to) || tables.knows(&scratch.choice.frontend) || tables.address(&to) != 0
}

/// Keeps a fragment that came ahead of its first, behind `before` others.
#[inline(always)]
fn hold<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    before: u16,
) -> Step<()> {
    let written = Ports::time(tables.now());
    let waiting = Ports { held: before + 1, written, ..Ports::default() };
    if before < Held::QUEUE && may_be_frontend(tables, settings, scratch) {
        scratch.fragment.place = waiting.held;
        let is_held = tables.put_held(&scratch.fragment, |held| packet.keep(held));
        scratch.fragment.place = 0;
        if is_held && tables.put_fragment(&scratch.fragment, &waiting) {
            return Err(Verdict::Drop(DropReason::FragmentHeld));
        }
    }
    Err(Verdict::Pass(PassReason::UnknownFragment))
}

/// Turns a carrier into the fragment that was held last.
#[inline(always)]
fn carry<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    held: u16,
) -> Step<()> {
    write(tables, scratch, held - 1);
    if held > 1 {
        packet.again().ok_or(Verdict::Drop(DropReason::FragmentLost))?;
    }
    scratch.fragment.place = held;
    let fragment = &scratch.fragment;
    let mut take =
        |held: &Held| if held.fragment == *fragment { packet.become_held(held) } else { None };
    let taken = tables.read_held(fragment, &mut take).flatten();
    taken.ok_or(Verdict::Drop(DropReason::FragmentLost))?;
    tables.remove_held(fragment);
    Err(Verdict::TurnedRound(Turn::Fragment))
}

/// Gives a later fragment that goes out the ports of its datagram. Without them it is the stack's: never a guess.
#[inline(always)]
pub(super) fn recall<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let Some(ports) = known(tables, &key(scratch)) else {
        return end(scratch, Verdict::Pass(PassReason::UnknownFragment));
    };
    scratch.headers.key.tuple.source_port = ports.source;
    scratch.headers.key.tuple.destination_port = ports.destination;
    false
}

/// Remembers the ports of a first fragment that is being translated.
#[inline(always)]
pub(super) fn remember<T: Tables>(tables: &T, scratch: &mut Scratch) {
    if scratch.headers.view.piece == Piece::First {
        remember_first(tables, scratch);
    }
}

#[inline(never)]
fn remember_first<T: Tables>(tables: &T, scratch: &mut Scratch) {
    scratch.fragment = key(scratch);
    let held = known(tables, &scratch.fragment).map_or(0, |known| known.held);
    write(tables, scratch, held);
}

#[inline(always)]
fn write<T: Tables>(tables: &T, scratch: &Scratch, held: u16) {
    let Tuple { source_port: source, destination_port: destination, .. } =
        scratch.headers.key.tuple;
    let ports = Ports { source, destination, held, written: Ports::time(tables.now()) };
    if !tables.put_fragment(&scratch.fragment, &ports) {
        tables.count(Event::FragmentTableFull);
    }
}
