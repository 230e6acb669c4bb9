//! A client whose answered datagrams have all source ports towards a backend: other clients are served nevertheless.

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Port;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask};
use lb_tests::topology::{Family, Pod, Shape, Topology};
use lb_tests::traffic::{Ask, Handmade};
use lb_tests::wait;

use super::{NODE_PORT, STREAM, protected, start_agents};

in_both_shapes!(datagrams_of_one_client_leave_ports_to_others);

/// The local ports of the node that leave the fewest ports for translated sources, and the number of these.
const LOCAL: &str = "2048 65535";
pub(super) const PORTS: u16 = 1_024;

/// The ports of the client, which map to as many ports of the node: each of them is taken.
const FIRST: u16 = 20_000;
/// The size of a datagram in bytes.
const SIZE: usize = 7;

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
