//! Path MTU discovery: the path through a router between the nodes has a smaller MTU than the wires that end at it.
//!
//! The router's ICMP errors are about translated packets, and must reach the original senders as errors about what they
//! sent.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, until};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::Ask;

in_both_shapes!(
    connections_find_the_mtu_of_a_router_between_nodes,
    datagrams_find_the_mtu_of_a_router_between_nodes,
    hosts_without_socket_hooks_see_their_frontend,
);

/// The MTU of the router, in bytes.
const MTU: u16 = 1_400;
/// The lengths in bytes of a question and of its answer.
const SIZES: [(usize, usize); 3] = [(1_440, 100), (100, 1_440), (4_000, 20_001)];
/// `NodePort`s of a backend on the first node, and of a backend on the other node.
const NODE_PORTS: [u16; 2] = [30_080, 30_081];

fn start(shape: Shape, setting: &str) -> Result<(Rig, [Service; 2])> {
    let mut rig = Rig::build(Topology::builder(shape).narrow_between(MTU))?;
    let [first, other] = NODE_PORTS;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(first);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(other);
    let (near, far) = (near.pods(&[rig.pod(0, 1)?]), far.pods(&[rig.pod(1, 1)?]));
    [&near, &far].into_iter().try_for_each(|service| rig.manifests().apply(service))?;
    let config = rig.configuration(setting)?;
    rig.start_agents(&[&config])?;
    Ok((rig, [near, far]))
}

/// All clients and frontends whose questions or answers pass the router; the external client is on the segment of
/// node-a. The third value tells whether a TCP client learns the MTU for the address of the frontend: a client that a
/// socket hook connected to its backend learns it for the backend.
fn questions<'a>(
    rig: &'a Rig,
    [near, far]: &[Service; 2],
    family: Family,
) -> Result<Vec<(&'a Member, SocketAddr, bool)>> {
    let (one, other) = (rig.node(0)?, rig.node(1)?);
    let [at_one, at_other] = NODE_PORTS;
    let node_port = |node: &Member, port| node.addresses().socket(family, port);
    Ok(vec![
        // Translated at the interface of a pod; for hosts by a socket hook, or for datagrams where they leave the host.
        (&**rig.pod(0, 0)?, far.frontend(family), true),
        (&**rig.pod(1, 0)?, near.frontend(family), true),
        (&**one, far.frontend(family), false),
        (&**other, near.frontend(family), false),
        // The backend is on another node, and sees the node's address.
        (rig.client(), node_port(one, at_other), true),
        // The backend is on the node of the frontend, and sees the client.
        (rig.client(), node_port(other, at_other), true),
        (&**other, node_port(one, at_one), true),
        (&**rig.pod(1, 0)?, node_port(one, at_one), true),
        // Through the router twice: between client and node, and between node and backend.
        (&**other, node_port(one, at_other), true),
        (&**rig.pod(0, 0)?, node_port(other, at_one), true),
    ])
}

/// Clears the learned MTUs of all members.
fn forget(rig: &Rig, family: Family) -> Result<()> {
    rig.topology().members().into_iter().try_for_each(|member| match family {
        Family::V4 => member.netns().sysctl("net.ipv4.route.flush", "1"),
        Family::V6 => member.netns().tool("ip", &["-6", "route", "flush", "cache"]).map(drop),
    })
}

/// Checks that a member has learned the MTU of the path to an address.
fn has_learnt(from: &Member, to: SocketAddr) -> Result<()> {
    let way = from.netns().tool("ip", &["route", "get", &to.ip().to_string()])?;
    ensure!(way.contains(&format!("mtu {MTU}")), "{} has not learned: {way}", from.name());
    Ok(())
}

fn connections_find_the_mtu_of_a_router_between_nodes(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape, "")?;
    for family in Family::ALL {
        for (from, to, learns) in questions(&rig, &services, family)? {
            forget(&rig, family)?;
            let answer = ask(from, Ask::tcp(to).sized(300_000, 300_000))?;
            ensure!(answer.peer == to, "{answer:?}");
            if learns {
                has_learnt(from, to)?;
            }
        }
    }
    Ok(())
}

/// Datagrams that exceed the MTU are lost, so the questions are repeated until both ends have learned it. Outside a
/// campaign, each path is tested with one of the sizes, and with another one in each family.
fn datagrams_find_the_mtu_of_a_router_between_nodes(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape, "")?;
    let step = campaign::size(SIZES.len(), 1);
    for (turn, family) in Family::ALL.into_iter().enumerate() {
        for (way, (from, to, _)) in questions(&rig, &services, family)?.into_iter().enumerate() {
            for (size, answer_size) in SIZES.into_iter().skip((turn + way) % step).step_by(step) {
                forget(&rig, family)?;
                let question = Ask::udp(to).sized(size, answer_size);
                let arrived = until(from, question, Result::is_ok);
                arrived.with_context(|| format!("{size} bytes, and {answer_size} back"))?;
                // IPv4 routers fragment packets that are fragments already.
                if size == 1_440 || size > 1_440 && family == Family::V6 {
                    has_learnt(from, to)?;
                }
            }
        }
    }
    Ok(())
}

/// With `socketLB: off`, connections of hosts are translated where they leave, like their datagrams.
fn hosts_without_socket_hooks_see_their_frontend(shape: Shape) -> Result<()> {
    let (rig, services) = start(shape, "socketLB: 'off'")?;
    for family in Family::ALL {
        for (from, to, _) in questions(&rig, &services, family)? {
            let is_host = rig.topology().nodes().iter().any(|node| node.name() == from.name());
            if !is_host {
                continue;
            }
            forget(&rig, family)?;
            let answer = ask(from, Ask::tcp(to).sized(300_000, 300_000))?;
            ensure!(answer.peer == to, "{answer:?}");
            has_learnt(from, to)?;
            forget(&rig, family)?;
            until(from, Ask::udp(to).sized(1_440, 100), Result::is_ok)?;
            has_learnt(from, to)?;
        }
        // Through `lo` to the own node, and from there to the backend.
        let one = rig.node(0)?;
        let [_, at_other] = NODE_PORTS;
        let to = one.addresses().socket(family, at_other);
        forget(&rig, family)?;
        drop(ask(one, Ask::tcp(to).sized(300_000, 300_000))?);
        forget(&rig, family)?;
        until(one, Ask::udp(to).sized(1_440, 100), Result::is_ok)?;
    }
    Ok(())
}
