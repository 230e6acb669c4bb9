//! A packet that XDP has translated is not translated again at tc, where the backend is a frontend itself (ADR 0012).
//!
//! Its flow says so, not the packet: drivers and captures lose what is written beside one. The tuple that XDP made,
//! turned round, is the key of the reply entry. A packet to that address as a frontend has no such entry, but where
//! its client talks to both at once from one port.

use crate::addr::Ip;
use crate::config::Settings;
use crate::flow::{Kind, Side, Tuple};
use crate::forward::classify::{self, Class};
use crate::forward::{Found, Role};
use crate::packet::Packet;
use crate::tables::{Filters, Flows};
use crate::wire::Headers;

/// Whether XDP may have made a packet to a possible frontend, or to a source of ours, what it is: it goes to what may
/// be a backend, or comes from one whose answers go to another address than ours.
#[inline(always)]
pub(in crate::forward) fn may_be<P: Packet, T: Filters + Flows>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    (tuple, class): (&Tuple, Class),
    role: Role,
) -> bool {
    role == Role::Edge
        && !packet.is_at_xdp()
        && settings.has(Settings::ACCELERATED)
        && (tables.is_in_use(&tuple.destination, tuple.destination_port)
            || class != Class::Answer && classify::is_from_backend(tables, tuple))
}

/// Whether XDP has made such a packet what it is.
#[inline(always)]
pub(in crate::forward) fn is<P: Packet, T: Filters + Flows>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    (headers, found): (&Headers, &mut Found),
    (class, role): (Class, Role),
) -> bool {
    may_be(packet, tables, settings, (&headers.key.tuple, class), role)
        && headers.view.is_for_xdp()
        && has_flow(tables, headers, found)
}

/// Whether a flow's packets become this one. Where frontend and
/// backend are the same, it is as it was, and is to be followed.
#[inline(never)]
fn has_flow<T: Filters + Flows>(tables: &T, headers: &Headers, found: &mut Found) -> bool {
    if !found.find_answers(tables, headers, Side::EGRESS) {
        return false;
    }
    let flow = &found.answers.flow;
    match flow.kind {
        Kind::REPLY => !flow.to.is_reverse_of(&headers.key.tuple),
        // Nothing comes back before the first one has left.
        Kind::MASQUERADE => flow.to.source != Ip::UNSPECIFIED,
        _ => false,
    }
}
