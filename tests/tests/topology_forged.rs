//! Forged segments of open connections: an RST or FIN with a guessed sequence number and a SYN with the same ports end
//! and move no connection, also when the connection is idle afterwards and its backend has left the Service. First
//! packets with the source of another client cost that client nothing.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_common::wire::tcp;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Family, Pod, Shape, Topology};
use lb_tests::traffic::{Ask, Attacked, Handmade, Protocol};
use lb_tests::wait::wait_until_ok;

/// The deadline for a closed connection to disappear from lists: it lasts ten seconds, and until the next sweep.
const SOON: Duration = Duration::from_mins(1);
const NODE_PORTS: [u16; 2] = [30_080, 30_081];
in_both_shapes!(
    forged_segments_end_no_connection,
    first_packets_in_the_name_of_another_pod_cost_it_nothing,
);

/// A pod of node-a begins flows in the name of a pod of node-b, which then asks from the same ports.
fn first_packets_in_the_name_of_another_pod_cost_it_nothing(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let service = |node: usize| -> Result<Service> {
        let service = Service::new(["near", "far"][node], 12 + node as u8)?.port(80, TARGET);
        Ok(service.node_port(NODE_PORTS[node]).pods(&[rig.pod(node, 1)?]))
    };
    let services = [service(0)?, service(1)?];
    let rig = rig.start(&[&services[0], &services[1]])?;
    let (forger, client, node) = (rig.pod(0, 0)?, rig.pod(1, 0)?, rig.node(0)?);
    let ports = NODE_PORTS.iter().flat_map(|port| matrix().map(move |it| (*port, it)));
    for ((node_port, (family, protocol)), own) in ports.zip(41_000..) {
        let asked = node.addresses().socket(family, node_port);
        let source = client.addresses().socket(family, own);
        let transport = match protocol {
            Protocol::Tcp => Transport::Tcp(tcp::SYN),
            Protocol::Udp => Transport::Udp(true),
        };
        let [from, to] = [source, asked].map(|end| at(&end.to_string()));
        let hand = Handmade::open(forger, forger.addresses().socket(family, 0))?;
        hand.send(&Datagram::new(from, to, transport), asked)?;
        // A closed connection keeps its client from using the port again.
        let times = if protocol == Protocol::Tcp { 1 } else { 3 };
        for _ in 0..times {
            let answer = ask(client, Ask::new(protocol, asked).from(source))?;
            ensure!(answer.peer == asked, "{answer:?}");
        }
    }
    Ok(())
}

fn forged_segments_end_no_connection(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    rig.start_agents(&[])?;
    let services = [0_usize, 1].map(|node| -> Result<(Service, &Pod, &Pod)> {
        let (before, after) = (rig.pod(node, 1)?, rig.pod(1 - node, 1)?);
        let service = Service::new(["near", "far"][node], 10 + node as u8)?.port(80, TARGET);
        Ok((service.node_port(NODE_PORTS[node]), before, after))
    });
    let services: Vec<_> = services.into_iter().collect::<Result<_>>()?;
    for (service, before, _) in &services {
        rig.manifests().apply(&service.clone().pods(&[before]))?;
    }
    let mut open = Vec::new();
    for ((service, ..), port) in services.iter().zip(NODE_PORTS) {
        open.extend(Attacked::open_all(&rig, service, port)?);
    }
    // With a second backend a SYN that began the flow again could move it.
    for (service, before, after) in &services {
        rig.manifests().apply(&service.clone().pods(&[before, after]))?;
        until(rig.pod(0, 0)?, Ask::tcp(service.frontend(Family::V4)), |outcome| {
            outcome.as_ref().is_ok_and(|answer| answer.server == after.name())
        })?;
    }
    for connection in &open {
        connection.forge(rig.pod(0, 1)?)?;
        connection.goes_on()?;
    }
    // A connection that really ends is forgotten after the same time, so the forged segments had enough time to take
    // effect.
    let (service, ..) = services.first().context("a service")?;
    let question = Ask::tcp(service.frontend(Family::V4));
    let ended = rig.pod(0, 0)?.peer().ask(question)?.local.port().to_string();
    for (service, _, after) in &services {
        rig.manifests().apply(&service.clone().pods(&[after]))?;
        until(rig.pod(0, 0)?, Ask::tcp(service.frontend(Family::V4)), |outcome| {
            outcome.as_ref().is_ok_and(|answer| answer.server == after.name())
        })?;
    }
    wait_until_ok(SOON, "what has ended is forgotten", || {
        let flows = rig.agent(0)?.command(&["ct", "list", "--no-headers"])?;
        ensure!(!flows.contains(&ended), "port {ended} in:\n{flows}");
        Ok(())
    })?;
    open.iter().try_for_each(Attacked::goes_on)
}
