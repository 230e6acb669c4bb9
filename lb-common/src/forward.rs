//! The path of a packet: what each hook does with it, in the order it happens.
//!
//! A packet is translated at the interface through which its client speaks, on the way in and on the
//! way out (ADR 0003): at ingress the destination changes, at egress the source. All look-ups come before the
//! first write; a packet that is passed on or dropped is byte for byte what it was.

mod accelerated;
mod choose;
mod close;
mod direct;
mod egress;
pub mod fast;
mod flows;
mod fragments;
mod host;
mod icmp;
mod ingress;
mod ports;
mod quoted;
mod reject;
mod rewrite;
mod road;
mod send;
mod short_cut;
pub mod socket;
#[cfg(test)]
mod tests;

use crate::config::Settings;
use crate::event::{DropReason, PassReason, Turn, Verdict};
use crate::flow::Side;
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::tables::Tables;
use crate::wire;

/// The whole path, on which every packet can go.
pub mod whole {
    pub use super::egress::whole as egress;
    pub use super::ingress::whole as ingress;
}

/// What kind of device a program sits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host's side of a pod's veth: clients behind it are pods of this node.
    Pod,
    /// A device that leads outside, or to other nodes.
    Edge,
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

/// Handles a packet that comes in by a device.
///
/// In the kernel the two paths are functions of their own: what the whole one keeps in registers and on the stack would cost
/// the fast one a tenth of its time.
#[inline(always)]
pub fn ingress<P: Packet, T: Tables>(
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
pub fn egress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    fast::egress(packet, tables, scratch, role)
        .unwrap_or_else(|| whole::egress(packet, tables, scratch, role))
}

/// How far a packet got when there is nothing more to do.
type Step<T> = Result<T, Verdict>;

const fn pass<T>(reason: PassReason) -> Step<T> {
    Err(Verdict::Pass(reason))
}

/// What every packet begins with: its headers into `scratch`, and the settings.
#[inline(always)]
fn read<'t, P: Packet, T: Tables>(
    packet: &P,
    tables: &'t T,
    scratch: &mut Scratch,
    side: Side,
) -> Step<&'t Settings> {
    wire::parse(packet, scratch, side).map_err(Verdict::Pass)?;
    tables.settings().ok_or(Verdict::Pass(PassReason::NotReady))
}
