//! The machine as the data path sees it: the interfaces that lead to pods or outside, and the addresses of the node.
//!
//! `watch` follows netlink, and `view` is its result. `roles`, `sources` and `settings` decide, as pure functions.

pub mod acceleration;
pub mod hidden;
pub mod host;
pub mod identity;
mod leads;
pub(crate) mod links;
pub mod listeners;
mod nexthops;
pub mod open;
pub mod raw_rules;
pub mod roles;
mod routed;
pub mod settings;
mod sockets;
mod sources;
pub mod view;
pub mod watch;

pub use acceleration::{Hardware, refusal};
pub use identity::{Identity, LocalClients, Primary};
pub(crate) use roles::assignments_among;
pub use roles::{
    Assignment, addresses, ambiguous, assignments, kept, stranded, unreadable, unserved,
};
pub use routed::RoutedInterfaces;
pub use view::{Address, Head, Link, LinkKind, NetnsView};
pub use watch::ChangeSource;
