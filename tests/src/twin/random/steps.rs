//! Packets at hooks, one after the other.

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
    const ROUNDS: usize = 4;
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
    for round in 0..ROUNDS {
        let transport = match frontend.protocol {
            Protocol::TCP if round == 0 => Transport::Tcp(tcp::SYN),
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
