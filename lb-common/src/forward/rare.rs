//! Packets outside the common case: ICMP, rejections, fragments, packets of this host, its own connections, and
//! packets straight to a backend.

pub(super) mod direct;
pub(super) mod fragments;
pub(super) mod host;
pub(super) mod icmp;
pub(super) mod own;
pub(super) mod quoted;
pub(super) mod reject;
