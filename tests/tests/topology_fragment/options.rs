//! Datagrams over IPv6 whose fragments have destination options: every fragment repeats those ahead of the fragment
//! header; only the first one contains those behind it, and a later one names them instead of UDP.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, Shared, TARGET};
use lb_tests::topology::{Family, Member, Pod, Shape};
use lb_tests::traffic::open::socket;
use lb_tests::traffic::{Handmade, pieces};
use socket2::Type;

in_both_shapes!(questions_with_options_arrive_in_any_order, answers_with_options_arrive);

const NODE_PORTS: [u16; 2] = [30_080, 30_081];
/// The port of the servers that this test answers for.
const OWN: u16 = 8_090;
/// The length in bytes of a datagram of three fragments.
const LENGTH: usize = 3_000;

/// The numbers of headers with destination options ahead of the fragment header and behind it.
const FORMS: [(usize, usize); 3] = [(1, 0), (0, 1), (1, 1)];
const ORDERS: [Order; 3] = [Order::Sent, Order::LastFirst, Order::FirstLast];

/// The order in which fragments are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Sent,
    LastFirst,
    FirstLast,
}

/// A client, the frontend that it asks, and the only backend.
struct Question<'a> {
    client: &'a Member,
    frontend: SocketAddr,
    backend: &'a Pod,
    /// Whether answers come in to an address of the node.
    is_masqueraded: bool,
}

/// Starts two Services with this target port, a near and a far one.
fn start(shape: Shape, target: u16) -> Result<(Shared, [Service; 2])> {
    let rig = Rig::shared(shape)?;
    let [near, far] = NODE_PORTS;
    let near = Service::new("near", 10)?.port(80, target).node_port(near).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, target).node_port(far).pods(&[rig.pod(1, 1)?]);
    Ok((rig.start(&[&near, &far])?, [near, far]))
}

/// The questions of a pod to `ClusterIP`s, and of the external client to `NodePort`s.
fn questions<'a>(rig: &'a Rig, services: &[Service; 2]) -> Result<Vec<Question<'a>>> {
    let mut all = Vec::new();
    for (node, (service, port)) in services.iter().zip(NODE_PORTS).enumerate() {
        let backend = rig.pod(node, 1)?;
        let (cluster_ip, pod) = (service.frontend(Family::V6), rig.pod(0, 0)?);
        all.push(Question { client: pod, frontend: cluster_ip, backend, is_masqueraded: false });
        let frontend = rig.node(0)?.addresses().socket(Family::V6, port);
        all.push(Question { client: rig.client(), frontend, backend, is_masqueraded: node == 1 });
    }
    Ok(all)
}

/// Sends a datagram in fragments with options, in this order.
fn send(
    hand: &Handmade,
    (datagram, to): (Datagram, SocketAddr),
    (ahead, behind): (usize, usize),
    (order, id): (Order, u32),
) -> Result<()> {
    // Padding of six bytes (RFC 8200 4.2).
    let options = (60, vec![1, 4, 0, 0, 0, 0]);
    let whole = Datagram {
        extensions: vec![options.clone(); ahead],
        fragmented_extensions: vec![options; behind],
        ..datagram
    };
    let mut parts = pieces(&whole, 1_400, id);
    ensure!(parts.len() == 3, "{} fragments", parts.len());
    match order {
        Order::Sent => {}
        Order::LastFirst => parts.reverse(),
        Order::FirstLast => parts.rotate_left(1),
    }
    parts.iter().try_for_each(|part| hand.send(part, to))
}

/// The backend's server names the length of the question that it has received.
fn questions_with_options_arrive_in_any_order(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape, TARGET)?;
    let mut numbers = 1..;
    for (question, port) in questions(&rig, &services)?.iter().zip(25_900..) {
        let Question { client, frontend, .. } = *question;
        let hand = Handmade::open(client, client.addresses().socket(Family::V6, port))?;
        for form in FORMS {
            for (order, id) in ORDERS.into_iter().zip(&mut numbers) {
                send(&hand, (hand.question(frontend, LENGTH), frontend), form, (order, id))?;
                let asked = hand.answer(frontend, LENGTH);
                asked.with_context(|| {
                    format!("{} asks {frontend}, {form:?}, {order:?}", client.name())
                })?;
            }
        }
    }
    Ok(())
}

/// Ordinary sockets ask and receive. Fragments of answers wait for their first one only where they come in to an
/// address of the node (ADR 0014).
fn answers_with_options_arrive(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape, OWN)?;
    let mut numbers = 1_001..;
    for question in questions(&rig, &services)? {
        let Question { client, frontend, backend, is_masqueraded } = question;
        let own = backend.addresses().socket(Family::V6, OWN);
        let hand = Handmade::open(backend, own)?;
        // The socket has the deadline of `traffic::open`.
        let asker = UdpSocket::from(socket(client, Family::V6, Type::DGRAM, 0)?);
        asker.connect(frontend)?;
        for form in FORMS {
            let possible = |order: &Order| is_masqueraded || *order == Order::Sent;
            for (order, id) in ORDERS.into_iter().filter(possible).zip(&mut numbers) {
                let what = || format!("{} asks {frontend}, {form:?}, {order:?}", client.name());
                asker.send(b"?")?;
                let from = hand.asked().with_context(what)?;
                let [source, destination] = [own, from].map(|end| at(&end.to_string()));
                let answer = Datagram::new(source, destination, Transport::Udp(true));
                send(&hand, (answer.with(&[7; LENGTH]), from), form, (order, id))?;
                let mut bytes = [0; 2 * LENGTH];
                let length = asker.recv(&mut bytes).with_context(what)?;
                ensure!(length == LENGTH, "{}: {length} bytes", what());
            }
        }
    }
    Ok(())
}
