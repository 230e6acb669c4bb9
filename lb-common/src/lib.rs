//! The data path of lb-agent, as pure functions over a packet and tables.
//!
//! The same code is compiled for the kernel (`lb-ebpf`) and for the host (tests, `explain`). It
//! holds no state, allocates nothing, calls no map and no kernel helper (`maps` only declares them);
//! see `ARCHITECTURE.md` for the path of a packet.
//!
//! A module uses only modules of earlier lines, or those before it in its own line:
//!
//! 1. `mix`, `layout`: the requirements on types of map entries
//! 2. `addr`, `checksum`, `event`, `route`: values; how a packet can end
//! 3. `service`, `flow`, `config`, `hash`, `maglev`, `maps`: the entries of the maps
//! 4. `hook`, `packet`, `tables`: the traits through which the path reaches its surroundings
//! 5. `wire`, `l3`, `sctp`: the headers of a packet
//! 6. `forward`: the path itself
//! 7. `bytes`, `fake`: packets of `explain` and of tests; tables of tests
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "host"))]
extern crate std;

pub mod addr;
#[cfg(any(test, feature = "host"))]
pub mod bytes;
pub mod checksum;
pub mod config;
pub mod event;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod flow;
pub mod forward;
pub mod hash;
pub mod hook;
pub mod l3;
pub mod layout;
pub mod maglev;
pub mod maps;
mod mix;
pub mod packet;
pub mod route;
pub mod sctp;
pub mod service;
pub mod tables;
pub mod wire;
