//! The path of a packet: what each hook does with it, in the order it happens.
//!
//! A packet is translated at the interface through which its client speaks, on the way in and on the
//! way out (ADR 0003): at ingress the destination changes, at egress the source. All look-ups come before the
//! first write; a packet that is passed on or dropped is byte for byte what it was.
//!
//! [`fast`] comes first and decides about common packets; [`whole`] handles every packet, in parts ([`parts`]).

mod begin;
mod choose;
mod classify;
mod egress;
mod exit;
pub mod fast;
mod ingress;
mod life;
pub mod parts;
mod rare;
mod seek;
pub mod socket;
#[cfg(test)]
mod tests;

use crate::config::Settings;
use crate::event::{DropReason, PassReason, Turn, Verdict};
use crate::scratch::Scratch;
use crate::tables::{Node, Tables};

pub use begin::ports::{Reservation, Search};
pub use begin::{Begin, Pair};
pub use choose::{Asker, Choice, is_local_only};
pub use exit::{Exit, ExitTo};
pub use parts::{Part, Parts};
pub use rare::quoted::Quoted;
pub use seek::found::Found;

/// The whole path, on which every packet can go.
pub mod whole {
    pub use super::egress::whole as egress;
    pub use super::ingress::whole as ingress;
}

/// The kind of interface a program is attached to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The host's side of a pod's veth: clients behind it are pods of this node.
    #[default]
    Pod,
    /// A device that leads outside, or to other nodes.
    Edge,
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
    /// Tell the client (contract 3.7).
    Reject(Turn),
    /// Say nothing.
    Drop(DropReason),
    /// Not for us after all.
    Pass(PassReason),
}

impl Default for Refusal {
    fn default() -> Self {
        Self::Pass(PassReason::NotOurs)
    }
}

/// Handles a packet that comes in by a device.
///
/// The kernel's programs call the two paths apart: registers and stack of the whole one would cost the fast one a tenth of
/// its time.
#[inline(always)]
pub fn ingress<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    fast::ingress(packet, tables, scratch, role)
        .unwrap_or_else(|| whole::ingress(packet, tables, scratch, role))
}

/// Handles a packet that goes out by a device.
#[inline(always)]
pub fn egress<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    fast::egress(packet, tables, scratch, role)
        .unwrap_or_else(|| whole::egress(packet, tables, scratch, role))
}

/// A step of the path: an error is the verdict that ends it.
pub type Step<T> = Result<T, Verdict>;

/// The settings. Before the agent has written them, every packet is the stack's.
#[inline(always)]
fn ready<T: Node>(tables: &T) -> Step<&Settings> {
    tables.settings().ok_or(Verdict::Pass(PassReason::NotReady))
}
