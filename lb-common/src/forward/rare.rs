//! Packets outside the common case: ICMP, rejections, packets of this host, and packets straight to a backend.

pub(super) mod direct;
pub(super) mod host;
pub(super) mod icmp;
pub(super) mod quoted;
pub(super) mod reject;
