//! Random sequences of packets at hooks.

use lb_common::addr::{Endpoint, Port, Protocol};
use lb_common::event::{Hook, PassReason, Verdict};
use lb_common::fake::{Datagram, Fake, Step, Transport, at, run as run_here, world};
use lb_common::service::Frontend;
use lb_common::wire::tcp;

use super::Random;
use super::packet::{answer, packet};

/// A client outside talks to a `NodePort` for a while, most often by way of XDP: each packet is what became of the one
/// before it, or the answer to that.
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
            // At times a second connection of the same ports, after one that both ends have closed.
            Protocol::TCP if round == 0 || ends && round == 4 => Transport::Tcp(tcp::SYN),
            Protocol::TCP if ends && round == 2 => Transport::Tcp(tcp::ACK | tcp::FIN),
            Protocol::TCP => Transport::Tcp(tcp::ACK),
            Protocol::UDP => Transport::Udp(true),
            _ => Transport::Sctp,
        };
        let first = if random.one_in(8) { Hook::EdgeIngress } else { Hook::EdgeXdp };
        // Both directions come by way of XDP or not, and leave.
        let mut packet = Datagram::new(client, to, transport).build();
        for _ in 0..2 {
            packet = pass(first, packet);
            if first == Hook::EdgeXdp {
                packet = pass(Hook::EdgeIngress, packet);
            }
            packet = pass(Hook::EdgeEgress, packet);
            answer(&mut packet);
        }
    }
    steps
}

/// A process of the host talks to a frontend, with datagrams that are at times too big for the way.
pub(super) fn conversation_of_host(random: &mut Random, here: &Fake) -> Vec<Step> {
    /// More than [`world::OUT_MTU`].
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
    let hook = random.of(&[Hook::EdgeEgress, Hook::HostEgress]);
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
        let hook = random.of(&[Hook::EdgeIngress, Hook::HostIngress]);
        steps.push(Step { hook, from_host: false, packet, verdict, out: None });
        let _answered = steps.last().map(|step| run_here(step, here));
    }
    steps
}

/// A packet somewhere.
pub(super) fn step(random: &mut Random, seen: &[Vec<u8>]) -> Step {
    // Most flows begin on the way in.
    let inwards = [Hook::PodIngress, Hook::EdgeIngress, Hook::EdgeXdp];
    let hook = if random.one_in(2) { random.of(Hook::ALL) } else { random.of(&inwards) };
    Step {
        hook,
        from_host: random.one_in(4),
        packet: packet(random, seen),
        verdict: Verdict::Pass(PassReason::NotOurs),
        out: None,
    }
}
