//! The machine as the data path sees it: the interfaces that lead to pods or outside, and the addresses of the node.
//!
//! `watch` follows netlink, and `view` is its result. `roles`, `sources` and `settings` decide, as pure functions.

use std::net::IpAddr;

pub mod acceleration;
pub mod hidden;
pub mod host;
mod leads;
pub(crate) mod links;
pub mod listeners;
mod nexthops;
pub mod open;
mod pattern;
pub mod raw_rules;
pub mod roles;
pub mod settings;
mod sockets;
mod sources;
pub mod view;
pub mod watch;
mod ways;

pub use acceleration::{Hardware, refusal};
pub use pattern::Pattern;
pub use roles::{
    Assignment, Identity, LocalClients, addresses, ambiguous, assignments, unreadable, unserved,
};
pub use view::{Address, Head, Link, LinkKind, View};
pub use watch::ChangeSource;
pub use ways::Ways;

/// The two primary addresses of a Node: the first one of each family (contract 8.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Primary {
    pub v4: Option<IpAddr>,
    pub v6: Option<IpAddr>,
}
