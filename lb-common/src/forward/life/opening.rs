//! The beginning of a TCP connection, as far as packets prove it.
//!
//! A client proves that it has its address by acknowledging the sequence number of the SYN-ACK, which a forger does not
//! see. The entry of the client's packets holds that number as the last one that is known of it
//! ([`Flow::expected`](crate::flow::Flow::expected)), so that the flow is not protected by a packet that acknowledges
//! another one ([`close::recorded`]).

use crate::flow::Shown;
use crate::forward::Found;
use crate::forward::life::close;
use crate::forward::life::shown::acknowledged;
use crate::packet::Packet;
use crate::tables::{Flows, Touch};
use crate::wire::View;

/// Records in the forward entry the number that the client has to acknowledge after a SYN-ACK. True where the SYN-ACK
/// begins another connection with the tuple of the flow that was found: then the ends of both entries are cleared.
///
/// That happens where a client lost its connection while it was half-closed, and comes back with the same port: its SYN
/// changes nothing ([`follow`](super::follow)), but a backend that accepts it has no other connection.
/// In netfilter the SYN-ACK decides as well, where it follows a SYN that was seen (`nf_conntrack_proto_tcp.c`, "client
/// and server are in sync"); no entry remembers a SYN here.
#[inline(never)]
pub(super) fn accept<P: Packet, T: Flows>(
    packet: &P,
    tables: &T,
    view: &View,
    found: &mut Found,
) -> bool {
    if !found.flow.is_answer() || found.flow.is_masquerade() || !found.find_opposite(tables) {
        return false;
    }
    let Some(sequence) = view.word(packet, 4) else { return false };
    let (reply, forward) = (&found.flow, &found.opposite.flow);
    let is_half_closed = reply.shown.fin | forward.shown.fin != 0;
    // A SYN-ACK that is sent again acknowledges what it did before.
    let is_again = close::acknowledges_recent(acknowledged(packet, view), reply);
    let restarts = forward.is_protected() && is_half_closed && !is_again;
    if forward.is_protected() && !restarts {
        return false;
    }
    let cleared = if restarts { Shown::ENDS } else { Shown::NOTHING };
    // A SYN occupies one sequence number (RFC 9293 3.4). The time of the entry stays: only packets of the client renew
    // it.
    let expected = u32::from_be(sequence).wrapping_add(1);
    let touch = Touch { seen: forward.seen, shown: Shown::NOTHING, expected, cleared };
    tables.touch_flow(&found.opposite.key, &touch);
    restarts
}
