//! Packets that are not the common case: ICMP, refusals, fragments, packets of this host, and packets to a backend itself.

pub(super) mod direct;
pub(super) mod fragments;
pub(super) mod host;
pub(super) mod icmp;
pub(super) mod quoted;
pub(super) mod reject;
