//! The machine as the data path sees it: which devices lead to pods, which to the outside, which addresses are ours.
//!
//! `watch` follows netlink, `view` is what it shows, `roles`, `sources` and `settings` decide, purely; `bystanders` looks who else is there.

use std::net::IpAddr;

pub mod acceleration;
pub mod bystanders;
mod pattern;
pub mod roles;
pub mod settings;
mod sources;
pub mod view;
pub mod watch;

pub use acceleration::{Hardware, refusal};
pub use pattern::Pattern;
pub use roles::{Assignment, Identity, LocalClients, addresses, assignments, doubtful, unreadable};
pub use view::{Address, Head, Link, LinkKind, View};
pub use watch::Told;

/// The two addresses of a Node object that count: the first of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Primary {
    /// IPv4.
    pub v4: Option<IpAddr>,
    /// IPv6.
    pub v6: Option<IpAddr>,
}
