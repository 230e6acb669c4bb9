//! The node agent as a library: watches Services, decides what the maps should hold, writes the difference.
#![deny(unsafe_code)]

pub mod plan;
pub mod snapshot;
pub mod tracker;
pub mod translate;
pub mod watch;
