//! Working memory of the data path for one packet: everything that is too large for its stack.
//!
//! A BPF program and all its calls share 512 bytes of stack. In the kernel this is an element of a per-CPU map, on the host a
//! local variable. Packets have one element: tc and XDP programs run with softirqs off, so no other interrupts them on their
//! CPU. Socket calls have one for each socket, since packets and other processes may interrupt a process. At the start of a
//! packet or call the contents are leftovers without meaning.

use crate::addr::{Ip, Port};
use crate::event::Verdict;
use crate::flow::{Flow, FlowKey, Fragment, Shown};
use crate::forward::{Refusal, Reservation, Role};
use crate::route::Route;
use crate::service::{Backend, BackendId, Frontend, Service};
use crate::wire::View;

/// The client of a new flow, which decides policy, affinity and slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    /// Source address, or cookie, as affinity knows it.
    pub client: Ip,
    /// Source address as `loadBalancerSourceRanges` sees it.
    pub source: Ip,
    /// Hash of what begins the flow.
    pub hash: u32,
    /// Not 0: a pod of this node or the node itself; external policy Local does not bind it.
    pub local: u32,
}

/// The way on from the search for a packet's flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// It follows the flow in [`Scratch::flow`].
    #[default]
    Follow,
    /// It begins a flow to the service in [`Scratch::service`].
    First,
    /// It begins a flow to the backend that it names ([`crate::forward`], `direct`).
    Direct,
    /// It is one of this host's own.
    Host,
    /// It follows the flow, whose source is yet to be chosen.
    Masquerade,
    /// It is refused, as [`Scratch::refusal`] says.
    Refuse,
}

/// How a new flow is made, beside what [`Scratch`] says of service and backend.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one packet")]
pub struct Begin {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub now: u64,
    /// Index of the device that its client is behind.
    pub device: u32,
    /// Flags of its first packet.
    pub shown: Shown,
    /// [`Flow::expected`] of its first packet.
    pub expected: u32,
    /// The key has an entry of an earlier flow, which lies in [`Scratch::flow`].
    pub renews: bool,
    /// The source becomes ours where the packet leaves the node.
    pub masquerade: bool,
    /// Its first packet can get no other port (SCTP in pieces): no flow, rather than one it cannot follow.
    pub port_stays: bool,
    /// A client that is its own backend is turned round on its device, under an address that stands for it.
    pub may_turn: bool,
    /// The address of this node under which a packet of this host goes on, with a port of ours; unspecified for all others.
    pub source: Ip,
}

/// A search for a source port ([`crate::forward`], `ports`), between two of its tries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Search {
    /// Whether the client's own port was tried, or may not be.
    pub has_begun: bool,
    /// Whether the last try found its port taken, and another try may follow.
    pub goes_on: bool,
    /// Other ports that were tried.
    pub tried: u32,
    /// The port, of those tried in this round, of the displaceable flow that was silent for longest; 0: none.
    pub oldest: Port,
    /// Nanoseconds of `CLOCK_MONOTONIC` at which that flow was last seen.
    pub silent_since: u64,
}

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

/// Working memory of one packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Scratch {
    /// The packet's headers, but for its tuple.
    pub view: View,
    /// Identification of a datagram in pieces.
    pub id: Identification,
    /// The headers of a packet that an ICMP error quotes, never plain.
    pub quoted: View,
    /// The packet's tuple, and so the key of its own entry of its flow ...
    pub key: FlowKey,
    /// ... and value, found or in the making.
    pub flow: Flow,
    /// The other entry in the making: key ...
    pub opposite_key: FlowKey,
    /// ... and value.
    pub opposite: Flow,
    /// An entry that is in the way of the opposite, or another one that is looked at ...
    pub other: Flow,
    /// ... and its key, where that is none of the above.
    pub other_key: FlowKey,
    /// The service the packet asks for.
    pub service: Service,
    /// The frontend looked for.
    pub frontend: Frontend,
    /// The client, for the choice of a backend.
    pub asker: Asker,
    /// The backend chosen for a new flow.
    pub backend: Backend,
    /// Its row.
    pub backend_id: BackendId,
    /// The set it was chosen from: 0 Cluster, 1 Local.
    pub scope: u32,
    /// How its flow is made.
    pub begin: Begin,
    /// The datagram that a fragment is of.
    pub fragment: Fragment,
    /// The role of the device.
    pub role: Role,
    /// The way on.
    pub next: Next,
    /// Why no backend is chosen.
    pub refusal: Refusal,
    /// The end of the path.
    pub verdict: Verdict,
    /// Whether the packet may go past the stack, and then whether it does.
    pub bypass: bool,
    /// Whether a packet of this host, or the answer to one, is for this host itself, by the interface where it is.
    pub stays: bool,
    /// The packet of the new flow that made its reply.
    pub reservation: Reservation,
    /// The search for a source port of the new flow.
    pub search: Search,
    /// The way of a packet that goes past the stack.
    pub route: Route,
    /// It goes to the other end of that device, which is a pod's. Not 0: yes.
    pub enters: u32,
}
