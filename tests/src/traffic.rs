//! Real sockets in namespaces: the server that answers, the client address that it saw, and the kind of failure without
//! an answer.
//!
//! A test never opens a socket itself. Each member of a topology has a process ([`peer::Peer`], the binary
//! `lb-test-peer`) in its namespace and its cgroup, and the test sends it orders to ask or to serve. A question is one
//! line to a server; the server answers with a line that holds its name and the client address that it saw.

mod ask;
mod attacked;
mod background;
mod both;
pub mod capture;
pub mod closing;
pub mod command;
mod conversation;
pub mod frame;
mod handmade;
mod load;
pub mod open;
pub mod peer;
mod ping;
pub mod raw;
mod rounds;
mod sctp;
mod server;
pub mod session;
mod spoofed;
pub mod survey;

pub use ask::{Answer, Ask, Failure, Protocol};
pub use attacked::{Attacked, End};
pub use capture::Capture;
pub use frame::Frame;
pub use handmade::{Handmade, pieces};
pub use peer::{Kept, Ledger, Load, Many, PAUSE, Peer, Tally};
pub use ping::ping;
pub use raw::Raw;
pub use sctp::Sctp;
pub use spoofed::{is_spoofed, spoofed};
