//! The purpose of the interface at which a packet is seen.

/// The kind of interface a program is attached to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The host's end of a pod's veth or L2 netkit: packets come in from a pod of this node, or from a client behind it
    /// (ADR 0038).
    #[default]
    Pod,
    /// An external interface: it leads outside, or to other nodes.
    External,
    /// The loopback interface of this host.
    Host,
}

impl Role {
    /// Index of the loopback interface, the same in every network namespace (`LOOPBACK_IFINDEX`, `include/net/flow.h`).
    pub const LOOPBACK: u32 = 1;
}
