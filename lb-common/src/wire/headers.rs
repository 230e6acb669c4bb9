//! The content of a packet's own headers.

use super::View;
use crate::flow::FlowKey;

/// The identification that all fragments of a datagram share (RFC 791 3.1, RFC 8200 4.5).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Identification {
    /// As in the packet; IPv4 has two bytes, and zeros behind them.
    pub value: [u8; 4],
    /// Offset of the identification in the packet.
    pub at: u16,
    /// Zero.
    pub pad: u16,
}

/// The headers of a packet as it arrived, for every step of the path.
///
/// Written by [`super::parse`]; for a later fragment `fragments` adds the ports.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers {
    /// The headers without the tuple.
    pub view: View,
    /// Identification of a fragmented datagram.
    pub id: Identification,
    /// The tuple, and the side of the hook where it is seen: the key of the packet's own entry, if it has one.
    pub key: FlowKey,
}
