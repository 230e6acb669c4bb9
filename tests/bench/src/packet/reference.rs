//! The reference programs (`lb-ebpf/src/reference.rs`), their tables and their measurements.

use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::{Context as _, Result, bail, ensure};
use aya::Ebpf;
use aya::maps::Map;
use aya::programs::Program;
use lb_agent::datapath::PacketLog;
use lb_common::addr::{Endpoint, Ip};
use lb_tests::differential::bpf::{self, Plain};
use lb_tests::topology::Family;
use lb_tests::traffic::Protocol as Transport;

use super::ring::{self, FIRST, FLOWS, MANY};
use super::single;
use super::variant::{Case, Kind, Label, Variant};

mod entry;

use entry::{Key, Target, V4, V6, key, target};

/// One loaded object: each of its tables holds one ring.
struct Object(Ebpf);

impl Object {
    #[expect(clippy::wildcard_enum_match_arm, reason = "aya knows many kinds, we use few")]
    /// Loads an object whose tables have room for this number of flows.
    fn load(object: &[u8], flows: usize) -> Result<Self> {
        let mut loader = PacketLog::Off.loader();
        let capacity = ring::capacity(flows) as u32;
        // Only one family has a ring of [`MANY`] flows; tables of the other family stay small.
        let others = ring::capacity(if flows == MANY { 1 } else { flows }) as u32;
        let loader = loader.map_max_entries("FLOWS4", capacity).map_max_entries("FLOWS6", others);
        let mut ebpf = loader.load(object).context("load the object")?;
        for (name, program) in ebpf.programs_mut() {
            match program {
                Program::Xdp(xdp) => xdp.load(),
                Program::SchedClassifier(tc) => tc.load(),
                _ => bail!("program {name} is of no kind known here"),
            }
            .with_context(|| format!("load {name}"))?;
        }
        Ok(Self(ebpf))
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "aya knows many kinds, we use few")]
    fn program(&self, name: &str) -> Result<BorrowedFd<'_>> {
        match self.0.program(name).with_context(|| format!("program {name}"))? {
            Program::Xdp(xdp) => Ok(xdp.fd()?.as_fd()),
            Program::SchedClassifier(tc) => Ok(tc.fd()?.as_fd()),
            _ => bail!("program {name} is of no kind known here"),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "aya knows many kinds, we use few")]
    fn map(&self, name: &str) -> Result<BorrowedFd<'_>> {
        match self.0.map(name).with_context(|| format!("map {name}"))? {
            Map::HashMap(data) => Ok(data.fd().as_fd()),
            _ => bail!("map {name} is no hash map"),
        }
    }

    /// Fills a table with a ring: a client and a destination for each flow, and the entries that answers would use.
    fn fill<const W: usize>(&self, map: &str, kind: Kind, flows: usize) -> Result<()>
    where
        Key<W>: Plain,
        Target<W>: Plain,
    {
        let (map, protocol) = (self.map(map)?, kind.protocol());
        let one = ring::client(0, flows, kind.family);
        // Filled in the order of addresses, as our tables are; otherwise packets would meet the elements in the order
        // in which they lie in memory.
        let mut positions: Vec<usize> = (0..ring::entries(flows)).collect();
        positions.sort_by_key(|position| ring::client(*position, flows, kind.family));
        for position in positions {
            let [from, to] = [position, position + 1].map(|at| destination(at, flows, kind.family));
            bpf::put(map, &key::<W>(one, from, protocol), &target::<W>(to, protocol))?;
            bpf::put(map, &key::<W>(to, one, protocol), &target::<W>(from, protocol))?;
        }
        Ok(())
    }

    /// Fills a table with a chain: each frontend's backend is the next frontend.
    fn chain<const W: usize>(&self, map: &str, kind: Kind) -> Result<()>
    where
        Target<W>: Plain,
    {
        let protocol = kind.protocol();
        for number in 0..FIRST {
            let [from, to] = [number, number + 1].map(|at| ring::frontend(at, kind.family));
            bpf::put(self.map(map)?, &target::<W>(from, protocol), &target::<W>(to, protocol))?;
        }
        Ok(())
    }

    fn forget<const W: usize>(&self, map: &str) -> Result<()>
    where
        Key<W>: Plain,
        Target<W>: Plain,
    {
        let _gone: Vec<(Key<W>, Target<W>)> = bpf::entries(self.map(map)?, true)?;
        Ok(())
    }

    /// Runs a program. Its return code must pass the packet on, and the addresses of the result must be those of
    /// `becomes`.
    fn run(&self, name: &str, packet: &[u8], repeat: u32, becomes: &[u8]) -> Result<f64> {
        let code = goes_on(name.ends_with("xdp"));
        let mut out = vec![0; packet.len()];
        let ran = bpf::test_run(self.program(name)?, packet, &mut out, None, repeat)?;
        ensure!(ran.code == code, "{name} said {}, not {code}", ran.code);
        // A checksum of zero has two representations, so only addresses and ports are compared.
        ensure!(tuple(&out) == tuple(becomes), "{name} left its ring: {out:02x?}");
        Ok(ran.nanoseconds.into())
    }
}

/// The IP addresses and the ports of a packet without options.
fn tuple(packet: &[u8]) -> Option<&[u8]> {
    if packet.get(12..14) == Some(&[0x08, 0x00]) { packet.get(26..38) } else { packet.get(22..58) }
}

const fn destination(position: usize, flows: usize, family: Family) -> Endpoint {
    // Frontends and clients of the two kinds of ring have different addresses.
    let mut end = ring::client(position, flows, family);
    let [a, b, c, d] = end.ip.words();
    end.ip = Ip::from_words([a, b, c, d ^ 0x80]);
    end
}

/// The reference programs: one loaded object for each transport and ring, and one for first packets.
pub(super) struct References {
    rings: Vec<(Transport, usize, Object)>,
    first: Vec<(Transport, Object)>,
}

impl References {
    /// Loads the programs and fills their tables.
    pub(super) fn load(object: &[u8], many: bool) -> Result<Self> {
        let (mut rings, mut first) = (Vec::new(), Vec::new());
        for transport in Transport::ALL {
            let kind = |family| Kind { family, transport };
            for flows in FLOWS {
                let object = Object::load(object, flows)?;
                object.fill::<V4>("FLOWS4", kind(Family::V4), flows)?;
                object.fill::<V6>("FLOWS6", kind(Family::V6), flows)?;
                rings.push((transport, flows, object));
            }
            if many && kind(Family::V4) == Kind::ALL[0] {
                let object = Object::load(object, MANY)?;
                object.fill::<V4>("FLOWS4", kind(Family::V4), MANY)?;
                rings.push((transport, MANY, object));
            }
            let object = Object::load(object, 1)?;
            object.chain::<V4>("FRONTENDS4", kind(Family::V4))?;
            object.chain::<V6>("FRONTENDS6", kind(Family::V6))?;
            first.push((transport, object));
        }
        Ok(Self { rings, first })
    }

    /// All variants that use these programs.
    pub(super) fn variants(&self) -> Vec<Variant<'_>> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            let rings = self.rings.iter().filter(|(transport, ..)| *transport == kind.transport);
            for (_, flows, object) in rings {
                if *flows == MANY && kind != Kind::ALL[0] {
                    continue;
                }
                all.push(established(object, kind, *flows, "translate_tc"));
                all.push(established(object, kind, *flows, "translate_xdp"));
                if *flows == 1 {
                    all.extend(UNTOUCHED.map(|(name, case)| untouched(object, kind, name, case)));
                    all.extend(SINGLE.map(|(name, case)| alone(object, kind, name, case)));
                }
            }
            for (transport, object) in &self.first {
                if *transport == kind.transport {
                    all.push(first(object, kind));
                }
            }
        }
        all
    }
}

/// Programs that leave the packet unchanged, and their cases.
const UNTOUCHED: [(&str, Case); 6] = [
    ("empty", Case::Bare),
    ("empty_xdp", Case::Bare),
    ("parse_tc", Case::Bare),
    ("parse_xdp", Case::Bare),
    ("look_up_tc", Case::NotOurs),
    ("look_up_xdp", Case::NotOurs),
];

/// The cases to compare with for packets that are measured one at a time: the fixed cost of such a measurement.
const SINGLE: [(&str, Case); 4] = [
    ("empty", Case::Reject),
    ("empty", Case::Bypass),
    ("empty", Case::Alone),
    ("empty_xdp", Case::Redirected),
];

fn label(program: &'static str, case: Case, flows: usize, kind: Kind) -> Label {
    Label { program, xdp: program.ends_with("xdp"), case, flows, kind }
}

/// The return code that passes a packet on: `TC_ACT_UNSPEC`, or `XDP_PASS`.
const fn goes_on(xdp: bool) -> u32 {
    if xdp { 2 } else { u32::MAX }
}

fn established<'a>(
    object: &'a Object,
    kind: Kind,
    flows: usize,
    name: &'static str,
) -> Variant<'a> {
    let from = ring::client(0, flows, kind.family);
    let packet = ring::packet(from, destination(0, flows, kind.family), kind, false).build();
    let label = label(name, Case::Established, flows, kind);
    Variant::new(label, packet.len(), move || {
        object.run(name, &packet, ring::entries(flows) as u32, &packet)?;
        object.run(name, &packet, ring::repeats(flows), &packet)
    })
}

fn untouched<'a>(object: &'a Object, kind: Kind, name: &'static str, case: Case) -> Variant<'a> {
    let packet = super::ours::foreign(kind);
    let label = label(name, case, 0, kind);
    Variant::new(label, packet.len(), move || {
        object.run(name, &packet, 1_000, &packet)?;
        object.run(name, &packet, ring::repeats(1), &packet)
    })
}

fn alone<'a>(object: &'a Object, kind: Kind, name: &'static str, case: Case) -> Variant<'a> {
    let packet = super::ours::foreign(kind);
    Variant::new(label(name, case, 0, kind), packet.len(), move || {
        single::middle(|| object.run(name, &packet, 1, &packet))
    })
}

fn first(object: &Object, kind: Kind) -> Variant<'_> {
    let from = ring::client(0, 1, kind.family);
    let [packet, last] = [0, FIRST]
        .map(|at| ring::packet(from, ring::frontend(at, kind.family), kind, true).build());
    let name = "translate_tc";
    Variant::new(label(name, Case::First, 0, kind), packet.len(), move || {
        match kind.family {
            Family::V4 => object.forget::<V4>("FLOWS4")?,
            Family::V6 => object.forget::<V6>("FLOWS6")?,
        }
        object.run(name, &packet, FIRST as u32, &last)
    })
}
