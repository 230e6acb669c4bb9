//! Packets that ordinary sockets do not send: fragments in any order, options, unusual headers, impossible sources.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::Datagram;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, Shared, TARGET, ask, matrix};
use lb_tests::topology::{Family, Member, Shape};
use lb_tests::traffic::{Ask, Capture, Frame, Handmade, Raw, pieces, ping};

const NODE_PORTS: [u16; 2] = [30_080, 30_081];

in_both_shapes!(
    fragments_arrive_in_any_order,
    options_and_extension_headers_are_carried_along,
    datagrams_without_checksum_are_answered,
    impossible_sources_do_no_harm,
    tagged_question_is_refused_under_its_tag,
    odd_questions_are_refused_at_once,
    ping_of_a_cluster_ip_is_answered_to_everybody,
);

fn start(shape: Shape) -> Result<(Shared, [Service; 2])> {
    let rig = Rig::shared(shape)?;
    let [near, far] = NODE_PORTS;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(near).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(far).pods(&[rig.pod(1, 1)?]);
    Ok((rig.start(&[&near, &far])?, [near, far]))
}

/// A number that was not used yet in this process: a source port, or an identification.
fn number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(26_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A pod and the external client send handmade questions to a local and a remote backend, as `question` does it.
fn everybody(
    shape: Shape,
    question: impl Fn(&Handmade, SocketAddr, Family) -> Result<()>,
) -> Result<()> {
    let (rig, services) = start(shape)?;
    for family in Family::ALL {
        for (service, port) in services.iter().zip(NODE_PORTS) {
            let node_port = rig.node(0)?.addresses().socket(family, port);
            let askers: [(&Member, SocketAddr); 2] =
                [(rig.pod(0, 0)?, service.frontend(family)), (rig.client(), node_port)];
            for (from, to) in askers {
                let own = from.addresses().socket(family, number());
                let hand = Handmade::open(from, own)?;
                question(&hand, to, family)
                    .with_context(|| format!("{} asks {to}", from.name()))?;
            }
        }
    }
    Ok(())
}

type Order = fn(&mut [Datagram]);

fn fragments_arrive_in_any_order(shape: Shape) -> Result<()> {
    let orders: [(&str, Order); 4] = [
        ("in order", |_| ()),
        ("reversed", <[Datagram]>::reverse),
        ("the first last", |pieces| pieces.rotate_left(1)),
        ("from the middle", |pieces| pieces.rotate_left(pieces.len() / 2)),
    ];
    everybody(shape, |hand, to, _| {
        for size in [3_000, 60_000] {
            for (name, order) in orders {
                let mut parts = pieces(&hand.question(to, size), 1_400, u32::from(number()));
                order(&mut parts);
                parts.iter().try_for_each(|part| hand.send(part, to))?;
                hand.answer(to, size).with_context(|| format!("{size} bytes, {name}"))?;
            }
        }
        Ok(())
    })
}

fn options_and_extension_headers_are_carried_along(shape: Shape) -> Result<()> {
    everybody(shape, |hand, to, family| {
        let mut question = hand.question(to, 100);
        match family {
            // Three times "no operation", and "end of options" (RFC 791 3.1).
            Family::V4 => question.options = vec![1, 1, 1, 0],
            // Destination options with padding (RFC 8200 4.2).
            Family::V6 => question.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])],
        }
        hand.send(&question, to)?;
        hand.answer(to, 100)
    })
}

fn datagrams_without_checksum_are_answered(shape: Shape) -> Result<()> {
    everybody(shape, |hand, to, family| {
        let mut question = hand.question(to, 100);
        if family == Family::V4 {
            question.transport = lb_common::fake::Transport::Udp(false);
        }
        hand.send(&question, to)?;
        hand.answer(to, 100)
    })
}

/// Land packets and packets from martian sources pass to the stack unchanged; later questions are answered.
fn impossible_sources_do_no_harm(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape)?;
    for (family, protocol) in matrix() {
        for (service, port) in services.iter().zip(NODE_PORTS) {
            let node_port = rig.node(0)?.addresses().socket(family, port);
            let askers: [(&Member, SocketAddr); 2] =
                [(rig.pod(0, 0)?, service.frontend(family)), (rig.client(), node_port)];
            for (from, to) in askers {
                let hand = Handmade::open(from, from.addresses().socket(family, number()))?;
                let loopback = if family == Family::V4 { "127.0.0.1:7" } else { "[::1]:7" };
                for source in [to.to_string().as_str(), loopback] {
                    let question = hand.question(to, 100);
                    let source = lb_common::fake::at(source);
                    hand.send(&Datagram { source, ..question }, to)?;
                }
                drop(ask(from, Ask::new(protocol, to))?);
            }
        }
    }
    Ok(())
}

/// The kernel keeps the VLAN tag apart from the packet's bytes, and the refusal must carry it, too.
fn tagged_question_is_refused_under_its_tag(shape: Shape) -> Result<()> {
    const TAG: u16 = 7;
    let rig = Rig::shared(shape)?;
    let none = Service::new("none", 10)?.port(80, TARGET).node_port(30_080);
    let rig = rig.start(&[&none])?;
    let (client, node) = (rig.client(), rig.node(0)?);
    let macs = [node.hardware_address("eth0")?, client.hardware_address("eth0")?].concat();
    let wire = Raw::open(client.netns(), "eth0")?;
    for family in Family::ALL {
        let to = node.addresses().socket(family, 30_080);
        let from = client.addresses().socket(family, number());
        let mut frame = Datagram::udp(&from.to_string(), &to.to_string()).tagged(TAG).build();
        frame.splice(..12, macs.iter().copied()).for_each(drop);
        let capture = Capture::start(client.netns(), "eth0")?;
        wire.send(&frame)?;
        let refusal = if family == Family::V4 { (3, 3) } else { (1, 4) };
        let is_refusal = |frame: &Frame| {
            frame.icmp() == Some(refusal) && frame.tag == Some(TAG) && !frame.outgoing
        };
        drop(capture.wait_for("a refusal with the tag", is_refusal)?);
    }
    Ok(())
}

/// Questions with options, with extension headers, and first fragments: the refusal quotes them, so that its receiver
/// finds the ports.
fn odd_questions_are_refused_at_once(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let none = Service::new("none", 10)?.port(80, TARGET).node_port(30_080);
    let rig = rig.start(&[&none])?;
    for family in Family::ALL {
        let node_port = rig.node(0)?.addresses().socket(family, 30_080);
        let askers: [(&Member, SocketAddr); 2] =
            [(rig.pod(0, 0)?, none.frontend(family)), (rig.client(), node_port)];
        let refusal = if family == Family::V4 { (3, 3) } else { (1, 4) };
        for (from, to) in askers {
            let own = from.addresses().socket(family, number());
            let hand = Handmade::open(from, own)?;
            let mut with_more = hand.question(to, 100);
            with_more.options = vec![1, 1, 1, 0];
            with_more.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
            let parts = pieces(&hand.question(to, 3_000), 1_400, u32::from(number()));
            let first = parts.first().context("a first piece")?;
            for (odd, is_piece) in [(&with_more, false), (first, true)] {
                let capture = Capture::start(from.netns(), "eth0")?;
                hand.send(odd, to)?;
                let what = format!("{} is refused by {to}, piece: {is_piece}", from.name());
                let is_refusal = |frame: &Frame| {
                    frame.icmp() == Some(refusal)
                        && frame.source().is_some_and(|source| source.ip() == to.ip())
                        && frame.wrong_checksums().is_empty()
                };
                let refused = capture.wait_for(&what, is_refusal)?;
                let quoted = refused.quoted().with_context(|| format!("{what}: no quote"))?;
                // The port of a fragment is not read from the quote.
                let port = if is_piece { 0 } else { to.port() };
                let quotes = quoted.destination();
                let expected = Some(SocketAddr::new(to.ip(), port));
                ensure!(quotes == expected, "{what}: quotes {quotes:?}");
            }
        }
    }
    Ok(())
}

fn ping_of_a_cluster_ip_is_answered_to_everybody(shape: Shape) -> Result<()> {
    let (rig, [service, _]) = start(shape)?;
    let node = rig.node(0)?;
    // An external client reaches ClusterIPs if its routes lead them to a node.
    for family in Family::ALL {
        let (cluster, via) = (service.cluster().of(family), node.ip(family));
        rig.client().netns().ip(&format!("route replace {cluster} via {via}"))?;
    }
    for family in Family::ALL {
        let cluster = service.frontend(family);
        let (asks, answers) =
            if family == Family::V4 { ((8, 0), (0, 0)) } else { ((128, 0), (129, 0)) };
        for from in [&**rig.pod(0, 0)?, node.host(), rig.client()] {
            let own = from.addresses().socket(family, number());
            let capture = Capture::start(from.netns(), "eth0")?;
            let body = b"\0\x07\0\x01ping".to_vec();
            let plain = Datagram::icmp(&own.to_string(), &cluster.to_string(), asks, body);
            let mut with_more = plain.clone();
            with_more.options = vec![1, 1, 1, 0];
            with_more.extensions = vec![(60, vec![1, 4, 0, 0, 0, 0])];
            let hand = Handmade::open(from, own)?;
            for (question, with) in [(plain, "nothing"), (with_more, "more headers")] {
                hand.send(&question, cluster)?;
                let what = format!("{} hears from {}, with {with}", from.name(), cluster.ip());
                let is_answer = |frame: &Frame| {
                    frame.icmp() == Some(answers)
                        && frame.source().is_some_and(|source| source.ip() == cluster.ip())
                        && frame.wrong_checksums().is_empty()
                        && frame.bytes.len() == question.build().len()
                };
                drop(capture.wait_for(&what, is_answer)?);
            }
            for size in [56, 4_000, 60_000] {
                ping(from, cluster.ip(), size)?;
            }
        }
    }
    Ok(())
}
