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
mod scratch;
mod seek;
pub mod socket;
mod step;
#[cfg(test)]
mod tests;

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
use step::ready;
pub use step::{Refusal, Role, Step};

/// The whole path, on which every packet can go.
pub mod whole {
    pub use super::egress::whole as egress;
    pub use super::ingress::whole as ingress;
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
