//! The flow in the making: its properties, its entries, and the search for its source port.

use crate::addr::{Ip, Port};
use crate::flow::{Entry, Flow, Shown};

/// The properties of a new flow that [`Choice`](crate::forward::Choice) does not hold. Written by the part that decides
/// about the first packet (`first`, `direct`, `host`), read by `begin` and `ports`.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one packet")]
pub struct Begin {
    /// The time of the first packet, in nanoseconds of `CLOCK_MONOTONIC`.
    pub now: u64,
    /// Index of the interface that the client is behind.
    pub device: u32,
    /// TCP flags of the first packet, as [`Flow::shown`] keeps them.
    pub shown: Shown,
    /// [`Flow::expected`] of its first packet.
    pub expected: u32,
    /// The key has an entry of an earlier flow, which lies in [`Found::flow`](crate::forward::Found::flow). Written by
    /// the search.
    pub renews: bool,
    /// The source becomes an address of this node where the packet leaves the node.
    pub masquerade: bool,
    /// The client may be a pod of this node ([`Flow::OF_POD`]).
    pub is_of_pod: bool,
    /// The port of the first packet cannot change (SCTP in fragments): the packet is dropped if its flow needs another.
    pub port_stays: bool,
    /// A client that is its own backend gets its packet back on its interface, from an address that stands for the
    /// client (hairpin).
    pub may_hairpin: bool,
    /// The address of this node from which a packet of this host continues, with a port of the reserved range;
    /// unspecified for all other packets.
    pub source: Ip,
}

/// The entries of a flow in the making, or of its masquerade where that gets its source. Written by `begin` and
/// `ports`; not read any more once the entries are in the tables.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair {
    /// The entry that the client's packets meet. Its key is that of the packet.
    pub forward: Flow,
    /// The entry that the replies meet, whose key is reserved (`ports`).
    pub reply: Entry,
    /// The entry that translates the source where the packet leaves. Its address is unspecified until that is chosen.
    pub pending_masquerade: Entry,
    /// The entry that occupies the key of the reply and belongs to another flow.
    pub occupant: Flow,
    /// The entry of the other direction of the occupant's flow.
    pub occupant_opposite: Entry,
    /// Whether this packet made the reply entry, or another packet of the same flow.
    pub reservation: Reservation,
}

/// The outcome of a reservation of the key that a new flow needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservation {
    /// This packet made the entry, which is removed if the flow fails.
    #[default]
    Made,
    /// Another packet of the same flow made the entry, at once on another CPU or earlier: it stays.
    Found,
    /// The key belongs to another flow.
    Taken,
}

/// A search for a source port, between two of its tries. Written and read by `ports` and its files.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortSearch {
    /// Whether the client's own port was tried, or must not be.
    pub has_begun: bool,
    /// Whether the last try found its port taken, and another try may follow.
    pub goes_on: bool,
    /// The number of other ports that were tried.
    pub tried: u32,
    /// The port, among those tried in this round, of the flow that may give it up and was silent for longest; 0: none.
    pub oldest: Port,
    /// Nanoseconds of `CLOCK_MONOTONIC` at which that flow was last seen.
    pub silent_since: u64,
    /// The client of a masqueraded datagram flow whose port was tried in the second half of the tries (`ports/crowd`);
    /// unspecified before.
    pub crowd: Ip,
    /// Whether that client has another one of the ports tried.
    pub has_crowd: bool,
}

impl PortSearch {
    /// The number of ports tried in one round.
    pub(in crate::forward) const ROUND: u32 = 16;
    /// The number of tries before the packet is dropped: as many as netfilter begins with (`NF_NAT_MAX_ATTEMPTS`).
    pub(in crate::forward) const MOST: u32 = 8 * Self::ROUND;
    /// The number of calls: the tries, and one more for the client's own port.
    pub(in crate::forward) const CALLS: u32 = Self::MOST + 1;
}
