//! Test doubles of the data path: a packet of plain bytes, tables in memory, and fixtures as data.
//!
//! The host tests, the differential test, the differential fuzzer and the benchmark share them, so that
//! each case is written once. Nothing here is compiled for the kernel.
#![expect(clippy::panic, reason = "test doubles: a broken fixture must stop the test that uses it")]

use std::format;
use std::net::{IpAddr, SocketAddr};

use crate::addr::{Endpoint, Ip, Port};

mod build;
mod dissect;
mod fixture;
pub mod fixtures;
mod node;
mod tables;
pub mod world;

pub use crate::bytes::{Bytes, Home, KnownRoute};
pub use build::{Datagram, Piece, Transport};
pub use dissect::{assert_packet_eq, fields, wrong_checksums};
pub use fixture::{Fixture, Step, is_fast, run, run_both, run_in, run_l3, run_whole};
pub use node::{Fake, Meanwhile};

/// An address in its usual text form.
pub fn ip(text: &str) -> Ip {
    match text.parse() {
        Ok(IpAddr::V4(address)) => Ip::v4(address.octets()),
        Ok(IpAddr::V6(address)) => Ip::v6(address.octets()),
        Err(error) => panic!("{text}: {error}"),
    }
}

/// An address and a port in their usual text form: `10.0.0.1:80`, `[fd00::1]:80`.
pub fn at(text: &str) -> Endpoint {
    let socket: SocketAddr = match text.parse() {
        Ok(socket) => socket,
        Err(error) => panic!("{text}: {error}"),
    };
    Endpoint::new(ip(&format!("{}", socket.ip())), Port::new(socket.port()))
}
