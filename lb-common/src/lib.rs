//! The data path of lb-agent, as pure functions over a packet and tables.
//!
//! The same code is compiled for the kernel (`lb-ebpf`) and for user space (tests, `explain`). It
//! holds no state, allocates nothing, calls no map and no kernel helper (`maps` only declares them);
//! see `ARCHITECTURE.md` for the path of a packet.
//!
//! The list has the modules from the bottom up. A module uses only those before it, which `cargo test -p xtask
//! module_order` checks. Unit tests may use all.
//!
//! - `mix`: the mixing function of all hashes
//! - `layout`: the requirements on types of map entries
//! - `addr`: addresses, ports and protocols
//! - `checksum`: changes of checksums
//! - `event`: verdicts, their reasons, and what is counted
//! - `route`: answers of the kernel about routes
//! - `service`: entries of services and backends
//! - `flow`: entries of flows
//! - `config`: entries of settings, interfaces and addresses
//! - `hash`: hashes of packets and the filters over them
//! - `maglev`: slots of a set of backends
//! - `maps`: the list of all maps
//! - `hook`: the trait of the hook at which a program handles a packet
//! - `packet`: the trait of the bytes of a packet
//! - `tables`: the traits of the maps
//! - `wire`: the headers of a packet
//! - `l3`: packets without a link-layer header
//! - `sctp`: changes of SCTP ports
//! - `forward`: the path of a packet
//! - `bytes`: a packet in memory, for `explain` and tests
//! - `fake`: tables in memory, and the fixtures
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
