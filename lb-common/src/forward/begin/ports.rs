//! Source ports of flows: the client's own if it is unique, otherwise a reserved one.

mod crowd;
pub(in crate::forward) mod masquerade;
mod over;
mod search;
#[cfg(test)]
mod tests;

pub(in crate::forward) use self::over::is_over;
use self::search::try_port;
use crate::addr::Ip;
use crate::config::Settings;
use crate::event::{DropReason, Event, Verdict};
use crate::flow::{Entry, Flow, FlowKey, Kind};
use crate::forward::{
    Choice, Pair, PortSearch, Reservation, Role, Scratch, Step, inherited, own, ready,
};
use crate::hash;
use crate::packet::Packet;
use crate::service::{Backend, Flags};
use crate::tables::{Added, Clock, Filters, Flows, Node, Tables};
use crate::wire::Headers;

/// Takes the reply tuple of the flow in the making. The source port changes where the tuple belongs to another live
/// flow, or its client may use its port for the backend directly.
#[inline(always)]
pub(in crate::forward) fn reserve<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers: Headers { key, .. }, choice, begin, pair, search, role, .. } = scratch;
    let is_first = !search.has_begun;
    search.has_begun = true;
    // Where the client may use its port to talk to the backend directly, both replies would have one tuple (ADR 0013).
    let may_keep = is_first
        && (begin.port_stays
            || !is_remote_pods_request(settings, *role, &key.tuple.source, choice))
        && !tables.is_direct(hash::whole(&pair.forward.to, key.protocol));
    let reservation = if may_keep {
        keep(packet, tables, settings, pair, search)
    } else if begin.port_stays {
        // The CRC32c of a fragmented SCTP packet cannot be updated, so its port cannot change.
        Err(DropReason::SctpChecksum)
    } else {
        shift(packet, tables, settings, key, pair, search)
    };
    reserved(pair, reservation)
}

/// Takes a reply tuple for a flow of this host, whose source is an address of this node.
///
/// The port is always one of the reserved range, since the process may use its own port for the backend directly.
#[inline(always)]
pub(in crate::forward) fn own<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    let settings = ready(tables)?;
    let Scratch { headers: Headers { key, .. }, pair, search, .. } = scratch;
    let reservation = try_port(packet, tables, settings, key, pair, search, true);
    reserved(pair, reservation)
}

#[inline(always)]
const fn reserved(pair: &mut Pair, reservation: Result<Reservation, DropReason>) -> Step<()> {
    match reservation {
        Ok(reservation) => {
            pair.reservation = reservation;
            Ok(())
        }
        Err(reason) => Err(Verdict::Drop(reason)),
    }
}

/// Takes the reply tuple with the client's own port, or leaves it to a later try. Never returns [`Reservation::Taken`].
#[inline(always)]
fn keep<P: Packet, T: Clock + Flows + Filters + Node>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    pair: &mut Pair,
    search: &mut PortSearch,
) -> Result<Reservation, DropReason> {
    // The client's own port is tried once only, so records of connections of the node count here.
    let reservation = take(packet, tables, settings, pair, true)?;
    if reservation != Reservation::Taken {
        return Ok(reservation);
    }
    let Pair { reply, occupant, occupant_opposite, .. } = pair;
    // The reply was made for this packet, so its time is the present.
    if !is_over(tables, &reply.key, occupant, reply.flow.seen, occupant_opposite) {
        search.goes_on = true;
        return Err(DropReason::PortsExhausted);
    }
    // The forward entry of the flow that is over, if any is left, no longer finds a reply of its own.
    put(tables, reply)
}

/// Puts a reply in place of the entry that has its key.
#[inline(always)]
fn put<T: Flows>(tables: &T, reply: &Entry) -> Result<Reservation, DropReason> {
    // The entry is overwritten at once: between a removal and an addition another CPU could take the key.
    let put = tables.put_flow(&reply.key, &reply.flow);
    if put { Ok(Reservation::Made) } else { Err(DropReason::FlowTableFull) }
}

/// Takes the reply tuple with another port. Never returns [`Reservation::Taken`].
#[inline(always)]
fn shift<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    key: &FlowKey,
    pair: &mut Pair,
    search: &mut PortSearch,
) -> Result<Reservation, DropReason> {
    let reservation = try_port(packet, tables, settings, key, pair, search, false)?;
    tables.count(Event::PortShifted);
    Ok(reservation)
}

/// Whether a pod of another node reaches a backend of this node through an external frontend.
///
/// The pod's own node may translate another connection from the same port, by a ClusterIP, to the very same backend,
/// and that connection never gets a flow on this node.
#[inline(never)]
fn is_remote_pods_request(settings: &Settings, role: Role, source: &Ip, choice: &Choice) -> bool {
    role == Role::External
        && choice.service.flags.has(Flags::EXTERNAL)
        && choice.backend.flags & Backend::LOCAL != 0
        && settings.node.is_pod(source) == Some(true)
}

/// Puts the reply under its key, unless another flow has that key: see [`add_reply`].
///
/// A reply of the same flow counts as success: of two first packets at once, on two CPUs, the later one takes the port
/// that the earlier one found. A tuple that netfilter or a socket of this node uses counts as a protected flow's; with
/// `counts_records`, so does one that is recorded for a connection of this node.
#[inline(always)]
fn take<P: Packet, T: Clock + Flows + Filters>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    pair: &mut Pair,
    counts_records: bool,
) -> Result<Reservation, DropReason> {
    let answers = &pair.reply.key;
    // These tests precede the addition: other CPUs would see an entry that is withdrawn again.
    if inherited::conflicts(tables, settings, answers)
        || own::conflicts(packet, tables, settings, answers, counts_records)
    {
        // The occupant is no flow of this data path: it cannot be displaced, and is never idle.
        (pair.occupant.flags, pair.occupant.seen) = (Flow::PROTECTED, u64::MAX);
        pair.occupant.kind = Kind::default();
        return Ok(Reservation::Taken);
    }
    let reservation = add_reply(tables, pair)?;
    let Entry { key, flow } = &pair.reply;
    // An entry that was found may be that of an earlier flow between the same ends, with its time, its interface and
    // its epoch, so it is written again.
    if reservation == Reservation::Found && !tables.put_flow(key, flow) {
        return Err(DropReason::FlowTableFull);
    }
    Ok(reservation)
}

/// Makes sure that the reply is in the table under its key, unless another flow has that key: then its entry becomes
/// the occupant.
#[inline(always)]
pub(super) fn add_reply<T: Flows>(tables: &T, pair: &mut Pair) -> Result<Reservation, DropReason> {
    let Pair { reply, occupant, .. } = pair;
    match tables.add_flow(&reply.key, &reply.flow) {
        Added::Yes => Ok(Reservation::Made),
        Added::Full => Err(DropReason::FlowTableFull),
        Added::Taken => {
            let found = tables.flow(&reply.key, occupant) && occupant.to == reply.flow.to;
            Ok(if found { Reservation::Found } else { Reservation::Taken })
        }
    }
}
