//! A packet that XDP has translated is not translated again at tc, where its backend is a frontend itself (ADR 0012).
//!
//! The flow table shows whether XDP has translated a packet. Metadata beside the packet would not: drivers and captures
//! lose it. The reverse of the tuple that XDP wrote is the key of the reply entry. A packet to that address as a
//! frontend has no such entry, unless its client uses one port for both destinations at once.

use crate::addr::Ip;
use crate::config::Settings;
use crate::flow::{Kind, Side, Tuple};
use crate::forward::classify::{self, Class};
use crate::forward::{Found, Role};
use crate::packet::Packet;
use crate::tables::{Filters, Flows};
use crate::wire::Headers;

/// Whether XDP may have translated a packet to a possible frontend or to a translated source.
///
/// True only if its destination may be a backend, or its source is a backend whose replies do not go to an address of
/// this node.
#[inline(always)]
pub(in crate::forward) fn may_be<P: Packet, T: Filters>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
    class: Class,
    role: Role,
) -> bool {
    // XDP is attached to external interfaces only. The filter, whose bytes may be in no cache, comes last (ADR 0020).
    role == Role::External
        && !packet.is_at_xdp()
        && settings.has(Settings::ACCELERATED)
        && (tables.is_in_use(&tuple.destination, tuple.destination_port)
            || class != Class::Answer && classify::is_from_backend(tables, tuple))
}

/// Whether XDP has translated such a packet, as its reply entry shows.
#[inline(always)]
pub(in crate::forward) fn is<T: Flows>(tables: &T, headers: &Headers, found: &mut Found) -> bool {
    // XDP leaves all other packets to tc, untranslated (ADR 0012).
    headers.view.is_for_xdp() && has_flow(tables, headers, found)
}

/// Whether the translation of some flow yields this packet. Where frontend and backend are the same, translation
/// changes nothing, and the packet has yet to follow its flow.
#[inline(never)]
fn has_flow<T: Flows>(tables: &T, headers: &Headers, found: &mut Found) -> bool {
    if !found.find_answers(tables, headers, Side::EGRESS) {
        return false;
    }
    let flow = &found.answers.flow;
    match flow.kind {
        Kind::REPLY => !flow.to.is_reverse_of(&headers.key.tuple),
        // A flow gets no reply before its first packet has left, with the source that is chosen then.
        Kind::MASQUERADE => flow.to.source != Ip::UNSPECIFIED,
        _ => false,
    }
}
