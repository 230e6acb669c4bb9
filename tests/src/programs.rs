//! The eBPF programs on interfaces of a namespace.

use anyhow::Result;
use lb_agent::datapath::{Direction, attached_programs};
use nix::net::if_::if_nametoindex;

/// Whether an interface of the calling thread's namespace has tcx programs in both directions.
pub fn are_on(device: &str) -> Result<bool> {
    let index = if_nametoindex(device)?;
    let both = [Direction::Ingress, Direction::Egress].map(|it| attached_programs(index, it));
    Ok(both.into_iter().all(|found| found.is_ok_and(|found| !found.is_empty())))
}
