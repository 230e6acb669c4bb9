//! Where the data path keeps what is too large for its stack while it handles one packet.
//!
//! A BPF program and all it calls share 512 bytes of stack. What this holds is in the kernel an
//! element of a per-CPU map, and on the host a local variable. Packets have one element: tc and XDP
//! programs run with softirqs off, so no other interrupts them on their CPU. Socket calls have their
//! own, with the socket: a process may be interrupted by packets and by other processes. What a packet or
//! a call finds in it is what an earlier one left, and means nothing.

use crate::addr::Ip;
use crate::flow::{Flow, FlowKey, Fragment};
use crate::route::Route;
use crate::service::{Backend, BackendId, Frontend, Service};
use crate::wire::View;

/// Who asks: decides policy, affinity and slot.
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

/// Whose packets are turned round on their device, under an address that stands for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turned {
    /// Nobody's.
    #[default]
    Nobody,
    /// A client's that is its own backend.
    Itself,
    /// This host's.
    Host,
}

/// How a new flow is made, beside what [`Scratch`] says of service and backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begin {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub now: u64,
    /// Index of the device that its client is behind.
    pub device: u32,
    /// What its first packet shows ([`crate::flow::state`]).
    pub state: u8,
    /// The source becomes ours where the packet leaves the node.
    pub masquerade: bool,
    /// Its first packet can get no other port (SCTP in pieces): no flow, rather than one it cannot follow.
    pub port_stays: bool,
    /// Who may be turned round.
    pub turn: Turned,
}

/// Working memory of one packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Scratch {
    /// The packet's headers, but for its tuple.
    pub view: View,
    /// Identification of a datagram in pieces.
    pub id: [u8; 4],
    /// The headers of a packet that an ICMP error quotes, never plain.
    pub quoted: View,
    /// The packet's tuple, and so the key of its own half of its flow ...
    pub key: FlowKey,
    /// ... and value, found or in the making.
    pub flow: Flow,
    /// The other half in the making: key ...
    pub twin_key: FlowKey,
    /// ... and value.
    pub twin: Flow,
    /// A half that is in the way of the twin.
    pub other: Flow,
    /// The service the packet asks for.
    pub service: Service,
    /// The frontend looked for.
    pub frontend: Frontend,
    /// Who asks, for the choice of a backend.
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
    /// The way of a packet that goes past the stack.
    pub route: Route,
    /// It goes to the other end of that device, which is a pod's. Not 0: yes.
    pub enters: u32,
}
