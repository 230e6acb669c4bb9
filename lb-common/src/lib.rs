//! The data path of lb-agent, as pure functions over a packet and tables.
//!
//! The same code is compiled for the kernel (`lb-ebpf`) and for the host (tests, `explain`). It
//! holds no state, allocates nothing, calls no map and no kernel helper (`maps` only declares them);
//! see `ARCHITECTURE.md` for the path of a packet. Entries of maps and headers are `addr`, `service`, `flow`, `config` and
//! `wire`; the path asks its surroundings through `packet` (`l3`: without a link-layer header),
//! `tables` and `route`; the path itself is `forward`, and what it says of a packet `event`.
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
pub mod l3;
pub mod layout;
pub mod maglev;
pub mod maps;
pub mod packet;
pub mod route;
pub mod scratch;
pub mod sctp;
pub mod service;
pub mod tables;
pub mod wire;
