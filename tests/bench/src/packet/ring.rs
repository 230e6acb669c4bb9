//! Rings of flows, which make tables idempotent.
//!
//! The `repeat` of a test run passes each packet on as the last repeat left it, so the translation of a packet must
//! itself be a packet of the next flow in the ring. Every repeat then does the full work for a packet of an established
//! flow, each time of another flow.

use lb_common::addr::{Endpoint, Ip, Port};
use lb_common::fake::{Datagram, Transport};
use lb_common::wire::tcp;
use lb_tests::topology::Family;
use lb_tests::traffic::Protocol;

use super::variant::Kind;

/// The sizes that are measured, in flows. A ring of one flow needs two entries, between which it alternates.
pub(super) const FLOWS: [usize; 3] = [1, 1_024, 65_536];
/// A size that is measured with one kind of packet only, because one round of it takes half a second.
pub(super) const MANY: usize = 1 << 20;

/// The capacity of a flow table: the default, or four times the number of flows. Both entries of [`MANY`] flows then
/// fill half of it, as those of 65,536 flows fill half of the default.
pub(super) const fn capacity(flows: usize) -> usize {
    const CAPACITY: usize = 262_144;
    if 4 * flows > CAPACITY { 4 * flows } else { CAPACITY }
}
/// The smallest number of repeats of one measurement: about 10 ms.
const REPEATS: usize = 65_536;
/// First packets of one measurement, each to a frontend of its own.
pub(super) const FIRST: usize = 500;

/// The number of entries of a ring.
pub(super) const fn entries(flows: usize) -> usize {
    if flows < 2 { 2 } else { flows }
}

/// The number of repeats of a measurement: whole rounds of the ring, so that it ends where it began.
pub(super) const fn repeats(flows: usize) -> u32 {
    let rounds = REPEATS.div_ceil(entries(flows));
    (entries(flows) * rounds) as u32
}

/// Scatters positions over the ring, so that neighbours in memory are not neighbours in time.
const fn scatter(position: usize, flows: usize) -> usize {
    (position * 40_503 + 17) % entries(flows)
}

/// A client of the ring. Its port compensates for its address in the checksum (which contains the address twice, in the
/// pseudo-header and in the sum of the packet), so that all packets of a ring either look like ones with a partial
/// checksum to XDP, or none does.
pub(super) const fn client(position: usize, flows: usize, family: Family) -> Endpoint {
    let number = scatter(position % entries(flows), flows);
    let [low, middle, high, ..] = number.to_le_bytes();
    let ip = match family {
        Family::V4 => Ip::v4([10, 1 + high, middle, low]),
        Family::V6 => Ip::v6([0xfd, 0, 0, 1 + high, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, middle, low]),
    };
    let port = 65_535 - (2 * (number % 65_536 + number / 65_536)) % 65_535;
    Endpoint::new(ip, Port::new(port as u16))
}

/// The `number`-th frontend of a service range.
pub(super) const fn frontend(number: usize, family: Family) -> Endpoint {
    let [low, high, ..] = (number + 256).to_le_bytes();
    let ip = match family {
        Family::V4 => Ip::v4([10, 96, high, low]),
        Family::V6 => Ip::v6([0xfd, 0, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low]),
    };
    Endpoint::new(ip, Port::new(1_000 + (number % 20_000) as u16))
}

/// A packet with a payload of eight bytes. Small packets cost the most per byte.
pub(super) fn packet(source: Endpoint, destination: Endpoint, kind: Kind, first: bool) -> Datagram {
    let flags = if first { tcp::SYN } else { tcp::ACK };
    let carried = match kind.transport {
        Protocol::Tcp => Transport::Tcp(flags),
        Protocol::Udp => Transport::Udp(true),
    };
    Datagram::new(source, destination, carried)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{FLOWS, Family, MANY, client, entries, frontend, repeats};

    #[test]
    fn ring_visits_every_client_once() {
        for flows in FLOWS.into_iter().chain([MANY]) {
            let all: BTreeSet<_> =
                (0..entries(flows)).map(|at| client(at, flows, Family::V4)).collect();
            assert_eq!(all.len(), entries(flows));
            assert_eq!(client(entries(flows), flows, Family::V6), client(0, flows, Family::V6));
            assert_eq!(repeats(flows) as usize % entries(flows), 0);
        }
    }

    #[test]
    fn frontends_are_distinct() {
        let all: BTreeSet<_> = (0..65_000).map(|number| frontend(number, Family::V4).ip).collect();
        assert_eq!(all.len(), 65_000);
    }
}
