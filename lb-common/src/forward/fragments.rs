//! Datagrams in pieces: only the first fragment carries ports, so they are remembered for the others.
//!
//! One that comes before the first is held, if it goes to an address where frontends may be. The first
//! goes its way, and a copy of it comes in again as a *carrier*: it becomes a held fragment, which then
//! finds the ports of its datagram, after having sent in the next carrier. So each run of the program
//! handles one packet, and no order is lost (ADR 0014).

use super::{Step, pass};
use crate::addr::Port;
use crate::config::Settings;
use crate::event::{DropReason, Event, PassReason, Turn, Verdict};
use crate::flow::{FlowKey, Fragment, HELD, Held, Ports, Tuple};
use crate::hash;
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::Tables;
use crate::wire::Piece;

#[inline(always)]
const fn key(scratch: &Scratch) -> Fragment {
    let FlowKey { tuple, protocol, side, .. } = &scratch.key;
    Fragment::new(tuple.source, tuple.destination, scratch.id, *protocol, *side)
}

/// What is known of a datagram. Identifications come round: what was written for an older one of the same ends is not
/// this one's.
#[inline(always)]
fn known<T: Tables>(tables: &T, fragment: &Fragment) -> Option<Ports> {
    tables.fragment(fragment).filter(|ports| ports.is_fresh(tables.now()))
}

/// Finds the place of a fragment that comes in: gives a later one the ports of its datagram, or holds it; an
/// end for the packet where it is done with.
#[inline(never)]
pub(super) fn place<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Step<()> {
    scratch.fragment = key(scratch);
    let known = known(tables, &scratch.fragment).unwrap_or_default();
    let has_first = known.destination != Port::NONE;
    if scratch.view.piece == Piece::Later {
        if has_first {
            scratch.key.tuple.source_port = known.source;
            scratch.key.tuple.destination_port = known.destination;
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
    let to = scratch.key.tuple.destination;
    scratch.frontend = Frontend::cluster_address(to);
    settings.may_be_other(&to) || tables.knows(&scratch.frontend) || tables.address(&to) != 0
}

/// Where in `HELD` the fragment at a place in the queue of its datagram lies.
#[inline(always)]
fn slot(fragment: &Fragment, index: u16) -> u32 {
    let [.., source] = fragment.source.words();
    let [.., destination] = fragment.destination.words();
    let ends = u64::from(source) << 32 | u64::from(destination);
    let hash = hash::mix(ends, u64::from(u32::from_ne_bytes(fragment.id)));
    (hash as u32).wrapping_add(index.into()) % HELD
}

/// Keeps a fragment that came ahead of its first.
#[inline(always)]
fn hold<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    index: u16,
) -> Step<()> {
    let written = Ports::time(tables.now());
    let waiting = Ports { held: index + 1, written, ..Ports::default() };
    let slot = slot(&scratch.fragment, index);
    if index < Held::QUEUE
        && may_be_frontend(tables, settings, scratch)
        && tables.put_held(slot, |held| {
            (held.fragment, held.index) = (scratch.fragment, index.into());
            packet.keep(held)
        })
        && tables.put_fragment(&scratch.fragment, &waiting)
    {
        return Err(Verdict::Drop(DropReason::FragmentHeld));
    }
    pass(PassReason::UnknownFragment)
}

/// Turns a carrier into the fragment that was held last.
#[inline(always)]
fn carry<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &Scratch,
    held: u16,
) -> Step<()> {
    let index = held - 1;
    write(tables, scratch, index);
    if index > 0 {
        packet.again().ok_or(Verdict::Drop(DropReason::FragmentLost))?;
    }
    let fragment = &scratch.fragment;
    let slot = slot(fragment, index);
    let mut take = |held: &Held| {
        let is_it = held.fragment == *fragment && held.index == u32::from(index);
        if is_it { packet.become_held(held) } else { None }
    };
    let taken = tables.read_held(slot, &mut take).flatten();
    taken.ok_or(Verdict::Drop(DropReason::FragmentLost))?;
    tables.remove_held(slot);
    Err(Verdict::TurnedRound(Turn::Fragment))
}

/// Gives a later fragment that goes out the ports of its datagram. Without them it is the stack's: never a guess.
#[inline(always)]
pub(super) fn recall<T: Tables>(tables: &T, scratch: &mut Scratch) -> Step<()> {
    let Some(ports) = known(tables, &key(scratch)) else {
        return pass(PassReason::UnknownFragment);
    };
    scratch.key.tuple.source_port = ports.source;
    scratch.key.tuple.destination_port = ports.destination;
    Ok(())
}

/// Remembers the ports of a first fragment that is being translated.
#[inline(always)]
pub(super) fn remember<T: Tables>(tables: &T, scratch: &mut Scratch) {
    if scratch.view.piece == Piece::First {
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
    let Tuple { source_port: source, destination_port: destination, .. } = scratch.key.tuple;
    let ports = Ports { source, destination, held, written: Ports::time(tables.now()) };
    if !tables.put_fragment(&scratch.fragment, &ports) {
        tables.count(Event::FragmentTableFull);
    }
}
