//! Random sequences of packets at hooks.

use lb_common::addr::{Endpoint, Port, Protocol};
use lb_common::event::{Hook, PassReason, Verdict};
use lb_common::fake::{Datagram, Fake, Step, Transport, at, run as run_here, world};
use lb_common::service::Frontend;
use lb_common::wire::tcp;

use super::Random;
use super::packet::{answer, packet};

/// A conversation of an external client with a `NodePort`, mostly through XDP: each packet is the translation of the
/// one before, or the answer to it.
pub(super) fn conversation(random: &mut Random, here: &Fake) -> Vec<Step> {
    const ROUNDS: usize = 5;
    let node_ports: Vec<Frontend> =
        here.services.keys().filter(|it| it.ip == it.ip.any_of_family()).copied().collect();
    if node_ports.is_empty() {
        return Vec::new();
    }
    let frontend = random.of(&node_ports);
    let (client, own) = if frontend.ip.is_v4() {
        (world::CLIENT4, world::NODE4)
    } else {
        (world::CLIENT6, world::NODE6)
    };
    let mut client = at(client);
    client.port = Port::new(client.port.get() + random.below(8) as u16);
    let to = Endpoint::new(at(own).ip, frontend.port);
    let mut steps = Vec::new();
    let mut pass = |hook, packet: Vec<u8>| {
        let verdict = Verdict::Pass(PassReason::NotOurs);
        let step = Step { hook, from_host: false, packet, verdict, out: None };
        let out = run_here(&step, here).1;
        steps.push(step);
        out
    };
    let ends = random.one_in(2);
    for round in 0..ROUNDS {
        let transport = match frontend.protocol {
            // Sometimes a second connection with the same ports, after both ends have closed the first.
            Protocol::TCP if round == 0 || ends && round == 4 => Transport::Tcp(tcp::SYN),
            Protocol::TCP if ends && round == 2 => Transport::Tcp(tcp::ACK | tcp::FIN),
            Protocol::TCP => Transport::Tcp(tcp::ACK),
            Protocol::UDP => Transport::Udp(true),
            _ => Transport::Sctp,
        };
        let first = if random.one_in(8) { Hook::ExternalIngress } else { Hook::ExternalXdp };
        // Packets of both directions arrive, with or without XDP, and leave the node.
        let mut packet = Datagram::new(client, to, transport).build();
        for _ in 0..2 {
            packet = pass(first, packet);
            if first == Hook::ExternalXdp {
                packet = pass(Hook::ExternalIngress, packet);
            }
            packet = pass(Hook::ExternalEgress, packet);
            answer(&mut packet);
        }
    }
    steps
}

/// A conversation of a host process with a frontend; its datagrams sometimes exceed the MTU of the path.
pub(super) fn conversation_of_host(random: &mut Random, here: &Fake) -> Vec<Step> {
    /// A payload that exceeds [`world::OUT_MTU`].
    const BIG: [u8; 1_400] = [0x5a; 1_400];
    let frontends: Vec<Frontend> =
        here.services.keys().filter(|it| it.port != Port::NONE).copied().collect();
    if frontends.is_empty() {
        return Vec::new();
    }
    let frontend = random.of(&frontends);
    let own = if frontend.ip.is_v4() { world::NODE4 } else { world::NODE6 };
    let is_node_port = frontend.ip == frontend.ip.any_of_family();
    let ip = if is_node_port { at(own).ip } else { frontend.ip };
    let from = Endpoint::new(at(own).ip, Port::new(45_000 + random.below(4) as u16));
    let hook = random.of(&[Hook::ExternalEgress, Hook::HostEgress]);
    let mut steps = Vec::new();
    for is_first in [true, false, false] {
        let transport = match frontend.protocol {
            Protocol::TCP if is_first => Transport::Tcp(tcp::SYN),
            Protocol::TCP => Transport::Tcp(tcp::ACK),
            Protocol::UDP => Transport::Udp(true),
            _ => Transport::Sctp,
        };
        let mut datagram = Datagram::new(from, Endpoint::new(ip, frontend.port), transport);
        if random.one_in(4) {
            datagram = datagram.with(&BIG);
        }
        let verdict = Verdict::Pass(PassReason::NotOurs);
        let packet = datagram.build();
        let asks = Step { hook, from_host: true, packet, verdict, out: None };
        let mut packet = run_here(&asks, here).1;
        steps.push(asks);
        answer(&mut packet);
        let hook = random.of(&[Hook::ExternalIngress, Hook::HostIngress]);
        steps.push(Step { hook, from_host: false, packet, verdict, out: None });
        let _answered = steps.last().map(|step| run_here(step, here));
    }
    steps
}

/// A random packet at a random hook.
pub(super) fn step(random: &mut Random, seen: &[Vec<u8>]) -> Step {
    // Most flows begin at an ingress hook.
    let inwards = [Hook::PodIngress, Hook::ExternalIngress, Hook::ExternalXdp];
    let hook = if random.one_in(2) { random.of(Hook::ALL) } else { random.of(&inwards) };
    Step {
        hook,
        from_host: random.one_in(4),
        packet: packet(random, seen),
        verdict: Verdict::Pass(PassReason::NotOurs),
        out: None,
    }
}
