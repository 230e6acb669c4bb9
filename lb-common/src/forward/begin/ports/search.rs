//! The search for a source port towards a backend, where other flows may have some of the ports.

use super::over::{end_idle, end_idle_masquerade, last_seen, stale};
use super::{crowd, put, take};
use crate::addr::{Port, Protocol};
use crate::config::Settings;
use crate::event::{DropReason, Event};
use crate::flow::{Entry, FlowKey, Kind, Tuple};
use crate::forward::life::tiers;
use crate::forward::{Pair, PortSearch, Reservation};
use crate::hash;
use crate::packet::Packet;
use crate::service::Frontend;
use crate::tables::{Clock, Flows, Services, Tables};

/// The number of failed tries from which a reservation counts as scarce (`Event::PortsScarce`).
const SCARCE: u32 = PortSearch::ROUND / 2;
/// The step from one try to the next: odd, and far from any part of the range (2^32 by the golden ratio).
pub(super) const NEXT: u32 = 0x9e37_79b9;

/// Tries one source port towards the backend, for the forward entry and for the key of its reply.
///
/// `client`: the key of the client's packet. `is_own`: the source is an address of this node, where `NodePorts` are.
///
/// Where all ports of a round are taken, the transient flow that was silent for longest gives its own up: a flood of
/// unanswered requests takes no port away. In the last round protected flows of datagrams count as well, if their
/// client has several of the ports ([`crowd`]). [`PortSearch::goes_on`] requests the next try.
#[inline(always)]
pub(super) fn try_port<P: Packet, T: Tables>(
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
        // This call precedes the conditions below, which may skip a term: it has to see every occupied port, to find
        // the second one of a client.
        let crowds = crowd::has_another(search, &reply.key, occupant);
        let (key, now) = (&reply.key, reply.flow.seen);
        // An idle flow of a crowd ends as a whole, so that case precedes the one of a crowd.
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
    // Without a candidate `silent_since` is the largest time, and the silence 0.
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
pub(super) const fn wish(tuple: &Tuple, protocol: Protocol) -> u32 {
    // Half of the bits of the hash, so that adding the port does not wrap.
    (hash::client(tuple, protocol) >> 16) + tuple.source_port.get() as u32
}

/// The port at the position `wish` of a range for translated sources, modulo its width.
#[inline(always)]
pub(super) const fn source_port((low, high): (u16, u16), wish: u32) -> Port {
    // The width is never 0, so the compiler adds no panic for the division, which the verifier would refuse.
    let width = high.saturating_sub(low) as u32 + 1;
    Port::new(low + (wish % width) as u16)
}
