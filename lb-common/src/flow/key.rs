//! The key of a flow entry: its packets as they are before translation.

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
    pub source_port: Port,
    pub destination_port: Port,
}

plain!(Tuple = 36 { source, destination, source_port, destination_port });

impl Tuple {
    pub const NONE: Self = Self {
        source: Ip::UNSPECIFIED,
        destination: Ip::UNSPECIFIED,
        source_port: Port::NONE,
        destination_port: Port::NONE,
    };

    /// Whether no host can have the source address of a packet from a wire, or the source is the destination (the
    /// "land" attack).
    #[inline(always)]
    pub fn is_impossible(&self) -> bool {
        self.source.is_martian() || self.source == self.destination
    }

    /// The tuple of a packet from one end to the other.
    #[inline(always)]
    pub const fn new(source: Endpoint, destination: Endpoint) -> Self {
        Self {
            source: source.ip,
            destination: destination.ip,
            source_port: source.port,
            destination_port: destination.port,
        }
    }

    /// Writes the tuple of an answer: both ends exchanged.
    #[inline(always)]
    pub const fn write_reversed(&self, into: &mut Self) {
        into.source = self.destination;
        into.destination = self.source;
        into.source_port = self.destination_port;
        into.destination_port = self.source_port;
    }

    /// Whether this is the tuple of an answer to a packet of the other tuple.
    #[inline(always)]
    pub fn is_reverse_of(&self, other: &Self) -> bool {
        self.source == other.destination
            && self.destination == other.source
            && self.source_port == other.destination_port
            && self.destination_port == other.source_port
    }

    /// The tuple of an answer: both ends exchanged.
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

/// The direction at an interface in which an entry is looked up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Side(pub u8);

plain!(Side = 1 { 0 });

impl Side {
    /// Packets that come in by an interface.
    pub const INGRESS: Self = Self(0);
    /// Packets that go out by an interface.
    pub const EGRESS: Self = Self(1);
}

/// Key of `FLOWS6`, and of `FLOWS4` as [`super::FlowKey4`]: the packet before translation, and the side of its lookup.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Source and destination before translation.
    pub tuple: Tuple,
    /// IP protocol.
    pub protocol: Protocol,
    /// The side on which the entry is looked up.
    pub side: Side,
    pad: u16,
}

plain!(FlowKey = 40 { tuple, protocol, side, pad });

impl FlowKey {
    /// The key of a packet seen on a side.
    #[inline(always)]
    pub const fn new(tuple: Tuple, protocol: Protocol, side: Side) -> Self {
        Self { tuple, protocol, side, pad: 0 }
    }

    /// Whether both ends are IPv4 addresses: then its entry is kept in `FLOWS4`.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        self.tuple.source.is_v4() && self.tuple.destination.is_v4()
    }

    /// The key of the other entry, given the tuple that this entry's packets get and this entry's kind.
    #[inline(always)]
    #[must_use]
    pub const fn opposite(&self, flow: &Flow) -> Self {
        let mut opposite = Self::new(flow.to, self.protocol, self.side);
        self.write_opposite(flow, &mut opposite);
        opposite
    }

    /// Whether an entry at [`FlowKey::opposite`] belongs to the same flow as this key. Another flow may have taken its
    /// place.
    #[must_use]
    pub fn has_opposite(&self, opposite: &Self, flow: &Flow) -> bool {
        opposite.opposite(flow) == *self
    }

    /// [`FlowKey::opposite`], in place.
    #[inline(always)]
    pub const fn write_opposite(&self, flow: &Flow, opposite: &mut Self) {
        opposite.tuple.source = flow.to.destination;
        opposite.tuple.destination = flow.to.source;
        opposite.tuple.source_port = flow.to.destination_port;
        opposite.tuple.destination_port = flow.to.source_port;
        opposite.protocol = self.protocol;
        opposite.side = match (flow.kind, self.side) {
            // Both directions of a pod that reaches itself come in by its interface.
            (Kind::HAIRPIN, side) => side,
            (_, Side::INGRESS) => Side::EGRESS,
            (_, _) => Side::INGRESS,
        };
    }

    /// Key of the packets of an entry after its translation, where they leave, in place: for a forward entry that of
    /// its masquerade, for the replies to a masqueraded source that of the reply entry.
    #[inline(always)]
    pub const fn write_leaving_key(&self, flow: &Flow, leaving: &mut Self) {
        leaving.tuple = flow.to;
        leaving.protocol = self.protocol;
        leaving.side = Side::EGRESS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The opposite entry of one flow may be replaced by that of another, which leads elsewhere.
    #[test]
    fn opposite_entry_of_another_flow_is_not_that_of_the_key() {
        let at = |host| Endpoint::new(Ip::v4([192, 0, 2, host]), Port::new(80));
        let (client, frontend, backend) = (at(1), at(2), at(3));
        let key = FlowKey::new(Tuple::new(client, frontend), Protocol::TCP, Side::INGRESS);
        let flow = Flow::new(Tuple::new(client, backend), Kind::FORWARD, 0);
        let opposite = key.opposite(&flow);
        let reply = |frontend| Flow::new(Tuple::new(frontend, client), Kind::REPLY, 0);
        assert!(key.has_opposite(&opposite, &reply(frontend)));
        assert!(!key.has_opposite(&opposite, &reply(at(4))));
    }
}
