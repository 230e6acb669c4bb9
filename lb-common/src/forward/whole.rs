//! The whole path: it handles every packet, also those that the fast path leaves undecided.
//!
//! It runs one [`Stage`] after the other. Each calls parts ([`Part`]) in their order.

use crate::event::{PassReason, Verdict};
use crate::flow::Side;
use crate::forward::parts::{Part, Parts};
use crate::forward::{Role, Scratch, Stage, Step, egress as outgoing, ingress as incoming};
use crate::tables::Tables;

/// Prepares the working memory for a packet in this direction, and returns the first stage of its path.
#[inline(always)]
pub fn enter(scratch: &mut Scratch, role: Role, side: Side) -> Stage {
    // All other content is that of an earlier packet. It is not cleared, because each step writes a group before a
    // later step reads it.
    (scratch.role, scratch.headers.key.side) = (role, side);
    if side == Side::INGRESS { Stage::Ingress } else { Stage::Egress }
}

/// Handles any packet that comes in by an interface: for `explain` and tests, which run in user space.
///
/// In the kernel a program runs one stage ([`enter`], [`run`]) and enters the program of the next.
#[inline(always)]
pub fn ingress<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    all(packet, tables, scratch, role, Side::INGRESS)
}

/// Handles any packet that goes out by an interface, in user space as [`ingress`].
#[inline(always)]
pub fn egress<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    all(packet, tables, scratch, role, Side::EGRESS)
}

/// Runs one stage after the other until a verdict ends the path.
#[inline(always)]
fn all<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
    side: Side,
) -> Verdict {
    let mut stage = enter(scratch, role, side);
    loop {
        match run(stage, packet, tables, scratch) {
            Ok(next) => stage = next,
            Err(verdict) => return verdict,
        }
    }
}

/// Runs one stage, and returns the next one or the verdict that ends the path. In the kernel `stage` must be a constant:
/// a program has no code of other stages.
#[inline(always)]
pub fn run<P: Parts<T>, T: Tables>(
    stage: Stage,
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<Stage> {
    match stage {
        Stage::Ingress => incoming::seek(packet, tables, scratch),
        Stage::Egress => outgoing::path(packet, tables, scratch),
        Stage::Follow => incoming::follow(packet, tables, scratch),
        Stage::Begin => incoming::begin(packet, tables, scratch),
        Stage::Host => outgoing::host(packet, tables, scratch),
        Stage::HostBegin => outgoing::begin(packet, tables, scratch),
        Stage::Error => error(packet, tables, scratch),
    }
}

/// Handles ICMP messages, and refuses packets.
#[inline(always)]
fn error<P: Parts<T>, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> Step<Stage> {
    // XDP leaves ICMP to tc: its program needs no code for it.
    if !packet.is_at_xdp() && scratch.headers.view.is_icmp() {
        packet.part(tables, scratch, Part::Icmp)?;
    }
    // An echo request that is not answered comes here as well, with a refusal from the part before.
    packet.part(tables, scratch, Part::Refuse)?;
    // `reject::part` ends every path, which its type does not say: this value is never used.
    Err(Verdict::Pass(PassReason::NotOurs))
}
