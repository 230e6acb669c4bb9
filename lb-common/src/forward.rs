//! The path of a packet, from a hook to its verdict.
//!
//! A packet is translated at the interface through which its client sends, on the way in and on the way out (ADR 0003):
//! at ingress the destination changes, at egress the source. All lookups come before the first write: where a packet is
//! passed on or dropped, its bytes do not change.
//!
//! [`fast`] comes first and decides about most plain packets; [`whole`] handles every packet, in
//! stages ([`Stage`]) that run one part after the other ([`parts`]).

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
mod scratch;
mod seek;
pub mod socket;
mod stage;
mod step;
#[cfg(test)]
mod tests;
pub mod whole;

use crate::event::Verdict;
use crate::tables::Tables;

pub use begin::ports::{Reservation, Search};
pub use begin::{Begin, Pair};
pub use choose::{Asker, Choice, is_local_only};
pub use exit::{Exit, ExitTo};
pub use parts::{Part, Parts};
pub use rare::quoted::Quoted;
pub use scratch::{Next, Scratch};
pub use seek::found::Found;
pub use stage::Stage;
use step::ready;
pub use step::{Refusal, Role, Step};

/// Handles a packet that comes in by an interface: the fast path first, then the whole one.
///
/// In the kernel the two paths are separate programs: in one program, the registers and stack of the whole path would
/// make the fast path a tenth slower.
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

/// Handles a packet that goes out by an interface: the fast path first, then the whole one.
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
