//! Our programs and their tables for `bench packet`: a ring of flows between two endpoints, each the translation of the
//! other.

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::{Endpoint, Port};
use lb_common::event::{Hook, PassReason, Translation, Verdict};
use lb_common::fake::{Fake, Step, at};
use lb_common::flow::{Flow, FlowKey, Kind as FlowKind, Shown, Side, Tuple};
use lb_common::service::{Backend, Flags, Frontend, Service, ServiceId};
use lb_tests::differential::{Kernel, bpf};
use lb_tests::topology::Family;

use super::pair::{Of, Pair};
use super::ring::{self, FIRST, FLOWS, MANY};
use super::variant::{Case, Kind, Label, Variant};

/// Payloads to try for a ring; nearly all of them work.
const PAYLOADS: u64 = 64;

/// A packet for no Service.
pub(super) fn foreign(kind: Kind) -> Vec<u8> {
    let to = match kind.family {
        Family::V4 => at("10.2.0.7:8080"),
        Family::V6 => at("[fd00:2::7]:8080"),
    };
    ring::packet(ring::client(0, 1, kind.family), to, kind, false).build()
}

/// A node with the time of the kernel. No answered flow of it expires while the tables are filled and measured, however
/// slow the machine is.
pub(super) fn node_of_now() -> Fake {
    let mut node = Fake::node();
    node.clock.set(bpf::now());
    let lifetimes = &mut node.settings.node.lifetimes;
    (lifetimes.unreplied, lifetimes.stream) = (lifetimes.open, lifetimes.open);
    node
}

/// A node whose flow table holds a ring, with both entries of each flow. Also the keys of these entries, in the order
/// in which traffic sorted by client address would have created them.
fn rings(kind: Kind, flows: usize, pair: Pair) -> (Fake, Vec<FlowKey>) {
    let mut node = node_of_now();
    let rows: Vec<_> =
        (1..).zip(pair.ends).map(|(id, end)| node.add_backend(end, true, id)).collect();
    for (position, id) in (1..=2).enumerate() {
        // The backend of each Service is the other endpoint of the pair; row 0 of `BACKENDS` is reserved.
        let service =
            Service { id, generation: 1, cluster: node.add_set(&rows), ..Service::default() };
        let Endpoint { ip, port, .. } = pair.at(position);
        let protocol = kind.protocol();
        let (key, flags) = match pair.of {
            Of::Cluster => (Frontend::new(ip, port, protocol), Flags::ANYWHERE),
            Of::Node => {
                let flags = Flags::ANYWHERE.with(Flags::EXTERNAL).with(Flags::NODE_PORT);
                (Frontend::node_port(ip, port, protocol), flags)
            }
            Of::Remote => continue,
        };
        node.services.insert(key, Service { flags, ..service });
    }
    if pair.of == Of::Remote {
        // Clients of the ring must count as the node's own masquerade sources.
        node.settings.node.set_source_ports(Port::new(1), Port::new(u16::MAX));
        for position in 0..ring::entries(flows) {
            let source = ring::client(position, flows, kind.family).ip;
            node.settings.node.own.add(&source);
        }
    }
    let mut positions: Vec<usize> = (0..ring::entries(flows)).collect();
    positions.sort_by_key(|position| ring::client(*position, flows, kind.family));
    let mut keys = Vec::new();
    for position in positions {
        for side in [Side::EGRESS, Side::INGRESS] {
            keys.push(entry(&mut node, position, kind, flows, pair, side));
        }
    }
    (node, keys)
}

/// Adds the entry for a position of a ring; returns its key.
///
/// The forward entry translates its packet into that of the next position, and the reply entry there translates back:
/// both are the entries of one open flow, so the ring does not expire while the tables are filled and measured.
fn entry(
    node: &mut Fake,
    position: usize,
    kind: Kind,
    flows: usize,
    pair: Pair,
    side: Side,
) -> FlowKey {
    // The position of the forward entry, and that of the packet which this entry makes.
    let (begin, becomes) = if pair.is_back(side) {
        let before = position + ring::entries(flows) - 1;
        (before, before)
    } else {
        (position, position + 1)
    };
    let [now, next] = [position, becomes].map(|position| {
        let [source, destination] = pair.tuple(position, kind, flows, side);
        Tuple::new(source, destination)
    });
    let (what, _) = pair.translation(side);
    let mut flow = Flow::new(next, what, node.clock.get());
    flow.service = if begin.is_multiple_of(2) { 1 } else { 2 };
    flow.backend = if begin.is_multiple_of(2) { 2 } else { 1 };
    flow.epoch = node.backends.get(flow.backend as usize).map_or(0, |row: &Backend| row.epoch);
    (flow.shown, flow.flags) = (Shown::ESTABLISHED, Flow::PROTECTED);
    if matches!(what, FlowKind::REPLY | FlowKind::UNMASQUERADE) {
        flow.flags |= Flow::ANSWER;
    }
    let key = FlowKey::new(now, kind.protocol(), side);
    node.put(key, flow);
    key
}

/// A chain of frontends: both rows of each frontend are the next frontend, so that Maglev slots are looked up as for
/// any service.
fn chain(kind: Kind) -> Fake {
    let mut node = Fake::node();
    for number in 0..FIRST {
        let [from, to] = [number, number + 1].map(|number| ring::frontend(number, kind.family));
        let id = 1 + number as ServiceId;
        // The backends are local, so that an external client keeps its address.
        let rows = [0; 2].map(|_| node.add_backend(to, true, id));
        let flags = Flags::ANYWHERE;
        let cluster = node.add_set(&rows);
        let service = Service { id, flags, generation: 1, cluster, ..Service::default() };
        let key = Frontend::new(from.ip, from.port, kind.protocol());
        node.services.insert(key, service);
    }
    node
}

/// A payload with which XDP translates the packet of every position. One in 65,536 complete checksums looks like a
/// partial one, and XDP leaves such a packet to tc.
fn payload(node: &Fake, kind: Kind, flows: usize, pair: Pair) -> Option<[u8; 8]> {
    (0..PAYLOADS).map(u64::to_be_bytes).find(|payload| {
        (0..ring::entries(flows)).all(|position| {
            let [from, to] = pair.tuple(position, kind, flows, Side::INGRESS);
            let packet = ring::packet(from, to, kind, false).with(payload).build();
            let verdict = Verdict::Translated(pair.translation(Side::INGRESS).1);
            let step =
                Step { hook: Hook::ExternalXdp, from_host: false, packet, verdict, out: None };
            lb_common::fake::run(&step, node).0 == verdict
        })
    })
}

/// A ring loaded into the kernel, and the payload of its packets.
struct Ring {
    kind: Kind,
    flows: usize,
    pair: Pair,
    kernel: Kernel,
    payload: [u8; 8],
}

/// Our programs: one loaded object for each kind and ring, and one of each kind and hook for first packets.
pub(super) struct Scenes {
    rings: Vec<Ring>,
    first: Vec<(Kind, Hook, Kernel)>,
}

impl Scenes {
    /// Loads the programs and fills their tables.
    pub(super) fn load(many: bool) -> Result<Self> {
        let (mut scenes, mut first) = (Vec::new(), Vec::new());
        for kind in Kind::ALL {
            let many = (many && kind == Kind::ALL[0]).then_some(MANY);
            for (flows, pair) in FLOWS
                .into_iter()
                .chain(many)
                .flat_map(|flows| Pair::all(kind, flows).into_iter().map(move |pair| (flows, pair)))
            {
                let mut kernel = Kernel::new(ring::capacity(flows))?;
                let (node, order) = rings(kind, flows, pair);
                kernel.load_ordered(&node, &order).with_context(|| format!("{flows} flows"))?;
                let payload = if pair.of == Of::Cluster {
                    [0; 8]
                } else {
                    payload(&node, kind, flows, pair)
                        .with_context(|| format!("{flows} flows: no payload suits all of them"))?
                };
                scenes.push(Ring { kind, flows, pair, kernel, payload });
            }
            for hook in [Hook::PodIngress, Hook::ExternalIngress] {
                first.push((kind, hook, Kernel::new(ring::capacity(1))?));
            }
        }
        Ok(Self { rings: scenes, first })
    }

    /// All variants that use these programs.
    pub(super) fn variants(&mut self) -> Vec<Variant<'_>> {
        let mut all = Vec::new();
        for ring in &self.rings {
            for hook in ring.pair.hooks() {
                all.push(established(ring, *hook));
                if ring.flows == 1 && ring.pair.of != Of::Remote {
                    all.push(not_ours(&ring.kernel, ring.kind, *hook));
                }
            }
        }
        all.extend(self.first.iter_mut().map(|(kind, hook, kernel)| begins(kernel, *hook, *kind)));
        all
    }
}

pub(super) fn label(hook: Hook, case: Case, flows: usize, kind: Kind) -> Label {
    Label { program: hook.name(), xdp: hook == Hook::ExternalXdp, case, flows, kind }
}

/// Runs a program; every repeat must have been counted under `verdict`.
pub(super) fn run(
    kernel: &Kernel,
    hook: Hook,
    packet: &[u8],
    repeat: u32,
    verdict: Verdict,
) -> Result<f64> {
    let mut context = bpf::Context::default();
    // A nonzero `ingress_ifindex` means that this host did not send the packet.
    context.0[9] = 1;
    let context = (hook != Hook::ExternalXdp).then_some(&context);
    let before = kernel.counted(hook, verdict)?;
    let ran = bpf::test_run(kernel.program(hook), packet, &mut [], context, repeat)?;
    let counted = kernel.counted(hook, verdict)? - before;
    ensure!(counted == u64::from(repeat), "{counted} of {repeat} packets were {verdict:?}");
    Ok(ran.nanoseconds.into())
}

fn established(ring: &Ring, hook: Hook) -> Variant<'_> {
    let Ring { kind, flows, pair, ref kernel, payload } = *ring;
    let goes_out = matches!(hook, Hook::PodEgress | Hook::ExternalEgress);
    let side = if goes_out { Side::EGRESS } else { Side::INGRESS };
    let verdict = Verdict::Translated(pair.translation(side).1);
    let [from, to] = pair.tuple(0, kind, flows, side);
    let packet = ring::packet(from, to, kind, false).with(&payload).build();
    let label = label(hook, pair.case(), flows, kind);
    Variant::new(label, packet.len(), move || {
        // One warm-up round of the ring: a flow that was not seen for a tick is marked, which must not be part of the
        // measurement.
        run(kernel, hook, &packet, ring::entries(flows) as u32, verdict)?;
        run(kernel, hook, &packet, ring::repeats(flows), verdict)
    })
}

fn not_ours(kernel: &Kernel, kind: Kind, hook: Hook) -> Variant<'_> {
    let packet = foreign(kind);
    let verdict = Verdict::Pass(PassReason::NotOurs);
    Variant::new(label(hook, Case::NotOurs, 0, kind), packet.len(), move || {
        run(kernel, hook, &packet, 1_000, verdict)?;
        run(kernel, hook, &packet, ring::repeats(1), verdict)
    })
}

fn begins(kernel: &mut Kernel, hook: Hook, kind: Kind) -> Variant<'_> {
    let client = ring::client(0, 1, kind.family);
    let packet = ring::packet(client, ring::frontend(0, kind.family), kind, true).build();
    let verdict = Verdict::Translated(Translation::NewFlow);
    let tables = chain(kind);
    Variant::new(label(hook, Case::First, 0, kind), packet.len(), move || {
        kernel.load(&tables)?;
        run(kernel, hook, &packet, FIRST as u32, verdict)
    })
}
