//! Standalone control plane: what an API server decides about Services, kept in one file.
//!
//! The middle is pure: [`service`] turns what a client wants into an object with its bookings, or into all the causes
//! against it. It knows no eBPF and no netlink, and needs no root.
#![forbid(unsafe_code)]

pub mod api;
mod check;
pub mod credentials;
pub mod family;
pub mod field;
pub mod files;
pub mod kind;
pub mod meta;
mod schema;
pub mod serve;
pub mod service;
pub mod store;
