//! Real sockets in namespaces: who answers, whom they saw, and how it fails when it fails.
//!
//! A test never opens a socket itself. Each member of a topology has a process ([`peer::Peer`], the
//! binary `lb-test-peer`) in its namespace and its cgroup; the test tells it what to ask or to serve.
//! Servers answer each line with their name and the address of whom they saw.

mod ask;
mod background;
mod both;
pub mod capture;
pub mod command;
mod conversation;
pub mod frame;
mod handmade;
mod load;
pub mod peer;
mod ping;
pub mod raw;
mod rounds;
mod sctp;
mod server;
pub mod session;
pub mod survey;

pub use ask::{Answer, Ask, Failure, Protocol};
pub use capture::Capture;
pub use frame::Frame;
pub use handmade::{Handmade, pieces};
pub use peer::{Kept, Ledger, Load, Many, PAUSE, Peer, Tally};
pub use ping::ping;
pub use raw::Raw;
pub use sctp::Sctp;
