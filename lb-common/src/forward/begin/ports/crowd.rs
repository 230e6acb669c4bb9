//! A client whose datagrams have many of the source ports towards a backend.
//!
//! A client that cycles through its own ports, and is answered, has a protected flow for each of them after a while.
//! Netfilter masquerades with 64,512 ports, as many as one client has; the range of a node is smaller, and may be all
//! taken. If a client has several of the ports that a new flow tries, one of its flows gives up its port to the new
//! flow, and its next datagram leaves from another port. A client that has two of some sixty ports probably has a large
//! part of all. Datagrams of the backend to the old port reach the client of the new flow.

use crate::addr::{Ip, Protocol};
use crate::flow::{Flow, FlowKey, Kind};
use crate::forward::PortSearch;

/// Whether a flow belongs to the client that was found to crowd others out, and can give its port up while it is in
/// use. A TCP connection or an SCTP association would break.
#[inline(always)]
pub(super) fn is_crowds(search: &PortSearch, reply: &FlowKey, occupant: &Flow) -> bool {
    may_move(reply, occupant) && occupant.to.destination == search.crowd
}

/// Notes the client of the flow that has a tried port. True in the last round, if that client has another one of the
/// ports tried: before, a free port may still be found.
#[inline(always)]
pub(super) fn has_another(search: &mut PortSearch, reply: &FlowKey, occupant: &Flow) -> bool {
    // The first half of the tries takes no port of a protected flow in use: one that is free, or that of a transient or
    // idle flow, may be found, and most searches end there (ADR 0025).
    if search.tried <= PortSearch::MOST / 2 || !may_move(reply, occupant) {
        return false;
    }
    if search.crowd == Ip::UNSPECIFIED {
        search.crowd = occupant.to.destination;
        return false;
    }
    let is_crowds = is_crowds(search, reply, occupant);
    search.has_crowd |= is_crowds;
    is_crowds && search.tried > PortSearch::MOST - PortSearch::ROUND
}

/// Forgets a client at the begin of a round, if the round before has found no second port of it.
#[inline(always)]
pub(super) const fn begin_round(search: &mut PortSearch) {
    if !search.has_crowd {
        search.crowd = Ip::UNSPECIFIED;
    }
}

#[inline(always)]
const fn may_move(reply: &FlowKey, occupant: &Flow) -> bool {
    // The client of a masqueraded flow keeps its own port, and its next datagram gets another one where it leaves.
    // Without a masquerade, the tried port may be the client's own.
    reply.protocol.0 == Protocol::UDP.0 && matches!(occupant.kind, Kind::UNMASQUERADE)
}
