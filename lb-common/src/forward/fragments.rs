//! Datagrams in fragments: only the first fragment carries ports, so they are stored for the others.
//!
//! A later fragment that arrives before the first is held, if it goes to an address where frontends may be. When the
//! first arrives, it continues, and a copy of it comes in again as a *carrier*: the carrier becomes a held fragment,
//! which then finds the ports of its datagram, after it has sent in the next carrier. So each run of the program
//! handles one packet (ADR 0014).

use crate::addr::Port;
use crate::config::{Device, Settings};
use crate::event::{DropReason, Event, PassReason, Return, Verdict};
use crate::flow::{FlowKey, Fragment, Held, Ports, Tuple};
use crate::forward::{Scratch, Step, ready};
use crate::packet::Packet;
use crate::service::Frontend;
use crate::tables::{Clock, Fragments, Node, Services};
use crate::wire::{Headers, IPV6, Piece};

#[inline(always)]
const fn key(headers: &Headers) -> Fragment {
    let FlowKey { tuple, protocol, side, .. } = &headers.key;
    Fragment::new(tuple.source, tuple.destination, headers.id.value, *protocol, *side)
}

/// The known ports of a datagram. Identifications repeat: an entry that was written for an older datagram between the
/// same ends must not be used for this one.
#[inline(always)]
fn known<T: Clock + Fragments + Node + Services>(tables: &T, fragment: &Fragment) -> Option<Ports> {
    tables.fragment(fragment).filter(|ports| ports.is_fresh(tables.now()))
}

/// Decides about a fragment that comes in: gives a later one the ports of its datagram, or holds it. An error ends the
/// path of the packet.
#[inline(always)]
pub(super) fn assign_ports<P: Packet, T: Clock + Fragments + Node + Services>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers, fragment, choice, .. } = scratch;
    *fragment = key(headers);
    let known = known(tables, fragment).unwrap_or_default();
    let has_first = known.destination != Port::NONE;
    if headers.view.piece == Piece::Later {
        if has_first {
            headers.key.tuple.source_port = known.source;
            headers.key.tuple.destination_port = known.destination;
            advance(packet, tables, headers, fragment, known);
            return Ok(());
        }
        let may_wait = known.held < Held::QUEUE
            && may_be_frontend(tables, settings, headers, &mut choice.frontend);
        if may_wait {
            hold(packet, tables, fragment, known.held)?;
        }
        // The stack gets the fragment unchanged: ports are never guessed.
        return Err(Verdict::Pass(PassReason::UnknownFragment));
    }
    if headers.view.piece == Piece::Short {
        // Without frontends at the address no fragment waits. The ports of an earlier datagram must not count.
        if known.held > 0
            || has_first
            || may_be_frontend(tables, settings, headers, &mut choice.frontend)
        {
            // Nothing would release one that waits: this packet has no ports.
            write(tables, headers, fragment, Ports::NONE_WAITS, 0);
        }
        return Err(Verdict::Pass(PassReason::Malformed));
    }
    let held = known.waiting();
    // The ports are known already, so this is a copy of the first fragment: it carries a held one (ADR 0014).
    if held > 0 && has_first {
        return carry(packet, tables, headers, fragment, held);
    }
    // A first fragment that matches no frontend is remembered too, so that its later ones are not held (ADR 0014), and
    // do not get the ports of an earlier datagram.
    if held > 0 || has_first || may_be_frontend(tables, settings, headers, &mut choice.frontend) {
        write(tables, headers, fragment, held, Span::of(packet, headers).end);
    }
    if held > 0 && packet.requeue().is_some() {
        tables.count(Event::FragmentsReleased);
    }
    Ok(())
}

/// Records that a later fragment has passed. The entry ends with the last one if all have passed in order: a sender may
/// use the identification again at once, and the last fragment of that datagram may come first.
#[inline(always)]
fn advance<P: Packet, T: Clock + Fragments + Node>(
    packet: &P,
    tables: &T,
    headers: &Headers,
    fragment: &Fragment,
    mut known: Ports,
) {
    let span = Span::of(packet, headers);
    // After a gap or a held fragment the order no longer shows which fragment is the last to come: the record ends by
    // its age.
    if known.passed == 0 || span.start != known.passed {
        return;
    }
    // A card below a VLAN interface passes the fragment on to the programs there, which need the record as well.
    let device = tables.device(packet.device());
    if device.is_none_or(|device| device.flags & Device::CARRIES != 0) {
        return;
    }
    known.passed = span.end;
    if span.is_last {
        known.end(tables.now());
    }
    // The entry exists, so its map cannot be too full for it.
    tables.put_fragment(fragment, &known);
}

/// The part of a datagram's bytes that a fragment carries.
#[derive(Clone, Copy, Default)]
struct Span {
    start: u16,
    end: u16,
    is_last: bool,
}

impl Span {
    /// Returns an empty part if the packet ends too early.
    #[inline(always)]
    fn of<P: Packet>(packet: &P, headers: &Headers) -> Self {
        let Headers { view, id, .. } = headers;
        let (network, at) = (view.network(packet), id.at as usize);
        // Offsets of the total length (RFC 791 3.1) or payload length (RFC 8200 3), of the field with the fragment's
        // offset, and of the first byte that the length counts.
        let (length, place, counted) = if view.v4 {
            (network + 2, at + 2, network)
        } else {
            (network + 4, at.wrapping_sub(2), network + IPV6)
        };
        let number = |at| packet.read_at(at).map_or(0, u16::from_be_bytes);
        let (length, place) = (number(length), number(place));
        let (start, is_last) = if view.v4 {
            ((place & 0x1fff) << 3, place & 0x2000 == 0)
        } else {
            (place & 0xfff8, place & 1 == 0)
        };
        // Extension headers behind the fragment header (RFC 8200 4.5) are part of what is fragmented.
        let behind = if view.v4 { view.behind } else { id.at.wrapping_add(4) };
        let data = (counted as u16).wrapping_add(length).wrapping_sub(behind);
        Self { start, end: start.wrapping_add(data), is_last }
    }
}

/// Whether frontends may be at the address to which a packet goes. `frontend`: room for a key.
#[inline(always)]
fn may_be_frontend<T: Clock + Fragments + Node + Services>(
    tables: &T,
    settings: &Settings,
    headers: &Headers,
    frontend: &mut Frontend,
) -> bool {
    let to = headers.key.tuple.destination;
    *frontend = Frontend::cluster_address(to);
    // A later fragment has no port, so every address with some frontend counts: VIPs, ClusterIPs, and the addresses of
    // the node with its `NodePorts`.
    settings.services.may_be_vip(&to) || tables.knows(frontend) || tables.address(&to) != 0
}

/// Holds a fragment that came ahead of its first, after `before` others. An error, which ends the path, means that it
/// is held.
#[inline(always)]
fn hold<P: Packet, T: Clock + Fragments + Node + Services>(
    packet: &P,
    tables: &T,
    fragment: &mut Fragment,
    before: u16,
) -> Step<()> {
    let written = Ports::time(tables.now());
    let waiting = Ports { held: before + 1, written, ..Ports::default() };
    fragment.place = waiting.held;
    // The fragment is stored before the record that counts it: on another CPU the first fragment must not release a
    // place that is still empty.
    let is_held = tables.put_held(fragment, |held| packet.keep(held));
    fragment.place = 0;
    if is_held && tables.put_fragment(fragment, &waiting) {
        return Err(Verdict::Drop(DropReason::FragmentHeld));
    }
    Ok(())
}

/// Turns a carrier into the fragment that was held last.
#[inline(always)]
fn carry<P: Packet, T: Clock + Fragments + Node + Services>(
    packet: &mut P,
    tables: &T,
    headers: &Headers,
    fragment: &mut Fragment,
    held: u16,
) -> Step<()> {
    // The number is written before the next carrier is queued, which reads it.
    write(tables, headers, fragment, held - 1, 0);
    if held > 1 {
        packet.requeue().ok_or(Verdict::Drop(DropReason::FragmentLost))?;
    }
    fragment.place = held;
    let fragment = &*fragment;
    let to: [u8; 6] = packet.read(0).ok_or(Verdict::Drop(DropReason::FragmentLost))?;
    // The kernel may reuse a displaced element for another fragment, so the key inside is compared too.
    let mut take =
        |held: &Held| if held.fragment == *fragment { packet.become_held(held) } else { None };
    let taken = tables.read_held(fragment, &mut take).flatten();
    // The fragment may have come by another interface: with the address of that one it would be a packet for another
    // host here (`eth_type_trans` in net/ethernet/eth.c).
    let taken = taken.and_then(|()| packet.write(0, to));
    taken.ok_or(Verdict::Drop(DropReason::FragmentLost))?;
    tables.remove_held(fragment);
    Err(Verdict::Returned(Return::Fragment))
}

/// Gives a later fragment that goes out the ports of its datagram. Without them it passes unchanged: ports are never
/// guessed. A first one ends the record of an earlier datagram: it may belong to no flow, and then records nothing.
#[inline(always)]
pub(super) fn recall<T: Clock + Fragments + Node + Services>(
    tables: &T,
    Scratch { headers, .. }: &mut Scratch,
) -> Step<()> {
    let fragment = key(headers);
    let known = known(tables, &fragment);
    if headers.view.piece != Piece::Later
        && let Some(mut earlier) = known
    {
        earlier.end(tables.now());
        tables.put_fragment(&fragment, &earlier);
    }
    if headers.view.piece == Piece::First {
        return Ok(());
    }
    if headers.view.piece == Piece::Short {
        return Err(Verdict::Pass(PassReason::Malformed));
    }
    let ports = known.ok_or(Verdict::Pass(PassReason::UnknownFragment))?;
    headers.key.tuple.source_port = ports.source;
    headers.key.tuple.destination_port = ports.destination;
    Ok(())
}

/// Stores the ports of a first fragment that is being translated.
#[inline(always)]
pub(super) fn remember<T: Clock + Fragments + Node + Services>(
    tables: &T,
    headers: &Headers,
    fragment: &mut Fragment,
) {
    if headers.view.piece == Piece::First {
        remember_first(tables, headers, fragment);
    }
}

#[inline(never)]
fn remember_first<T: Clock + Fragments + Node + Services>(
    tables: &T,
    headers: &Headers,
    fragment: &mut Fragment,
) {
    *fragment = key(headers);
    let known = known(tables, fragment).unwrap_or_default();
    write(tables, headers, fragment, known.waiting(), known.passed);
}

#[inline(always)]
fn write<T: Clock + Fragments + Node + Services>(
    tables: &T,
    headers: &Headers,
    fragment: &Fragment,
    held: u16,
    passed: u16,
) {
    let Tuple { source_port: source, destination_port: destination, .. } = headers.key.tuple;
    let ports = Ports { source, destination, held, written: Ports::time(tables.now()), passed };
    if !tables.put_fragment(fragment, &ports) {
        tables.count(Event::FragmentTableFull);
    }
}

#[cfg(test)]
mod tests;
