//! `status` and the lists, for people. They read the pinned maps and the state file of the last run, so they work
//! without an agent.

pub mod affinity;
mod attachments;
pub mod diff;
mod error;
pub mod explain;
pub mod flows;
pub mod ipvs;
pub mod list;
pub mod map;
mod pieces;
mod print;
pub mod repeat;
pub mod services;
pub mod status;

pub use error::Error;
