//! Whether a packet belongs to the flow that was found for it, or begins another flow.

use crate::addr::Protocol;
use crate::config::Settings;
use crate::event::{DropReason, Event};
use crate::flow::Flow;
use crate::forward::choose::SECOND;
use crate::forward::{Found, Refusal, Role};
use crate::packet::Packet;
use crate::service::Service;
use crate::tables::{Clock, Flows, Services};
use crate::wire::{View, tcp};

/// Nanoseconds of silence after which a SYN may take the tuple of an open connection whose backend was removed, if the
/// backend does not answer.
const ABANDONED: u64 = 120 * SECOND;
/// Steps of [`Flow::note`] after which a SYN counts as unanswered, 1.1 to 2.2 s: more than the second after which a
/// client sends it again. The third SYN comes after 2 s (Linux 6.5 and later) or 3 s, and usually counts.
const PATIENCE: u16 = 2;
/// Steps of [`Flow::note`] for which a SYN counts as unanswered: less than [`ABANDONED`], so that no packet came after
/// it, and longer than the longest interval between two SYNs of a client.
const NOTED: u16 = (ABANDONED >> Flow::NOTE_BITS) as u16 - 1;

/// Whether a packet may follow the flow found for it without another lookup of its frontend. `is_answer`: its
/// destination can only be a translated source.
///
/// A TCP connection or an SCTP association continues whatever happens to its frontend and its backend (contract 5). A
/// flow of datagrams continues if its backend still exists, and no frontend was removed since its own was last looked
/// up. [`still_good`] decides about all others, and about a SYN or INIT. A SYN is never a reply.
#[inline(always)]
pub(in crate::forward) fn is_current<T: Clock + Flows + Services>(
    tables: &T,
    settings: &Settings,
    flow: &Flow,
    view: &View,
    role: Role,
    is_answer: bool,
) -> bool {
    if flow.is_answer() {
        return is_answer && !view.is_syn();
    }
    if view.protocol != Protocol::UDP {
        return !view.is_opening();
    }
    flow.frontends_epoch == settings.services.frontends_epoch
        && tables.epoch(flow.backend) == flow.epoch
        && !is_of_forger(flow, role)
}

/// Whether a pod of this node began a flow whose packet comes from outside: the pod has forged the source, and the
/// replies would not reach the client. In a protected flow the client has proven its address by way of the pod's
/// interface, so that the packet from outside is the forged one.
#[inline(always)]
fn is_of_forger(flow: &Flow, role: Role) -> bool {
    role == Role::External && flow.flags & Flow::OF_POD != 0 && !flow.is_protected()
}

/// Whether a reply that leaves by an external interface is translated later: at the pod's interface by which the
/// client's packets came. The switch of a CNI plugin or the network between them sees both directions of the flow with
/// the backend's address, and drops packets that fit no connection of theirs (ADR 0003).
#[inline(always)]
pub(in crate::forward) fn is_translated_later<P: Packet>(
    packet: &P,
    flow: &Flow,
    role: Role,
) -> bool {
    // The interface may have been taken for a pod's when the flow began.
    role == Role::External
        && flow.flags & Flow::OF_POD != 0
        && flow.client_device != packet.device()
}

/// Whether a packet may follow the flow found for it, or needs a new choice of backend.
///
/// The choice is new for datagrams and INITs in flows whose backend or service was removed. For TCP it is new where a
/// SYN meets a closed connection. The same holds for an unanswered connection whose backend was removed, and for an
/// idle one if that backend has not answered an earlier SYN. An unprotected flow that a pod began in the name of a
/// client outside ends with a SYN, INIT or datagram of that client.
///
/// An INIT does not wait for silence as a SYN does ([`takes_syn`]): no entry shows whether an association has ended,
/// and clients with a fixed port open the next one from that port (ADR 0025).
#[inline(always)]
pub(in crate::forward) fn still_good<T: Clock + Flows + Services>(
    tables: &T,
    settings: &Settings,
    view: &View,
    role: Role,
    found: &mut Found,
    service: &Service,
) -> bool {
    if !found.flow.is_forward() {
        return false;
    }
    let flow = &found.flow;
    let is_of_forger = is_of_forger(flow, role);
    // A segment of an open connection stays with its backend, which alone knows the connection (contract 5).
    if view.protocol == Protocol::TCP && !(is_of_forger && view.is_syn()) {
        return !view.is_syn() || takes_syn(tables, found, service);
    }
    // Datagrams move at once, as with kube-proxy, which deletes their conntrack entries (contract 5).
    let live = !is_of_forger && is_live(tables, flow, service.id);
    if !live {
        tables.count(Event::FlowRenewed);
    } else if flow.frontends_epoch != settings.services.frontends_epoch {
        // The next packets need no lookup of the frontend until another one is removed (ADR 0015).
        // The search has read this epoch before the service, so a removal between the two is not confirmed.
        tables.confirm_flow(&found.key, settings.services.frontends_epoch, flow.noted);
    }
    live
}

/// Whether the backend of a flow still serves the service for which it was chosen.
#[inline(always)]
fn is_live<T: Services>(tables: &T, flow: &Flow, service: u32) -> bool {
    flow.service == service && tables.epoch(flow.backend) == flow.epoch
}

/// Whether a SYN belongs to the flow that has its tuple already.
///
/// In an open connection the SYN may be a duplicate or forged: it goes to the backend that the connection has, which
/// answers with a challenge (RFC 9293 3.10.7.4). A client that has forgotten the connection resets it then, and its
/// next SYN begins another one.
#[inline(never)]
fn takes_syn<T: Clock + Flows + Services>(
    tables: &T,
    found: &mut Found,
    service: &Service,
) -> bool {
    let has_opposite = found.find_opposite(tables);
    let (flow, opposite) = (&found.flow, &found.opposite.flow);
    // A flow without a reply entry begins again, as after a displacement: the same tuple gets the same backend
    // (ADR 0025).
    if !has_opposite || flow.shown.is_over(opposite.shown) {
        tables.count(Event::FlowReused);
        return false;
    }
    if is_live(tables, flow, service.id) {
        return true;
    }
    let is_open = flow.shown.established & opposite.shown.established != 0;
    // SYNs do not renew these times (`flows::record`), so a client that repeats its SYN gets another backend in the end
    // (ADR 0025).
    let now = tables.now();
    let idle = now.saturating_sub(flow.seen.max(opposite.seen));
    if is_open && (idle < ABANDONED || !is_silent(tables, found, Flow::note(now))) {
        return true;
    }
    tables.count(Event::FlowRenewed);
    false
}

/// Whether the backend of a connection that is idle for [`ABANDONED`] has left a SYN of its client without an answer.
/// The first SYN is noted in the entry: a backend that was removed as an endpoint may still have the connection, and
/// the SYN may be forged.
#[inline(always)]
fn is_silent<T: Flows>(tables: &T, found: &Found, now: u16) -> bool {
    let waited = Flow::steps(found.flow.noted, now);
    if found.flow.noted == 0 || waited >= NOTED {
        tables.confirm_flow(&found.key, found.flow.frontends_epoch, now);
        return false;
    }
    waited >= PATIENCE
}

/// Whether a packet of this host that is refused passes all the same: a ServiceCIDR may overlap a network of this node,
/// where its open connections and associations go on, as with kube-proxy (`ct state new` in its rules).
#[inline(always)]
pub(in crate::forward) fn is_left_alone(view: &View, refusal: Refusal) -> bool {
    refusal == Refusal::Drop(DropReason::UnallocatedAddress)
        && view.protocol != Protocol::UDP
        && !view.is_opening()
}

/// Whether a packet without a flow may begin one.
///
/// A TCP packet may if it is a SYN, or an acknowledgement without FIN or RST: that one picks up a connection whose
/// entries were lost (as `nf_conntrack_tcp_loose` does), and Maglev finds the backend that it had. Any other TCP packet
/// belongs to a closed connection, or to none.
#[inline(always)]
pub(in crate::forward) const fn may_begin(view: &View) -> bool {
    const CONTROL: u8 = tcp::SYN | tcp::FIN | tcp::RST | tcp::ACK;
    view.protocol.0 != Protocol::TCP.0 || matches!(view.tcp_flags & CONTROL, tcp::SYN | tcp::ACK)
}
