//! A client that takes all source ports towards a backend, by answered datagrams or by segments without a connection:
//! it and other clients are served nevertheless.

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Port;
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Family, Member, Pod, Shape, Topology};
use lb_tests::traffic::{Ask, Handmade};
use lb_tests::wait;

use super::flood::{FIRST_PORT, Flood};
use super::{NODE_PORT, STREAM, all_ask, none_is_lost, protected, start_agents};

in_both_shapes!(datagrams_of_one_client_leave_ports_to_others);

/// The local ports of the node that leave the fewest ports for translated sources, the first of these, and their
/// number.
const LOCAL: &str = "2048 65535";
pub(super) const FIRST_OF_NODE: u16 = 1_024;
pub(super) const PORTS: u16 = 1_024;

/// The ports of the client, which map to as many ports of the node: each of them is taken.
const FIRST: u16 = 20_000;
/// The size of a datagram in bytes.
const SIZE: usize = 7;
/// The local ports of the sockets of the flooding host, from which its flood sends nothing: a segment of the flood with
/// the ports of a connection would be a part of it.
const SOCKETS: &str = "62000 65535";

/// Starts a Service with these backends. The first node has few ports for translated sources, so that a short flood can
/// take all of them. `capacity` is that of each flow table, if not the default.
pub(super) fn rig_with_few_ports(
    shape: Shape,
    capacity: Option<u32>,
    backends: impl Fn(&Rig) -> Result<Vec<&Pod>>,
) -> Result<(Rig, Service)> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    rig.node(0)?.netns().sysctl("net.ipv4.ip_local_port_range", LOCAL)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&backends(&rig)?);
    rig.manifests().apply(&web)?;
    start_agents(&mut rig, capacity, &["FLOWS", "TRANSIENT4", "TRANSIENT6"])?;
    Ok((rig, web))
}

fn datagrams_of_one_client_leave_ports_to_others(shape: Shape) -> Result<()> {
    let (rig, _far) = rig_with_few_ports(shape, None, |rig| Ok(vec![rig.pod(1, 1)?]))?;
    for family in Family::ALL {
        let client = rig.client();
        let to = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let hand = Handmade::open(client, client.addresses().socket(family, FIRST))?;
        // Datagrams before and after the time from which on a flow is protected.
        for _ in 0..2 {
            for port in FIRST..FIRST + PORTS {
                let mut question = hand.question(to, SIZE);
                question.source.port = Port::new(port);
                hand.send(&question, to)?;
            }
            hand.answer(to, SIZE).context("the client with many ports")?;
            wait::pass(STREAM);
        }
        let crowd = protected(&rig, |tuple| tuple.source_port.get().wrapping_sub(FIRST) < PORTS)?;
        ensure!(crowd.len() > usize::from(PORTS), "{} entries are protected", crowd.len());
        for _ in 0..20 {
            ask(rig.pod(1, 0)?, Ask::udp(to)).context("another client")?;
        }
        hand.send(&hand.question(to, SIZE), to)?;
        hand.answer(to, SIZE).context("the client with many ports, later")?;
    }
    Ok(())
}

/// The Service has one backend, on another node, and the flood takes every port towards it.
#[test]
fn fins_and_acks_of_one_host_leave_ports_to_it_and_to_others() -> Result<()> {
    let (rig, far) = rig_with_few_ports(Shape::Routed, None, |rig| Ok(vec![rig.pod(1, 1)?]))?;
    let client = rig.client();
    client.netns().sysctl("net.ipv4.ip_local_port_range", SOCKETS)?;
    let mut askers: Vec<(&Member, Ask)> = Vec::new();
    for (family, protocol) in matrix() {
        let outside = Ask::new(protocol, rig.node(0)?.addresses().socket(family, NODE_PORT));
        let inside = Ask::new(protocol, far.frontend(family));
        askers.extend([(client, outside), (&**rig.pod(1, 0)?, outside), (&**rig.node(0)?, inside)]);
    }
    let loads = all_ask(askers)?;
    wait::pass(STREAM);
    let (flood, mut sent) = (Flood::of_fins_and_acks(), 0);
    for family in Family::ALL {
        let own = client.addresses().socket(family, 25_998);
        let to = [rig.node(0)?.addresses().socket(family, NODE_PORT)];
        sent += flood.send(client, own, &to, false)?;
    }
    let (answers, _slowest) = none_is_lost(&rig, loads)?;
    ensure!(sent > flood.packets, "only {sent} packets of floods were sent");
    let displaced = rig.agent(0)?.metric(&["lb_events_total", "\"port_displaced\""])?;
    ensure!(displaced > f64::from(PORTS), "the flood has not taken all ports towards the backend");
    let own = client.addresses().both();
    let is_flooded =
        |ip, port: u16| own.contains(&ip) && port.wrapping_sub(FIRST_PORT) < flood.ports;
    let protected = protected(&rig, |tuple| {
        is_flooded(tuple.source.into(), tuple.source_port.get())
            || is_flooded(tuple.destination.into(), tuple.destination_port.get())
    })?;
    ensure!(protected.is_empty(), "protected: {} such as {:?}", protected.len(), protected.first());
    campaign::figure("packets of FINs and ACKs of one host", sent, "packets");
    let what = "answers beside FINs and ACKs of one host, none lost";
    campaign::figure(what, answers, "answers");
    Ok(())
}
