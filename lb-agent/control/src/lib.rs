//! Standalone control plane: what an API server decides about Services, kept in one file.
//!
//! The middle is pure: [`service`] turns what a client wants into an object with its bookings, or into all the causes
//! against it. It knows no eBPF and no netlink, and needs no root.
//!
//! The modules from the bottom up. A module uses only those before it in this list: `cargo test -p xtask module_order`
//! checks this. The `mod` lines below are alphabetical, because rustfmt sorts them.
//!
//! - `family`: the IP families
//! - `field`: faults of fields, in the words of Kubernetes
//! - `kind`: the served resources
//! - `schema`: every field of an object, and its encodings
//! - `check`: the syntax of names, labels and addresses
//! - `meta`: the metadata of every object, and its rules
//! - `service`: decisions about Services
//! - `store`: objects, bookings and history in one file
//! - `identity`: the roles of clients
//! - `credentials`: bearer tokens
//! - `files`: the directory with store, certificates and kubeconfigs
//! - `api`: answers to requests
//! - `serve`: the listener
#![forbid(unsafe_code)]

pub mod api;
mod check;
pub mod credentials;
pub mod family;
pub mod field;
pub mod files;
pub mod identity;
pub mod kind;
pub mod meta;
mod schema;
pub mod serve;
pub mod service;
pub mod store;
