//! The path of a packet, from a hook to its verdict.
//!
//! A packet is translated at the interface through which its client sends, on the way in and on the way out (ADR 0003):
//! at ingress the destination changes, at egress the source. All lookups come before the first write: where a packet is
//! passed on or dropped, its bytes do not change.
//!
//! [`fast`] comes first and decides about most plain packets; [`whole`] handles every packet, in
//! stages ([`Stage`]) that run one part after the other ([`parts`]).
//!
//! The list has the modules from the bottom up. A module uses only those before it, which `cargo test -p xtask
//! module_order` checks. Unit tests may use all. The `mod` lines below are alphabetical, because rustfmt sorts them.
//!
//! - `role`: the purpose of an interface
//! - `step`: the types that all steps share
//! - `stage`: the names of the stages of the whole path
//! - `choose`: the service of a packet or a socket, and its backend
//! - `classify`: the class of a packet by its tuple
//! - `scratch`: the working memory of a packet, in groups
//! - `fragments`: datagrams in fragments
//! - `inherited`: connections that netfilter still translates
//! - `own`: connections that this node began
//! - `life`: whether a flow is alive, and the marks in its entries
//! - `exit`: the way out of a packet, and its new bytes
//! - `begin`: the entries of new flows, and their source ports
//! - `rare`: packets outside the common case
//! - `seek`: the flow of a packet, or the decision without one
//! - `fast`: the fast path
//! - `parts`: the parts of the whole path
//! - `ingress`: the stages of packets that come in
//! - `egress`: the stages of packets that go out
//! - `whole`: the whole path
//! - `socket`: the socket hooks

mod begin;
mod choose;
mod classify;
mod egress;
mod exit;
pub mod fast;
mod fragments;
mod ingress;
mod inherited;
mod life;
mod own;
pub mod parts;
mod rare;
mod role;
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

pub use choose::{Asker, Choice, is_local_only};
pub use parts::{Part, Parts};
pub use role::Role;
pub use scratch::begin::{Begin, Pair, PortSearch, Reservation};
pub use scratch::exit::Exit;
pub use scratch::found::Found;
pub use scratch::quoted::Quoted;
pub use scratch::{Next, Scratch};
pub use stage::Stage;
use step::ready;
pub use step::{Refusal, Step};

/// Handles a packet that comes in by an interface: the fast path first, then the whole one. Only code in user space
/// calls it.
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

/// Handles a packet that goes out by an interface: the fast path first, then the whole one. Only code in user space
/// calls it, as [`ingress`].
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
