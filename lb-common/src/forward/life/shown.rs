//! The facts that a packet shows about its connection: its flags, and the number that it acknowledges.

use crate::addr::Protocol;
use crate::flow::Shown;
use crate::packet::Packet;
use crate::wire::{View, tcp};

/// Flags that a packet adds to [`Flow::shown`](crate::flow::Flow::shown). A RST is judged separately (`close::reset`),
/// a FIN as well (`close::is_end`).
#[inline(always)]
pub(in crate::forward) const fn shown(view: &View) -> Shown {
    if view.protocol.0 != Protocol::TCP.0 {
        return Shown::of(!view.shows_no_association(), false);
    }
    let is_rst = view.tcp_flags & tcp::RST != 0;
    // A SYN-ACK counts: the backend has answered. A SYN or a RST alone shows no connection.
    Shown::of(!view.is_syn() && !is_rst, view.tcp_flags & tcp::FIN != 0)
}

/// The acknowledgement number of a TCP packet in host byte order; 0 where it has none.
#[inline(always)]
pub(in crate::forward) fn acknowledged<P: Packet>(packet: &P, view: &View) -> u32 {
    if view.tcp_flags & tcp::ACK == 0 {
        return 0;
    }
    view.word(packet, 8).map_or(0, u32::from_be)
}
