//! Flows that differ before translation also differ after it, even where their clients chose the same port.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context as _, Result, ensure};
use lb_tests::rig::matrix;
use lb_tests::topology::{Family, Member};
use lb_tests::traffic::{Ask, Protocol};

use super::world::World;

/// Two sockets of a host to two frontends of one backend, two sockets of a pod, and sockets of two pods to one
/// frontend.
pub(crate) fn flows_of_one_port_are_distinguished(world: &World) -> Result<()> {
    let [near, far, _] = &world.served;
    let askers = world.askers()?;
    let (first, second) = (world.rig.pod(0, 0)?, world.rig.pod(0, 1)?);
    for (family, protocol) in matrix() {
        for served in [near, far] {
            for asker in askers.iter().filter(|asker| asker.node == Some(0)) {
                let paths = world.paths(*asker, served, family)?;
                // The last path uses the external IP; both it and the ClusterIP are translated by the client's node.
                let to = [paths[0].to, paths[paths.len() - 1].to];
                are_distinguished(protocol, &to.map(|to| (asker.member, to)))?;
            }
        }
        let node_port = node_port(world, family)?;
        are_distinguished(protocol, &[(&**first, node_port), (&**second, node_port)])?;
    }
    Ok(())
}

/// The `NodePort`, on the own node, of the Service whose backend is on the other node.
fn node_port(world: &World, family: Family) -> Result<SocketAddr> {
    Ok(world.rig.node(0)?.addresses().socket(family, super::NODE_PORTS[1]))
}

/// Opens all flows from one port, and uses each of them twice.
fn are_distinguished(protocol: Protocol, flows: &[(&Member, SocketAddr)]) -> Result<()> {
    let (port, mut open) = (unused_port(), Vec::new());
    for (from, to) in flows {
        let question = Ask::new(protocol, *to).from_port(port);
        let flow = from.peer().keep(question);
        let flow = flow.with_context(|| format!("{}: {question:?}", from.name()))?;
        open.push((from.name(), question, flow));
    }
    let mut seen = BTreeSet::new();
    for round in 0..2 {
        for (name, question, flow) in &open {
            let answer =
                flow.ask().with_context(|| format!("round {round}, {name}: {question:?}"))?;
            ensure!(answer.local.port() == port && answer.peer == question.to, "{answer:?}");
            seen.insert(answer.client);
        }
    }
    ensure!(seen.len() == flows.len(), "{protocol}: the backend saw {seen:?}");
    Ok(())
}

/// A port that no earlier connection has left in `TIME_WAIT`.
pub(crate) fn unused_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(25_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
