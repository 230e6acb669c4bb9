//! Test doubles of the data path: a packet of plain bytes, tables in memory, and fixtures as data.
//!
//! The host tests, the differential test, the differential fuzzer and the benchmark share them, so that
//! each case is written once. Nothing here is compiled for the kernel.
#![expect(clippy::panic, reason = "test doubles: a broken fixture must stop the test that uses it")]

use core::ops::RangeInclusive;
use std::net::{IpAddr, SocketAddr};

use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::flow::{Kind, Side, Tuple};
use crate::hash;

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

/// The `turn`-th port that is tried for the translated source of a client's packets, from the range of a node.
pub fn source_port(
    range: &RangeInclusive<u16>,
    tuple: &Tuple,
    protocol: Protocol,
    turn: u32,
) -> Port {
    let first = (hash::client(tuple, protocol) >> 16) + u32::from(tuple.source_port.get());
    let wish = first.wrapping_add(0x9e37_79b9_u32.wrapping_mul(turn));
    // For a privileged port the data path tries privileged ones.
    let range = if tuple.source_port.get() < 1_024 { &(600..=1_023) } else { range };
    let width = u32::from(range.end() - range.start()) + 1;
    Port::new(range.start() + (wish % width) as u16)
}

/// The entries of a masqueraded flow: kind and side, the ends of its packets, and those after its translation. `own`:
/// the source that the client gets.
pub const fn masqueraded_flow(
    [client, frontend, backend, own]: [Endpoint; 4],
) -> [(Kind, Side, [Endpoint; 2], [Endpoint; 2]); 4] {
    [
        (Kind::FORWARD, Side::INGRESS, [client, frontend], [client, backend]),
        (Kind::MASQUERADE, Side::EGRESS, [client, backend], [own, backend]),
        (Kind::UNMASQUERADE, Side::INGRESS, [backend, own], [backend, client]),
        (Kind::REPLY, Side::EGRESS, [backend, client], [frontend, client]),
    ]
}

/// An address in its usual text form.
pub fn ip(text: &str) -> Ip {
    match text.parse::<IpAddr>() {
        Ok(address) => Ip::from(address),
        Err(error) => panic!("{text}: {error}"),
    }
}

/// An address and a port in their usual text form: `10.0.0.1:80`, `[fd00::1]:80`.
pub fn at(text: &str) -> Endpoint {
    let socket: SocketAddr = match text.parse() {
        Ok(socket) => socket,
        Err(error) => panic!("{text}: {error}"),
    };
    Endpoint::new(Ip::from(socket.ip()), Port::new(socket.port()))
}
