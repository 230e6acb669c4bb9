//! Entries of the reference programs' maps, in the layout of `lb-ebpf/src/reference_packet.rs`.

use lb_common::addr::{Endpoint, Ip, Protocol};
use lb_tests::differential::bpf::Plain;

pub(super) const V4: usize = 1;
pub(super) const V6: usize = 4;

/// The key of a reference flow: source and destination address as in the packet, both ports, and the protocol.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Key<const W: usize>([u32; W], [u32; W], [[u8; 2]; 2], u32);

/// The target of a reference entry: address, port, and the protocol where the map uses it as a key.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Target<const W: usize>([u32; W], [u8; 2], u16);

impl<const W: usize> Default for Key<W> {
    fn default() -> Self {
        Self([0; W], [0; W], [[0; 2]; 2], 0)
    }
}

impl<const W: usize> Default for Target<W> {
    fn default() -> Self {
        Self([0; W], [0; 2], 0)
    }
}

impl Plain for Key<V4> {}
impl Plain for Key<V6> {}
impl Plain for Target<V4> {}
impl Plain for Target<V6> {}

/// The words of an address: one for an IPv4 address, four for an IPv6 address.
fn words<const W: usize>(ip: &Ip) -> [u32; W] {
    let words = ip.words();
    words.last_chunk().copied().unwrap_or([0; W])
}

pub(super) fn key<const W: usize>(
    source: Endpoint,
    destination: Endpoint,
    protocol: Protocol,
) -> Key<W> {
    let ports = [source.port.octets(), destination.port.octets()];
    Key(words(&source.ip), words(&destination.ip), ports, protocol.0.into())
}

pub(super) fn target<const W: usize>(end: Endpoint, protocol: Protocol) -> Target<W> {
    Target(words(&end.ip), end.port.octets(), protocol.0.into())
}
