//! Hashes of packets and addresses, and the positions in filters and limits that they give.
//!
//! The hash [`tuple`] picks the Maglev slot of a new flow. It is equal on every node, so any node can continue a flow.

use crate::addr::{Ip, Port, Protocol};
use crate::flow::Tuple;
use crate::layout::plain;
use crate::mix::mix;

/// Hash of a packet that opens a flow.
#[inline(always)]
pub const fn tuple(tuple: &Tuple, protocol: Protocol) -> u32 {
    (whole(tuple, protocol) >> 32) as u32
}

/// All 64 bits of the hash of a packet.
#[inline(always)]
pub const fn whole(tuple: &Tuple, protocol: Protocol) -> u64 {
    ends(tuple, tuple.source_port, protocol)
}

/// Hash of a packet without its source port: the same for all flows of a client to one destination.
#[inline(always)]
pub const fn client(tuple: &Tuple, protocol: Protocol) -> u32 {
    (ends(tuple, Port::NONE, protocol) >> 32) as u32
}

#[inline(always)]
const fn ends(tuple: &Tuple, source_port: Port, protocol: Protocol) -> u64 {
    let [s0, s1, s2, s3] = tuple.source.words();
    let [d0, d1, d2, d3] = tuple.destination.words();
    let ports = (source_port.get() as u64) << 32
        | (tuple.destination_port.get() as u64) << 16
        | protocol.0 as u64;
    let source = mix((s0 as u64) << 32 | s1 as u64, (s2 as u64) << 32 | s3 as u64);
    let destination = mix((d0 as u64) << 32 | d1 as u64, (d2 as u64) << 32 | d3 as u64);
    mix(source ^ ports, destination)
}

pub const ENDPOINT_BITS: u32 = 1 << 21;
/// Bits for all ports of an address: together a line of 64 bytes, so that lookups for one address with many different
/// ports stay in one cache line.
const PORT_BITS: u32 = 512;

/// The bit of `BACKEND_FILTER` for an address and a port.
#[inline(always)]
pub const fn endpoint(ip: &Ip, port: Port) -> u32 {
    line(ip) * PORT_BITS + port.get() as u32 % PORT_BITS
}

/// One of 4,096 lines for an address. Cheap, because packets for no Service are looked up as well.
#[inline(always)]
const fn line(ip: &Ip) -> u32 {
    let [high, low] = ip.u64s();
    // CNI plugins give the pods of each node a /64 of IPv6, and in each of them the same low addresses.
    ((high.rotate_left(48) ^ low.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as u32
}

const _: () = assert!(ENDPOINT_BITS == PORT_BITS << 12);

/// Lines of `IN_USE`.
pub const BACKEND_LINES: u32 = 1 << 12;
/// Bytes in each line of `IN_USE`.
const BACKEND_BYTES: usize = 64;

/// The line of `IN_USE` and the byte in it for a backend.
#[inline(always)]
pub const fn backend_byte(ip: &Ip, port: Port) -> (u32, usize) {
    (line(ip), port.get() as usize % BACKEND_BYTES)
}

const _: () = assert!(BACKEND_LINES == 1 << (64 - 52));

/// Elements of `REJECT_LIMIT`.
pub const REJECT_LIMIT: u32 = 1 << 8;

/// The element of `REJECT_LIMIT` for rejections of a frontend. Frontends with the same element share its limit.
#[inline(always)]
pub const fn rejections(ip: &Ip, port: Port, protocol: Protocol) -> u32 {
    let [w0, w1, w2, w3] = ip.words();
    let ends = (w0 as u64 ^ w2 as u64) << 32 | (w1 ^ w3) as u64;
    mix(ends, (port.get() as u64) << 8 | protocol.0 as u64) as u32 % REJECT_LIMIT
}

/// A number for two addresses, which cannot be predicted without the secret.
#[inline(always)]
pub const fn of_addresses(source: &Ip, destination: &Ip, secret: u32) -> u32 {
    let [s0, s1, s2, s3] = source.words();
    let [d0, d1, d2, d3] = destination.words();
    let high = mix((s0 as u64) << 32 | s1 as u64, (d0 as u64) << 32 | d1 as u64);
    let low = mix((s2 as u64) << 32 | s3 as u64, (d2 as u64) << 32 | d3 as u64);
    mix(high ^ secret as u64, low.rotate_left(17) ^ (secret as u64) << 32) as u32
}

/// A word of `BACKEND_FILTER`. The type has a name of its own, to be changed whenever the numbering of the bits
/// changes.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointBits(pub u64);

plain!(EndpointBits = 8 { 0 });

/// A line of `IN_USE`. Its name changes, too, whenever the numbering of lines and bytes changes.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendBytes(pub [u8; BACKEND_BYTES]);

plain!(BackendBytes = 64 { 0 });

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The address of a pod, by the numbers of its node and of itself.
    type Address = fn(u8, u8) -> Ip;

    /// 64 nodes with 60 pods each, whose networks are as CNI plugins divide a prefix. 3,840 addresses that are spread
    /// evenly take some 2,490 of 4,096 lines.
    #[test]
    fn backends_of_all_nodes_are_spread_over_the_lines() {
        let pods = (0..64_u8).flat_map(|node| (2..62_u8).map(move |pod| (node, pod)));
        let lines = |address: Address| -> usize {
            let line = |(node, pod)| backend_byte(&address(node, pod), Port::new(80)).0;
            pods.clone().map(line).collect::<BTreeSet<u32>>().len()
        };
        let ways: [(&str, Address); 4] = [
            ("a /24 of IPv4 for each node", |node, pod| Ip::v4([10, 244, node, pod])),
            ("a /26 of IPv4", |node, pod| Ip::v4([10, 244, node / 4, node % 4 * 64 + pod])),
            ("a /64 of IPv6", |node, pod| {
                Ip::v6([0xfd, 0, 0, 10, 2, 44, 0, node, 0, 0, 0, 0, 0, 0, 0, pod])
            }),
            ("a /120 of IPv6", |node, pod| {
                Ip::v6([0xfd, 0, 0, 10, 2, 44, 0, 0, 0, 0, 0, 0, 0, 0, node, pod])
            }),
        ];
        for (way, address) in ways {
            assert!(lines(address) > 2_000, "{way}: {} lines", lines(address));
        }
    }
}
