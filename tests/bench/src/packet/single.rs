//! Packets that no ring can hold, measured one at a time: rejections, and packets that XDP or tc redirects.
//!
//! Each measurement is a test run of its own on a fresh packet; the value of a round is the median of many. The fixed
//! cost of such a run is measured in the same way with the empty programs.

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Endpoint;
use lb_common::config::{Device, Settings};
use lb_common::event::{Hook, Redirect, Return, Translation, Verdict};
use lb_common::fake::world::{
    CLIENT4, CLIENT6, CLUSTER4, CLUSTER6, HOP_HARDWARE, NODE4, NODE6, OUT, POD4, POD6, REMOTE4,
    REMOTE6,
};
use lb_common::fake::{self, Datagram, Fake, Step, at};
use lb_common::flow::{Flow, Kind as FlowKind, Shown, Side};
use lb_common::service::{Flags, Frontend, Service};
use lb_tests::differential::Kernel;
use lb_tests::topology::Family;
use lb_tests::traffic::Protocol;

use super::super::figures::Figure;
use super::ours;
use super::ring;
use super::variant::{Case, Kind, Variant};

/// The index of the interface on which all packets of test runs arrive.
const IN: u32 = 1;

/// The number of test runs in a round.
const RUNS: usize = 401;

/// The median of [`RUNS`] test runs.
pub(super) fn middle(mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let times = (0..RUNS).map(|_| run()).collect::<Result<Figure>>()?;
    Ok(times.spread().median)
}

/// A packet that is run repeatedly, its hook, and the verdict that it must get.
struct Single {
    kind: Kind,
    hook: Hook,
    case: Case,
    packet: Vec<u8>,
    verdict: Verdict,
    kernel: Kernel,
}

/// Loaded objects of our programs, one for each packet.
pub(super) struct Singles(Vec<Single>);

impl Singles {
    /// Loads the programs and fills their tables.
    pub(super) fn load() -> Result<Self> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            for (hook, case, (node, packet), verdict) in [
                (
                    Hook::PodIngress,
                    Case::Reject,
                    without_backends(kind),
                    Verdict::Returned(Return::NoBackend),
                ),
                (
                    Hook::ExternalXdp,
                    Case::Redirected,
                    let_out(kind)?,
                    Verdict::Redirected(Redirect::Forward),
                ),
                (
                    Hook::PodIngress,
                    Case::Bypass,
                    asks(kind, true)?,
                    Verdict::Redirected(Redirect::Forward),
                ),
                (
                    Hook::PodIngress,
                    Case::Alone,
                    asks(kind, false)?,
                    Verdict::Translated(Translation::Forward),
                ),
                (
                    Hook::ExternalIngress,
                    Case::Bypass,
                    answers(kind, true)?,
                    Verdict::Redirected(Redirect::Reply),
                ),
                (
                    Hook::PodEgress,
                    Case::Alone,
                    answers(kind, false)?,
                    Verdict::Translated(Translation::Reply),
                ),
            ] {
                let mut kernel = Kernel::new(ring::capacity(1))?;
                kernel.load(&node).with_context(|| case.name())?;
                all.push(Single { kind, hook, case, packet, verdict, kernel });
            }
        }
        Ok(Self(all))
    }

    /// All variants that use these programs.
    pub(super) fn variants(&self) -> impl Iterator<Item = Variant<'_>> {
        self.0.iter().map(Single::variant)
    }
}

impl Single {
    fn variant(&self) -> Variant<'_> {
        let Self { kind, hook, case, packet, verdict, kernel } = self;
        let label = ours::label(*hook, *case, 0, *kind);
        Variant::new(label, packet.len(), move || {
            middle(|| {
                kernel.grant_rejections()?;
                ours::run(kernel, *hook, packet, 1, *verdict)
            })
        })
    }
}

/// A ClusterIP without backends, and the first packet of a pod to it.
fn without_backends(kind: Kind) -> (Fake, Vec<u8>) {
    let (pod, asked) = match kind.family {
        Family::V4 => (at(POD4), at(CLUSTER4)),
        Family::V6 => (at(POD6), at(CLUSTER6)),
    };
    let mut node = ours::node_of_now();
    let flags = Flags::ANYWHERE;
    let service = Service { id: 1, flags, generation: 1, ..Service::default() };
    let key = Frontend::new(asked.ip, asked.port, kind.protocol());
    node.services.insert(key, service);
    (node, ring::packet(pod, asked, kind, true).build())
}

/// A `NodePort` with a remote backend, a connection whose first packet the stack has forwarded, and the client's next
/// packet.
fn let_out(kind: Kind) -> Result<(Fake, Vec<u8>)> {
    let (client, asked, remote) = match kind.family {
        Family::V4 => (at(CLIENT4), at(NODE4), at(REMOTE4)),
        Family::V6 => (at(CLIENT6), at(NODE6), at(REMOTE6)),
    };
    let mut node = ours::node_of_now();
    node.settings.node.flags |= Settings::REDIRECTS;
    let row = node.add_backend(remote, false, 1);
    let flags = Flags::ANYWHERE.with(Flags::EXTERNAL).with(Flags::NODE_PORT);
    let cluster = node.add_set(&[row]);
    let service = Service { id: 1, flags, generation: 1, cluster, ..Service::default() };
    let key = Frontend::node_port(asked.ip, asked.port, kind.protocol());
    node.services.insert(key, service);
    // The same code on this host creates the flow entries that the programs would create. A SYN allows XDP to redirect
    // no later packet, so TCP needs a second packet.
    let begin: &[_] = match kind.transport {
        Protocol::Tcp => &[(true, Translation::NewFlow), (false, Translation::Forward)],
        Protocol::Udp => &[(true, Translation::NewFlow)],
    };
    for (is_first, what) in begin.iter().copied() {
        step(&node, Hook::ExternalXdp, client, asked, kind, is_first, what)?;
        step(&node, Hook::ExternalEgress, client, remote, kind, is_first, Translation::Masquerade)?;
    }
    establish(&node);
    let entries = node.all_flows();
    let is_out = entries.iter().any(|(key, flow)| {
        key.side == Side::EGRESS && flow.kind == FlowKind::MASQUERADE && flow.to.source == asked.ip
    });
    ensure!(is_out, "the connection has no way out of the node");
    Ok((node, ring::packet(client, asked, kind, false).build()))
}

/// A pod, the ClusterIP that it uses, and the backend on another node.
fn far(kind: Kind) -> [Endpoint; 3] {
    match kind.family {
        Family::V4 => [at(POD4), at(CLUSTER4), at(REMOTE4)],
        Family::V6 => [at(POD6), at(CLUSTER6), at(REMOTE6)],
    }
}

/// A pod's flow to a backend on another node, with or without the stack bypass.
fn flow(kind: Kind, has_bypass: bool) -> Result<Fake> {
    let [pod, asked, remote] = far(kind);
    let mut node = ours::node_of_now();
    if has_bypass {
        node.settings.node.flags |= Settings::BYPASSES;
        for device in node.devices.values_mut() {
            device.flags |= Device::BYPASS;
        }
        // The interface on which test packets arrive counts as a bridge port of the interface that the kernel's route
        // names.
        node.devices.entry(IN).or_default().bridge = OUT;
    }
    let row = node.add_backend(remote, false, 1);
    let (flags, cluster) = (Flags::ANYWHERE, node.add_set(&[row]));
    let service = Service { id: 1, flags, generation: 1, cluster, ..Service::default() };
    let key = Frontend::new(asked.ip, asked.port, kind.protocol());
    node.services.insert(key, service);
    step(&node, Hook::PodIngress, pod, asked, kind, true, Translation::NewFlow)?;
    establish(&node);
    Ok(node)
}

/// Makes all flows ones in which both ends have sent packets.
fn establish(node: &Fake) {
    for (key, mut flow) in node.all_flows() {
        flow.shown = Shown::ESTABLISHED;
        flow.flags |= Flow::PROTECTED;
        node.put(key, flow);
    }
}

/// A flow as by [`flow`], and the pod's next packet.
fn asks(kind: Kind, has_bypass: bool) -> Result<(Fake, Vec<u8>)> {
    let [pod, asked, _] = far(kind);
    Ok((flow(kind, has_bypass)?, from_hop(pod, asked, kind)))
}

/// A flow as by [`flow`], and the backend's next packet.
fn answers(kind: Kind, has_bypass: bool) -> Result<(Fake, Vec<u8>)> {
    let [pod, _, remote] = far(kind);
    Ok((flow(kind, has_bypass)?, from_hop(remote, pod, kind)))
}

/// A later packet from the next hop to which the kernel would send the answer: only such a packet bypasses the stack
/// (ADR 0021).
fn from_hop(from: Endpoint, to: Endpoint, kind: Kind) -> Vec<u8> {
    let packet = ring::packet(from, to, kind, false);
    Datagram { hardware: [packet.hardware[0], HOP_HARDWARE], ..packet }.build()
}

fn step(
    node: &Fake,
    hook: Hook,
    from: Endpoint,
    to: Endpoint,
    kind: Kind,
    is_first: bool,
    what: Translation,
) -> Result<()> {
    let packet = ring::packet(from, to, kind, is_first).build();
    let verdict = Verdict::Translated(what);
    let step = Step { hook, from_host: false, packet, verdict, out: None };
    let (came, _) = fake::run(&step, node);
    ensure!(came == verdict, "{} ended with {came:?} instead of {verdict:?}", hook.name());
    Ok(())
}
