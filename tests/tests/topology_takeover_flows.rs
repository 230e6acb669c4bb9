//! Connections during a take-over from kube-proxy: connections whose backend has left their Service and serves another
//! one, connections from the port of one that has ended, and connections that are another program's.
//!
//! The test writes the rules.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_agent::takeover::KubeProxyRemains;
use lb_tests::agent::{Agent, Source};
use lb_tests::control_plane::kube_proxy::by_hand::{self, Translation};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;

/// The deadline of all waits in this file.
const SOON: Duration = Duration::from_mins(1);
/// The source port of the client pod.
const PORT: u16 = 45_678;

/// A node with two Services and three pods; the first pod is the client. Both Services have the second pod as a
/// backend. The rules send packets for the first Service there; that Service also has the third pod.
fn rig() -> Result<(Rig, [Service; 2])> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1).pods(3))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?, rig.pod(0, 2)?]);
    let other = Service::new("other", 11)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.manifests().apply(&other)?;
    let (node, pod) = (rig.node(0)?.netns(), rig.pod(0, 1)?.addresses());
    let translation =
        |family| -> Translation { (web.frontend(family), pod.socket(family, TARGET)) };
    by_hand::write(node, "kube-proxy", &Family::ALL.map(translation))?;
    node.remember_datagrams(300)?;
    Ok((rig, [web, other]))
}

fn start(rig: &Rig) -> Result<Agent> {
    Agent::start(rig.node(0)?, Source::Manifests(rig.manifests().directory()), &[])
}

/// Waits until netfilter knows this number of closed TCP connections.
fn until_ended(rig: &Rig, count: usize) -> Result<()> {
    wait_until_ok(SOON, "netfilter remembers what has ended, or forgets it", || {
        let KubeProxyRemains { ended, .. } =
            rig.node(0)?.netns().run_in(|| KubeProxyRemains::look(None))??;
        ensure!(ended.len() == count, "{ended:?}");
        Ok(())
    })
}

#[test]
fn datagrams_leave_a_backend_that_serves_another_service() -> Result<()> {
    let (rig, [web, _]) = rig()?;
    let questions = Family::ALL.map(|family| Ask::udp(web.frontend(family)));
    let open = questions.map(|question| rig.pod(0, 0)?.peer().keep(question).map_err(Into::into));
    let open = open.into_iter().collect::<Result<Vec<_>>>()?;
    let is_answered_by = |server: &str| {
        for socket in &open {
            let answer = socket.ask()?;
            ensure!(answer.server == server, "{answer:?}");
        }
        Ok(())
    };
    is_answered_by("pod-a2")?;
    let _agent = start(&rig)?;
    is_answered_by("pod-a2")?;
    rig.manifests().apply(&web.pods(&[rig.pod(0, 2)?]))?;
    wait_until_ok(SOON, "the other backend answers", || is_answered_by("pod-a3"))
}

/// As long as netfilter translates packets, it would give the new connection another port.
#[test]
fn connection_from_the_port_of_an_ended_one_outlives_the_take_over() -> Result<()> {
    let (rig, [web, other]) = rig()?;
    for family in Family::ALL {
        drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(family)).from_port(PORT))?);
    }
    until_ended(&rig, 2)?;
    let agent = start(&rig)?;
    until_ended(&rig, 0)?;
    let questions = Family::ALL.map(|family| Ask::tcp(other.frontend(family)).from_port(PORT));
    let mut open = Vec::new();
    for question in questions {
        let socket = rig.pod(0, 0)?.peer().keep(question)?;
        let answer = socket.ask()?;
        ensure!(answer.client.port() == PORT, "{answer:?}");
        open.push(socket);
    }
    let (code, said) = agent.ended(&["takeover", "--remove-rules", "--wait", "--timeout", "60"])?;
    ensure!(code == 0, "ended with {code}: {said}");
    until_nothing_is_taken_over(&rig)?;
    for socket in open {
        drop(socket.ask()?);
    }
    Ok(())
}

fn until_nothing_is_taken_over(rig: &Rig) -> Result<()> {
    wait_until_ok(SOON, "nothing is taken over", || {
        let tables = rig.node(0)?.netns().tool("nft", &["list", "tables"])?;
        ensure!(!tables.contains("lb-agent"), "{tables}");
        Ok(())
    })
}

/// Docker and CNI plugins publish ports between the lowest and the highest `NodePort` too.
#[test]
fn published_port_in_the_range_of_node_ports_is_no_take_over() -> Result<()> {
    const PUBLISHED: u16 = 30_500;
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1).pods(2))?;
    for (name, index, node_port) in [("low", 10, 30_000), ("high", 11, 30_900)] {
        let service = Service::new(name, index)?.port(80, TARGET).node_port(node_port);
        rig.manifests().apply(&service.pods(&[rig.pod(0, 1)?]))?;
    }
    let (node, pod) = (rig.node(0)?, rig.pod(0, 1)?.addresses());
    let published = |family| node.addresses().socket(family, PUBLISHED);
    let translation = |family| -> Translation { (published(family), pod.socket(family, TARGET)) };
    by_hand::write(node.netns(), "docker", &Family::ALL.map(translation))?;
    node.netns().remember_datagrams(300)?;
    let mut open = Vec::new();
    for family in Family::ALL {
        for question in [Ask::tcp(published(family)), Ask::udp(published(family))] {
            open.push(rig.pod(0, 0)?.peer().keep(question)?);
        }
    }
    let _agent = start(&rig)?;
    // Until the Services are known, every connection that netfilter translates counts.
    until_nothing_is_taken_over(&rig)?;
    for socket in open {
        drop(socket.ask()?);
    }
    Ok(())
}
