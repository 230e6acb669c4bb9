//! Open, idle connections of a node and of its masqueraded pods whose port becomes a frontend of the node, or whose
//! server's address becomes an external IP: packets still arrive in both directions.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::control_plane::kube_proxy::by_hand;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{self, Rig, TARGET, until};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::traffic::open::{Open, open, socket};
use lb_tests::wait::wait_until_ok;
use socket2::Type;

#[path = "topology_own_connections/frontends.rs"]
mod frontends;
#[path = "topology_open_connections/given_away.rs"]
mod given_away;

use frontends::Kind;

in_both_shapes!(
    connections_from_a_node_port_go_on_during_a_take_over_and_after,
    silent_sockets_of_the_node_need_no_record,
    connections_outlive_that_their_servers_address_becomes_external,
    connections_of_a_host_port_outlive_that_it_becomes_external,
);

/// Ports inside the default range of `NodePorts`.
const USUAL: [u16; 3] = [30_085, 30_086, 30_087];
/// The port of a server outside.
const OUTSIDE: u16 = 9_210;
/// The deadline for reads; everything in this test answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Masquerades the connections of a pod to the server with the node's address and this port.
fn masquerade(rig: &Rig, pod: &Member, port: u16) -> Result<()> {
    rig::masquerade(rig.node(0)?, pod.addresses().both(), rig.client(), &port.to_string())
}

/// Opens connections of the node from a port, and adds the ports of their servers.
fn open_own(rig: &Rig, port: u16, servers: &mut BTreeSet<u16>) -> Result<Vec<Open>> {
    let mut all = Vec::new();
    for family in Family::ALL {
        for kind in [Type::STREAM, Type::DGRAM] {
            let server = socket(rig.client(), family, kind, 0)?;
            servers.extend(server.local_addr()?.as_socket().map(|it| it.port()));
            all.push(open(socket(rig.node(0)?, family, kind, port)?, server)?.0);
        }
    }
    Ok(all)
}

/// Some connections are open before the programs are attached. The records of the others are displaced: the node sends
/// from a `NodePort`'s number to twice as many ends as there are places. Netfilter follows no connection here.
fn silent_sockets_of_the_node_need_no_record(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let [before, other, after] = USUAL;
    let mut servers = BTreeSet::new();
    let mut all = open_own(&rig, before, &mut servers)?;
    (10..).zip(USUAL).try_for_each(|(index, port)| Kind::Near.give(&rig, index, port))?;
    rig.start_agents(&[])?;
    all.extend(open_own(&rig, after, &mut servers)?);
    for family in Family::ALL {
        let sender = UdpSocket::from(socket(rig.node(0)?, family, Type::DGRAM, other)?);
        for to in (1..=u16::MAX).filter(|port| !servers.contains(port)) {
            let to = rig.client().addresses().socket(family, to);
            ensure!(sender.send_to(b"!", to)? == 1, "cut on the way to {to}");
        }
    }
    all.iter_mut().try_for_each(Open::is_alive)
}

/// The servers answer datagrams while rules of kube-proxy exist. They send their first segments after the rules were
/// removed, so the egress programs have recorded nothing of these connections.
fn connections_from_a_node_port_go_on_during_a_take_over_and_after(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let [port, ..] = USUAL;
    let service = Service::new("web", 10)?.port(80, TARGET).node_port(port);
    let service = service.pods(&[rig.pod(0, 0)?]);
    rig.manifests().apply(&service)?;
    let pod = rig.pod(0, 0)?.addresses();
    let translation = |family| (service.frontend(family), pod.socket(family, TARGET));
    by_hand::write(rig.node(0)?.netns(), "kube-proxy", &Family::ALL.map(translation))?;
    rig.start_agents(&[])?;
    masquerade(&rig, rig.pod(0, 1)?, port)?;
    let mut all = Vec::new();
    for family in Family::ALL {
        for kind in [Type::DGRAM, Type::STREAM] {
            let own = socket(rig.node(0)?, family, kind, port)?;
            // No lookup finds a socket for the connections of a pod.
            for client in [own, socket(rig.pod(0, 1)?, family, kind, 0)?] {
                let (mut open, from) = open(client, socket(rig.client(), family, kind, 0)?)?;
                ensure!(from == port, "from {from}, not {port}");
                if let Open::Datagrams(..) = open {
                    open.is_alive()?;
                }
                all.push(open);
            }
        }
    }
    let agent = rig.agent(0)?;
    let (code, said) = agent.ended(&["takeover", "--remove-rules", "--wait"])?;
    ensure!(code == 0, "ended with {code}: {said}");
    wait_until_ok(PATIENCE, "the take-over is over", || {
        let status = agent.command(&["status"])?;
        ensure!(!status.contains("Take-over"), "{status}");
        Ok(())
    })?;
    all.iter_mut().try_for_each(Open::is_alive)
}

/// New connections reach the Service. Some connections are open before the programs are attached.
fn connections_outlive_that_their_servers_address_becomes_external(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    masquerade(&rig, rig.pod(0, 1)?, USUAL[0])?;
    let open_both = |rig: &Rig, all: &mut Vec<Open>| -> Result<()> {
        let clients: [&Member; 2] = [rig.node(0)?, rig.pod(0, 1)?];
        for family in Family::ALL {
            for client in clients {
                let server = socket(rig.client(), family, Type::STREAM, OUTSIDE)?;
                all.push(open(socket(client, family, Type::STREAM, 0)?, server)?.0);
            }
        }
        Ok(())
    };
    let mut all = Vec::new();
    open_both(&rig, &mut all)?;
    rig.start_agents(&[])?;
    masquerade(&rig, rig.pod(0, 1)?, USUAL[1])?;
    open_both(&rig, &mut all)?;
    let outside = rig.client().addresses();
    let taken = Service::new("taken", 10)?.port(OUTSIDE, TARGET).pods(&[rig.pod(0, 0)?]);
    let addresses = Family::ALL.map(|family| outside.socket(family, OUTSIDE).ip());
    rig.manifests().apply(&taken.external_ips(&addresses))?;
    let clients: [&Member; 2] = [rig.node(0)?, rig.pod(0, 1)?];
    for family in Family::ALL {
        let question = Ask::tcp(outside.socket(family, OUTSIDE));
        for client in clients {
            until(client, question, |it| it.as_ref().is_ok_and(|it| it.server == "pod-a1"))?;
        }
    }
    for (at, open) in all.iter_mut().enumerate() {
        open.is_alive().with_context(|| format!("connection {at}"))?;
    }
    Ok(())
}

/// A rule of another program translates the connections, as for a `hostPort`. The client sends first: a segment of the
/// server would show the data path whose connection it is.
fn connections_of_a_host_port_outlive_that_it_becomes_external(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let (node, server) = (rig.node(0)?.addresses(), rig.pod(0, 1)?.addresses());
    let of = |family| (node.socket(family, OUTSIDE), server.socket(family, TARGET + 1));
    by_hand::write(rig.node(0)?.netns(), "host-port", &Family::ALL.map(of))?;
    rig.start_agents(&[])?;
    let mut all = Vec::new();
    for family in Family::ALL {
        let listener = socket(rig.pod(0, 1)?, family, Type::STREAM, TARGET + 1)?;
        listener.listen(1)?;
        let client = socket(rig.client(), family, Type::STREAM, 0)?;
        client.connect(&node.socket(family, OUTSIDE).into())?;
        let (accepted, _) = TcpListener::from(listener).accept()?;
        accepted.set_read_timeout(Some(PATIENCE))?;
        all.push((TcpStream::from(client), accepted));
    }
    let taken = Service::new("taken", 10)?.port(OUTSIDE, TARGET).pods(&[rig.pod(0, 0)?]);
    let addresses = Family::ALL.map(|family| node.socket(family, OUTSIDE).ip());
    rig.manifests().apply(&taken.external_ips(&addresses))?;
    for family in Family::ALL {
        let question = Ask::tcp(node.socket(family, OUTSIDE));
        until(rig.client(), question, |it| it.as_ref().is_ok_and(|it| it.server == "pod-a1"))?;
    }
    for (at, (client, server)) in all.iter_mut().enumerate() {
        client.write_all(b"?")?;
        server.read_exact(&mut [0]).with_context(|| format!("connection {at}"))?;
    }
    Ok(())
}
