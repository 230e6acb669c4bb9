//! Source ports of flows: the client's own if it is unique, otherwise a reserved one.

mod crowd;
pub(in crate::forward) mod masquerade;
mod over;
#[cfg(test)]
mod tests;

pub(in crate::forward) use self::over::is_over;
use self::over::{end_idle, end_idle_masquerade, last_seen, stale};
use crate::addr::{Ip, Port, Protocol};
use crate::config::Settings;
use crate::event::{DropReason, Event, Verdict};
use crate::flow::{Entry, Flow, FlowKey, Kind, Tuple};
use crate::forward::life::tiers;
use crate::forward::{
    Choice, Pair, PortSearch, Reservation, Role, Scratch, Step, inherited, own, ready,
};
use crate::hash;
use crate::packet::Packet;
use crate::service::{Backend, Flags, Frontend};
use crate::tables::{Added, Clock, Filters, Flows, Node, Services, Tables};
use crate::wire::Headers;

/// The number of failed tries from which a reservation counts as scarce (`Event::PortsScarce`).
const SCARCE: u32 = PortSearch::ROUND / 2;
/// The step from one try to the next: odd, and far from any part of the range (2^32 by the golden ratio).
const NEXT: u32 = 0x9e37_79b9;

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

/// Whether a source in the making, the destination of these replies, is that of a frontend: a `NodePort`, or an external
/// IP that is an address of this node.
///
/// A reply would be taken for a request to it: one to a `NodePort` on this node, one to an external IP on the backend's
/// node, too.
#[inline(always)]
fn is_of_frontend<T: Services>(tables: &T, settings: &Settings, replies: &FlowKey) -> bool {
    let Tuple { destination: own, destination_port: port, .. } = replies.tuple;
    tables.knows(&Frontend::node_port(own, port, replies.protocol))
        || settings.services.may_be_vip(&own)
            && tables.knows(&Frontend::new(own, port, replies.protocol))
}

/// Tries one source port towards the backend, for the forward entry and for the key of its reply.
///
/// `client`: the key of the client's packet. `is_own`: the source is an address of this node, where `NodePorts` are.
///
/// Where all ports of a round are taken, the transient flow that was silent for longest gives its own up: a flood of
/// unanswered requests takes no port away. In the last round protected flows of datagrams count as well, if their
/// client has several of the ports ([`crowd`]). [`PortSearch::goes_on`] requests the next try.
#[inline(always)]
fn try_port<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    client: &FlowKey,
    pair: &mut Pair,
    search: &mut PortSearch,
    is_own: bool,
) -> Result<Reservation, DropReason> {
    let tried = search.tried;
    if tried.is_multiple_of(PortSearch::ROUND) {
        (search.oldest, search.silent_since) = (Port::NONE, u64::MAX);
        crowd::begin_round(search);
    }
    search.tried = tried + 1;
    let ports = settings.node.source_ports(client.tuple.source_port);
    let wish = wish(&client.tuple, client.protocol);
    let port = source_port(ports, wish.wrapping_add(NEXT.wrapping_mul(tried)));
    pair.reply.key.tuple.destination_port = port;
    let replies = &pair.reply.key;
    // A server of this node and its client must not be one end.
    let is_itself = replies.tuple.is_reverse_of(&replies.tuple);
    if !(is_own && (is_itself || is_of_frontend(tables, settings, replies))) {
        // The record of an own connection outlives the connection: after one round of such ports, it no longer refuses
        // a flow.
        let reservation = take(packet, tables, settings, pair, tried < PortSearch::ROUND)?;
        if reservation != Reservation::Taken {
            if tried >= SCARCE {
                tables.count(Event::PortsScarce);
            }
            pair.forward.to.source_port = port;
            return Ok(reservation);
        }
        tables.count(Event::PortTaken);
        let Pair { reply, occupant, occupant_opposite, .. } = pair;
        let crowds = crowd::has_another(search, &reply.key, occupant);
        let (key, now) = (&reply.key, reply.flow.seen);
        let may_go = !occupant.is_protected()
            || if occupant.kind == Kind::UNMASQUERADE {
                end_idle_masquerade(tables, key, occupant, now, occupant_opposite)
            } else {
                end_idle(tables, key, occupant, now, occupant_opposite)
            }
            || crowds;
        // The other direction may have been seen later, never earlier, so only a flow that may be the oldest needs its
        // lookup.
        if may_go && occupant.seen < search.silent_since {
            let seen = last_seen(tables, &reply.key, occupant, occupant_opposite);
            if seen < search.silent_since {
                (search.oldest, search.silent_since) = (port, seen);
            }
        }
    }
    // A flow that was silent for so long is over: more tries would only cost time.
    let silence = pair.reply.flow.seen.saturating_sub(search.silent_since);
    let is_last = search.tried.is_multiple_of(PortSearch::ROUND)
        || silence >= stale(settings, client.protocol);
    if !is_last || search.oldest == Port::NONE {
        search.goes_on = search.tried != PortSearch::MOST;
        return Err(DropReason::PortsExhausted);
    }
    pair.forward.to.source_port = search.oldest;
    pair.reply.key.tuple.destination_port = search.oldest;
    let displaced = displace(tables, pair, search)?;
    if displaced == Reservation::Taken {
        (search.oldest, search.silent_since) = (Port::NONE, u64::MAX);
        search.goes_on = search.tried != PortSearch::MOST;
        return Err(DropReason::PortsExhausted);
    }
    Ok(displaced)
}

/// Puts the reply in place of the flow that has its key. The masquerade of that flow is removed, so that its next
/// packet gets another source.
///
/// [`Reservation::Taken`] where both ends of that flow have spoken since the search found it: a protected flow keeps
/// its port, unless its client crowds the others out. The same where a packet on another CPU has used the entry since,
/// which may be the first one of another flow: the reply to it would reach the wrong client.
#[inline(never)]
fn displace<T: Flows + Clock>(
    tables: &T,
    pair: &mut Pair,
    search: &PortSearch,
) -> Result<Reservation, DropReason> {
    let Pair { reply, occupant, occupant_opposite, .. } = pair;
    let is_there = tables.flow(&reply.key, occupant);
    if is_there && occupant.to == reply.flow.to {
        // Another packet of this flow has taken the port meanwhile.
        return Ok(Reservation::Found);
    }
    if is_there && occupant.is_protected() {
        if !crowd::is_crowds(search, &reply.key, occupant) {
            return Ok(Reservation::Taken);
        }
        tiers::release_masqueraded(tables, &reply.key, occupant, occupant_opposite);
    } else if is_there && occupant.seen > search.silent_since {
        return Ok(Reservation::Taken);
    }
    // The write follows the check at once: another CPU could put a flow between them.
    let put = put(tables, reply)?;
    if is_there && occupant.kind == Kind::UNMASQUERADE {
        let Entry { key, flow } = occupant_opposite;
        reply.key.write_opposite(occupant, key);
        // The flow may have another source by now: then its masquerade does not hold this port, and stays.
        if tables.flow(key, flow) && flow.to.is_reverse_of(&reply.key.tuple) {
            tables.remove_flow(key);
        }
    }
    tables.count(Event::PortDisplaced);
    Ok(put)
}

/// Which port of the range to try first.
///
/// Each port of one client leads to another port of the range, because a backend in `TIME_WAIT` (a minute) accepts a
/// new connection from the same port only from the same client.
#[inline(always)]
const fn wish(tuple: &Tuple, protocol: Protocol) -> u32 {
    // Half of the bits of the hash, so that adding the port does not wrap.
    (hash::client(tuple, protocol) >> 16) + tuple.source_port.get() as u32
}

/// The port at the position `wish` of a range for translated sources, modulo its width.
#[inline(always)]
const fn source_port((low, high): (u16, u16), wish: u32) -> Port {
    let width = high.saturating_sub(low) as u32 + 1;
    Port::new(low + (wish % width) as u16)
}
