//! Upgrades: an earlier run left maps or programs that this one cannot continue with as they are.
//!
//! The maps of another layout, or of another build with the same layout, stay with the programs that read them
//! ([`Previous`], `fingerprint`) until ours have all entries. A map of the right shape but another size is recreated
//! and filled ([`Replaced`]). `handover` decides where programs of both are attached side by side meanwhile, and
//! `finish` copies the last entries and removes the rest. ADR 0005 has the order.

mod fingerprint;
mod finish;
mod handover;
#[cfg(test)]
mod layout;
mod previous;
mod resize;

pub use fingerprint::is_of_another_build;
pub(super) use fingerprint::{forget_counters, record, set_aside};
pub(super) use handover::{LinkMode, is_under_way, move_aside, undo_move_aside};
pub(super) use previous::{Previous, has_xdp};
pub use resize::pinned_sizes;
pub(super) use resize::{Replaced, prepare, verify};
