//! Where a half of a flow is looked up: by its packets as they are before translation.

use super::{Flow, Kind};
use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::layout::plain;

/// Source and destination of a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// Source address.
    pub source: Ip,
    /// Destination address.
    pub destination: Ip,
    /// Source port.
    pub source_port: Port,
    /// Destination port.
    pub destination_port: Port,
}

plain!(Tuple = 36 { source, destination, source_port, destination_port });

impl Tuple {
    /// Nothing.
    pub const NONE: Self = Self {
        source: Ip::UNSPECIFIED,
        destination: Ip::UNSPECIFIED,
        source_port: Port::NONE,
        destination_port: Port::NONE,
    };

    /// From two ends.
    #[inline(always)]
    pub const fn new(source: Endpoint, destination: Endpoint) -> Self {
        Self {
            source: source.ip,
            destination: destination.ip,
            source_port: source.port,
            destination_port: destination.port,
        }
    }

    /// Writes the tuple of an answer.
    #[inline(always)]
    pub const fn write_reversed(&self, into: &mut Self) {
        into.source = self.destination;
        into.destination = self.source;
        into.source_port = self.destination_port;
        into.destination_port = self.source_port;
    }

    /// Whether this is the tuple of an answer to the other.
    #[inline(always)]
    pub fn is_reverse_of(&self, other: &Self) -> bool {
        self.source == other.destination
            && self.destination == other.source
            && self.source_port == other.destination_port
            && self.destination_port == other.source_port
    }

    /// The tuple of an answer.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// Where a half of a flow is looked up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Side(pub u8);

plain!(Side = 1 { 0 });

impl Side {
    /// Packets that come in by a device.
    pub const INGRESS: Self = Self(0);
    /// Packets that go out by a device.
    pub const EGRESS: Self = Self(1);
    /// A socket's own view (sendmsg, recvmsg): its end is [`Ip::cookie`].
    pub const SOCKET: Self = Self(2);
}

/// Key of `FLOWS6`, and of `FLOWS4` as [`super::FlowKey4`]: the packet as it is before translation, and where.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Source and destination before translation.
    pub tuple: Tuple,
    /// IP protocol.
    pub protocol: Protocol,
    /// Where this half is looked up.
    pub side: Side,
    pad: u16,
}

plain!(FlowKey = 40 { tuple, protocol, side, pad });

impl FlowKey {
    /// Key of a packet seen on a side.
    #[inline(always)]
    pub const fn new(tuple: Tuple, protocol: Protocol, side: Side) -> Self {
        Self { tuple, protocol, side, pad: 0 }
    }

    /// Whether both ends are IPv4 addresses: then its half is kept in `FLOWS4`.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        self.tuple.source.is_v4() && self.tuple.destination.is_v4()
    }

    /// Key of the other half, given what this half's packets become and this half's kind.
    #[inline(always)]
    #[must_use]
    pub const fn other(&self, flow: &Flow) -> Self {
        let mut other = Self::new(flow.to, self.protocol, self.side);
        self.write_other(flow, &mut other);
        other
    }

    /// [`FlowKey::other`], in place.
    #[inline(always)]
    pub const fn write_other(&self, flow: &Flow, other: &mut Self) {
        other.tuple.source = flow.to.destination;
        other.tuple.destination = flow.to.source;
        other.tuple.source_port = flow.to.destination_port;
        other.tuple.destination_port = flow.to.source_port;
        other.protocol = self.protocol;
        other.side = match (flow.kind, self.side) {
            (Kind::HAIRPIN, side) | (_, side @ Side::SOCKET) => side,
            (_, Side::INGRESS) => Side::EGRESS,
            (_, _) => Side::INGRESS,
        };
    }

    /// Key of the masquerade of the flow whose forward half is `forward`, in place.
    #[inline(always)]
    pub const fn write_mark(&self, forward: &Flow, mark: &mut Self) {
        mark.tuple = forward.to;
        mark.protocol = self.protocol;
        mark.side = Side::EGRESS;
    }
}
