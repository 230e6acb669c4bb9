//! Finds the flow of a packet, or decides what becomes of the packet without one: [`ingress()`] and [`egress()`].
//!
//! Each search is one text for the fast and the whole path, which compile it for different shapes of packets
//! ([`shape::Shape`]). The fast path gives up where the text says so, and wherever the result is not [`Next::Follow`].

mod accelerated;
mod egress;
mod ingress;
pub(super) mod shape;

use crate::event::{PassReason, Verdict};
use crate::forward::{Next, Step};

pub(super) use egress::egress;
pub(super) use ingress::ingress;

/// The packet is for no Service.
const NOT_OURS: Step<Next> = Err(Verdict::Pass(PassReason::NotOurs));
/// There are no settings yet. The fast path gives up instead: only the whole parser knows why some packets pass (mapped
/// addresses).
const NOT_READY: Step<Next> = Err(Verdict::Pass(PassReason::NotReady));
/// The fast path ends here without a decision: the whole path begins.
const GIVE_UP: Step<Next> = Ok(Next::Whole);
