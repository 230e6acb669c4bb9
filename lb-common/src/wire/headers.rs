//! Everything that a packet's own headers say.

use super::View;
use crate::flow::FlowKey;

/// The identification that all fragments of a datagram share (RFC 791 3.1, RFC 8200 4.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Identification {
    /// As in the packet; IPv4 has two bytes, and zeros behind them.
    pub value: [u8; 4],
    /// Offset in the packet.
    pub at: u16,
    /// Zero.
    pub pad: u16,
}

/// The headers of a packet as it came. Written by [`super::parse`]; of
/// a later fragment `fragments` adds the ports. Read by every stage.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers {
    /// All but the tuple.
    pub view: View,
    /// Identification of a datagram in pieces.
    pub id: Identification,
    /// The tuple, and the side of the hook where it is seen: the key of the packet's own entry, if it has one.
    pub key: FlowKey,
}
