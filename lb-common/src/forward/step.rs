//! The types that all steps of the path share: the role of an interface, refusals, and the verdict that ends a path.

use crate::config::Settings;
use crate::event::{DropReason, PassReason, Return, Verdict};
use crate::tables::Node;

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

/// Why no backend was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The packet is answered with a reset or an ICMP error (contract 3.7).
    Reject(Return),
    /// The packet is dropped without an answer.
    Drop(DropReason),
    /// The packet is passed to the stack: no Service has its destination, its frontend drains, or a process of this
    /// node listens there.
    Pass(PassReason),
}

impl Default for Refusal {
    fn default() -> Self {
        Self::Pass(PassReason::NotOurs)
    }
}

/// A step of the path: an error is the verdict that ends it.
pub type Step<T> = Result<T, Verdict>;

/// The settings. Until the agent has written them, every packet is passed to the stack.
#[inline(always)]
pub(in crate::forward) fn ready<T: Node>(tables: &T) -> Step<&Settings> {
    tables.settings().ok_or(Verdict::Pass(PassReason::NotReady))
}
