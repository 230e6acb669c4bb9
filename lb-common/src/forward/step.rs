//! The types that all steps of the path share: refusals, and the verdict that ends a path.

use crate::config::Settings;
use crate::event::{DropReason, PassReason, Return, Verdict};
use crate::tables::Node;

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
