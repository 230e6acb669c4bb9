//! Source ports of flows: the client's own if it is unique, else a reserved one.

mod masquerade;
#[cfg(test)]
mod tests;

pub(super) use self::masquerade::masquerade;
use super::choose::SECOND;
use super::parts::{Part, Parts, end};
use super::{Role, inherited};
use crate::addr::{Port, Protocol};
use crate::config::Settings;
use crate::event::{DropReason, Event, PassReason, Verdict};
use crate::flow::{Flow, Kind, Side, Tuple};
use crate::hash;
use crate::scratch::{Scratch, Search};
use crate::service::{Backend, Flags, Frontend};
use crate::tables::{Added, Tables};

/// Ports tried in one round, ...
const ROUND: u32 = 16;
/// ... how many make it known that they run out, ...
const SCARCE: u32 = ROUND / 2;
/// ... and tries before a flow is refused: as many as netfilter begins with (`NF_NAT_MAX_ATTEMPTS`).
const MOST: u32 = 8 * ROUND;
/// With one more for the client's own port.
const CALLS: u32 = MOST + 1;
/// From one try to the next: odd, and far from any part of the range (2^32 by the golden ratio).
const NEXT: u32 = 0x9e37_79b9;
/// Nanoseconds of silence after which the port of a displaceable flow is free: no such flow lives longer unanswered.
const STALE: u64 = 60 * SECOND;

/// The outcome of a reservation of the key that a new flow needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservation {
    /// This packet made the entry, which is removed if the flow fails.
    #[default]
    Made,
    /// Another packet of the same flow made it, at once on another CPU or before: it stays.
    Found,
    /// The key belongs to another flow.
    Taken,
}

/// Runs a part that looks for a source port, try by try.
///
/// VERIFIER: each try is a call of its own. In a loop within the part the verifier would walk all of them.
#[inline(always)]
pub(super) fn tries<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    part: Part,
) -> bool {
    scratch.search = Search::default();
    // VERIFIER: an inclusive range would triple what is walked.
    for _ in 0..CALLS {
        scratch.search.goes_on = false;
        if !packet.part(tables, scratch, part) {
            return false;
        }
        if !scratch.search.goes_on {
            break;
        }
    }
    true
}

/// Takes the reply tuple of the flow in `scratch.flow`. Where it belongs to another live flow, or its client may use it to
/// talk to the backend directly, the source port is shifted.
#[inline(always)]
pub(super) fn reserve<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    let is_first = !scratch.search.has_begun;
    scratch.search.has_begun = true;
    let reservation = if is_first && may_keep(tables, settings, scratch) {
        keep(tables, settings, scratch)
    } else if scratch.begin.port_stays {
        // The CRC32c of a fragmented SCTP packet cannot be updated, so its port cannot change.
        Err(DropReason::SctpChecksum)
    } else {
        shift(tables, settings, scratch)
    };
    reserved(scratch, reservation)
}

/// Takes a reply tuple for a flow of this host, whose source is an address of this node: always with a port of our range,
/// for the process may use its own port to talk to the backend directly.
#[inline(always)]
pub(super) fn own<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    scratch.frontend =
        Frontend::node_port(scratch.flow.to.source, Port::NONE, scratch.key.protocol);
    let reservation = seek(tables, settings, scratch, true);
    reserved(scratch, reservation)
}

#[inline(always)]
const fn reserved(scratch: &mut Scratch, reservation: Result<Reservation, DropReason>) -> bool {
    match reservation {
        Ok(reservation) => {
            scratch.reservation = reservation;
            false
        }
        Err(reason) => end(scratch, Verdict::Drop(reason)),
    }
}

/// Whether the client may keep its port: where it may use it to talk to the backend directly, both replies would have one
/// tuple (ADR 0013).
#[inline(always)]
fn may_keep<T: Tables>(tables: &T, settings: &Settings, scratch: &Scratch) -> bool {
    (scratch.begin.port_stays || !is_pods_question(settings, scratch))
        && !tables.is_direct(hash::whole(&scratch.flow.to, scratch.key.protocol))
}

/// Takes the reply tuple with the client's own port, or leaves it to a later try. Never [`Reservation::Taken`].
#[inline(always)]
fn keep<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<Reservation, DropReason> {
    let reservation = take(tables, settings, scratch)?;
    if reservation != Reservation::Taken {
        return Ok(reservation);
    }
    if !is_over(tables, scratch) {
        scratch.search.goes_on = true;
        return Err(DropReason::PortsExhausted);
    }
    // Its forward entry, if any is left, finds no reply of its own any more.
    let put = tables.put_flow(&scratch.opposite_key, &scratch.opposite);
    if put { Ok(Reservation::Made) } else { Err(DropReason::FlowTableFull) }
}

/// Takes the reply tuple with another port. Never [`Reservation::Taken`].
#[inline(always)]
fn shift<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<Reservation, DropReason> {
    let reservation = seek(tables, settings, scratch, false)?;
    tables.count(Event::PortShifted);
    Ok(reservation)
}

/// Whether a pod asks from another node what a backend of this one answers. Its own node may translate another connection of
/// its port, by a ClusterIP, to the very same backend, and that one never gets a flow on this node.
#[inline(never)]
fn is_pods_question(settings: &Settings, scratch: &Scratch) -> bool {
    scratch.role == Role::Edge
        && scratch.service.flags.has(Flags::EXTERNAL)
        && scratch.backend.flags & Backend::LOCAL != 0
        && settings.is_pod(&scratch.key.tuple.source) == Some(true)
}

/// Puts the opposite where its key says, unless another flow is there: see [`stand`].
///
/// One of the same flow is as good: of two first packets at once, on two CPUs, the later one takes the port
/// that the earlier one found. A tuple that netfilter uses is as good as a protected flow's.
#[inline(always)]
fn take<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<Reservation, DropReason> {
    if inherited::has_answers(tables, settings, scratch) {
        scratch.other.flags = Flow::PROTECTED;
        return Ok(Reservation::Taken);
    }
    let reservation = stand(tables, scratch)?;
    if reservation == Reservation::Found
        && !tables.put_flow(&scratch.opposite_key, &scratch.opposite)
    {
        return Err(DropReason::FlowTableFull);
    }
    Ok(reservation)
}

/// Sees to it that the opposite stands where its key says, unless another flow is there, which then lies in `scratch.other`.
#[inline(always)]
pub(super) fn stand<T: Tables>(
    tables: &T,
    scratch: &mut Scratch,
) -> Result<Reservation, DropReason> {
    match tables.add_flow(&scratch.opposite_key, &scratch.opposite) {
        Added::Yes => Ok(Reservation::Made),
        Added::Full => Err(DropReason::FlowTableFull),
        Added::Taken => {
            let found = tables.flow(&scratch.opposite_key, &mut scratch.other)
                && scratch.other.to == scratch.opposite.to;
            Ok(if found { Reservation::Found } else { Reservation::Taken })
        }
    }
}

/// Whether the reply in `scratch.other`, whose key is `scratch.opposite_key`, is of a flow that is over: displaceable, and
/// closed by both ends, reset, or silent for long. A protected one is never given away.
#[inline(never)]
pub(super) fn is_over<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let Scratch { other, other_key, opposite_key, .. } = scratch;
    if other.is_protected() {
        return false;
    }
    if other.shown.rst != 0 || scratch.opposite.seen.saturating_sub(other.seen) >= STALE {
        return true;
    }
    if other.shown.fin == 0 {
        return false;
    }
    opposite_key.write_opposite(other, other_key);
    let has_forward = tables.flow(other_key, other);
    !has_forward || other.shown.fin | other.shown.rst != 0
}

/// Tries one source port towards the backend, for the flow and for the key of its opposite. `is_own`: on an address of this
/// node, that of `scratch.frontend`, where `NodePorts` are.
///
/// Where all ports of a round are taken, the displaceable flow that was silent for longest gives its own up: a flood of
/// questions that nobody answers takes no port away. `scratch.search.goes_on` asks for the next try.
#[inline(always)]
fn seek<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    is_own: bool,
) -> Result<Reservation, DropReason> {
    let tried = scratch.search.tried;
    if tried.is_multiple_of(ROUND) {
        (scratch.search.oldest, scratch.search.silent_since) = (Port::NONE, u64::MAX);
    }
    scratch.search.tried = tried + 1;
    let ports = settings.source_ports(scratch.key.tuple.source_port);
    let wish = wish(&scratch.key.tuple, scratch.key.protocol);
    let port = source_port(ports, wish.wrapping_add(NEXT.wrapping_mul(tried)));
    scratch.opposite_key.tuple.destination_port = port;
    // A reply to a NodePort's number would be taken for a request to it.
    let is_node_port = is_own && {
        scratch.frontend.port = port;
        tables.knows(&scratch.frontend)
    };
    if !is_node_port {
        let reservation = take(tables, settings, scratch)?;
        if reservation != Reservation::Taken {
            if tried >= SCARCE {
                tables.count(Event::PortsScarce);
            }
            scratch.flow.to.source_port = port;
            return Ok(reservation);
        }
        tables.count(Event::PortTaken);
        if !scratch.other.is_protected() && scratch.other.seen < scratch.search.silent_since {
            (scratch.search.oldest, scratch.search.silent_since) = (port, scratch.other.seen);
        }
    }
    // Silent for so long, that flow is over: more tries would only cost time.
    let silence = scratch.opposite.seen.saturating_sub(scratch.search.silent_since);
    let is_last = scratch.search.tried.is_multiple_of(ROUND) || silence >= STALE;
    if !is_last || scratch.search.oldest == Port::NONE {
        scratch.search.goes_on = scratch.search.tried != MOST;
        return Err(DropReason::PortsExhausted);
    }
    scratch.flow.to.source_port = scratch.search.oldest;
    scratch.opposite_key.tuple.destination_port = scratch.search.oldest;
    displace(tables, scratch)
}

/// Takes the key of the opposite away from the displaceable flow that has it. A masquerade of that flow goes as well: its
/// next packet gets another source.
#[inline(never)]
fn displace<T: Tables>(tables: &T, scratch: &mut Scratch) -> Result<Reservation, DropReason> {
    if tables.flow(&scratch.opposite_key, &mut scratch.other)
        && scratch.other.kind == Kind::UNMASQUERADE
    {
        scratch.other_key = scratch.opposite_key;
        scratch.other.to.write_reversed(&mut scratch.other_key.tuple);
        scratch.other_key.side = Side::EGRESS;
        // Its flow may have another source by now: then it is not the one that gives its port up.
        let has_masquerade = tables.flow(&scratch.other_key, &mut scratch.other);
        if has_masquerade && scratch.other.to.is_reverse_of(&scratch.opposite_key.tuple) {
            tables.remove_flow(&scratch.other_key);
        }
    }
    tables.count(Event::PortDisplaced);
    let put = tables.put_flow(&scratch.opposite_key, &scratch.opposite);
    if put { Ok(Reservation::Made) } else { Err(DropReason::FlowTableFull) }
}

/// Which port of the range to try first. The ports of one client become as many others: the backend remembers each
/// connection for a minute (`TIME_WAIT`) and takes a new one from the same port only when its client is the same.
#[inline(always)]
const fn wish(tuple: &Tuple, protocol: Protocol) -> u32 {
    // Half of the bits, so that adding the port does not wrap.
    (hash::client(tuple, protocol) >> 16) + tuple.source_port.get() as u32
}

/// A port of a range for translated sources.
#[inline(always)]
const fn source_port((low, high): (u16, u16), wish: u32) -> Port {
    let width = high.saturating_sub(low) as u32 + 1;
    Port::new(low + (wish % width) as u16)
}
