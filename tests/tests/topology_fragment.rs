//! Datagrams larger than the MTU: fragments of questions and of answers arrive.

use anyhow::{Context as _, Result};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, Shared, TARGET, ask, exchange};
use lb_tests::topology::{Addresses, Family, Shape, Topology};
use lb_tests::traffic::{Ask, Handmade, pieces};

#[path = "topology_fragment/options.rs"]
mod options;

in_both_shapes!(
    large_datagrams_pass_through_a_cluster_ip,
    large_datagrams_pass_through_a_node_port,
    large_segments_pass_a_smaller_wire,
);

/// The length in bytes of a datagram close to the limit of IP.
const LARGEST: usize = 65_400;
const SIZES: [usize; 4] = [1_473, 4_000, 20_001, 60_000];

fn services(rig: &Rig) -> Result<[Service; 2]> {
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    Ok([near, far])
}

fn start(shape: Shape) -> Result<(Shared, [Service; 2])> {
    let rig = Rig::shared(shape)?;
    let [near, far] = services(&rig)?;
    Ok((rig.start(&[&near, &far])?, [near, far]))
}

fn large_datagrams_pass_through_a_cluster_ip(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape)?;
    for family in Family::ALL {
        for service in &services {
            exchange(rig.pod(0, 0)?, Ask::udp(service.frontend(family)), &SIZES)?;
            exchange(rig.node(0)?, Ask::udp(service.frontend(family)), &SIZES)?;
        }
    }
    Ok(())
}

fn large_datagrams_pass_through_a_node_port(shape: Shape) -> Result<()> {
    let (rig, _) = start(shape)?;
    for family in Family::ALL {
        for port in [30_080, 30_081] {
            let to = rig.node(0)?.addresses().socket(family, port);
            exchange(rig.client(), Ask::udp(to), &SIZES)?;
        }
    }
    Ok(())
}

/// Behind a masquerade all clients have the node's address. The backend must not reassemble fragments of two of them
/// into one datagram, although they use the same identification.
#[test]
fn pieces_of_two_clients_with_one_number_do_not_meet() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&far])?;
    let client = rig.client();
    let other = Addresses::parse("192.168.50.201", "fd00:50::201")?;
    client.netns().ip("addr add 192.168.50.201/24 dev eth0
         addr add fd00:50::201/64 dev eth0 nodad")?;
    for family in Family::ALL {
        let to = rig.node(0)?.addresses().socket(family, 30_081);
        for (number, size) in (0..10_u32).zip((3_000..).step_by(100)) {
            let port = 26_000 + number as u16;
            let hands = [client.addresses(), other].map(|own| own.socket(family, port));
            let hands = hands.map(|own| Handmade::open(client, own));
            let [one, other] = hands;
            let (one, other) = (one?, other?);
            let parts =
                [&one, &other].map(|hand| pieces(&hand.question(to, size), 1_400, 1_000 + number));
            let [first, second] = &parts;
            for (of_one, of_other) in first.iter().zip(second) {
                one.send(of_one, to)?;
                other.send(of_other, to)?;
            }
            for hand in [&one, &other] {
                hand.answer(to, size).with_context(|| format!("{size} bytes to {to}"))?;
            }
        }
    }
    Ok(())
}

/// Fragments that arrive in reverse order wait for the one with the ports; there is room for those of several large
/// datagrams at the same time.
#[test]
fn large_datagrams_that_come_last_piece_first_are_all_answered() -> Result<()> {
    let (rig, _) = start(Shape::Routed)?;
    let client = rig.client();
    // An identification is not reused while fragments of an older datagram may be under way.
    let mut numbers = 9_000..;
    for family in Family::ALL {
        for (to_port, own_port) in [(30_080, 26_100), (30_081, 26_200)] {
            let to = rig.node(0)?.addresses().socket(family, to_port);
            let open = |port| Handmade::open(client, client.addresses().socket(family, port));
            let hands: Vec<Handmade> = (own_port..own_port + 8).map(open).collect::<Result<_>>()?;
            for round in 0..4 {
                for (hand, number) in hands.iter().zip(&mut numbers) {
                    let mut parts = pieces(&hand.question(to, LARGEST), 1_400, number);
                    parts.reverse();
                    parts.iter().try_for_each(|part| hand.send(part, to))?;
                }
                for hand in &hands {
                    hand.answer(to, LARGEST).with_context(|| format!("round {round}, {to}"))?;
                }
            }
        }
    }
    Ok(())
}

/// Path MTU discovery: an ICMP error about a translated packet must reach the original sender.
fn large_segments_pass_a_smaller_wire(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&far])?;
    // The segment between the nodes, and to the client, has a smaller MTU than the pods' wires.
    for member in [rig.client(), rig.node(0)?.host(), rig.node(1)?.host()] {
        member.netns().ip("link set eth0 mtu 1400")?;
    }
    for family in Family::ALL {
        let question = Ask::tcp(far.frontend(family)).sized(300_000, 300_000).within(30_000);
        drop(ask(rig.pod(0, 0)?, question)?);
        let to = rig.node(0)?.addresses().socket(family, 30_081);
        drop(ask(rig.client(), Ask::tcp(to).sized(300_000, 300_000).within(30_000))?);
    }
    Ok(())
}
