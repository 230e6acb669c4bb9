//! A pod that reaches one backend by several ways from one source port: the backend sees as many clients, and each
//! answer reaches the connection that it belongs to.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_tests::rig::{TARGET, ask, from_one_port, matrix, unused_port};
use lb_tests::topology::Member;
use lb_tests::traffic::{Ask, Protocol};

use super::Life;

/// The other node's `NodePort`, the `ClusterIP`, the own node's `NodePort`, and the backend itself: each of them first
/// and last, all open at once, and each after the one before has ended.
pub(crate) fn asks_by_every_way(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    let pod: &Member = rig.pod(0, 0)?;
    for (family, protocol) in matrix() {
        for (service, number, backend) in life.served()? {
            let mut ways = [
                rig.node(1)?.addresses().socket(family, number),
                service.frontend(family),
                rig.node(0)?.addresses().socket(family, number),
                backend.addresses().socket(family, TARGET),
            ];
            for _ in 0..ways.len() {
                at_once(protocol, pod, &ways, backend)?;
                one_after_another(protocol, pod, &ways, backend)?;
                ways.rotate_left(1);
            }
        }
    }
    Ok(())
}

fn at_once(protocol: Protocol, pod: &Member, ways: &[SocketAddr], backend: &Member) -> Result<()> {
    let flows: Vec<_> = ways.iter().map(|to| (pod, *to)).collect();
    for answer in from_one_port(protocol, &flows)? {
        ensure!(answer.server == backend.name(), "{answer:?}");
    }
    Ok(())
}

fn one_after_another(
    protocol: Protocol,
    pod: &Member,
    ways: &[SocketAddr],
    backend: &Member,
) -> Result<()> {
    let port = unused_port();
    for to in ways {
        let answer = ask(pod, Ask::new(protocol, *to).from_port(port));
        let answer = answer.with_context(|| format!("in turn, {ways:?}"))?;
        ensure!(answer.server == backend.name() && answer.peer == *to, "{answer:?}");
    }
    Ok(())
}
