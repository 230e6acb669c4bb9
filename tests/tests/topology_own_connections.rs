//! Connections that a node begins, or that it masquerades for its pods, from ports that `NodePorts` have: their answers
//! come to a frontend and are no questions to its Service.

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Kept, Protocol};

in_both_shapes!(
    node_talks_to_a_server_outside_from_node_ports,
    masqueraded_pods_talk_to_a_server_outside_from_node_ports,
    connection_outlives_that_its_port_becomes_a_node_port,
);

/// `NodePorts` of Services with a near, a far, and no backend.
const TAKEN: [u16; 3] = [30_080, 30_081, 30_082];
/// A number that becomes a `NodePort` later.
const LATER: u16 = 30_085;

fn rig(shape: Shape) -> Result<Rig> {
    let rig = Rig::build(Topology::builder(shape))?;
    let [near, far, none] = TAKEN;
    let service = |name, index, number| -> Result<Service> {
        Ok(Service::new(name, index)?.port(80, TARGET).node_port(number))
    };
    let near = service("near", 10, near)?.pods(&[rig.pod(0, 0)?]);
    let far = service("far", 11, far)?.pods(&[rig.pod(1, 0)?]);
    let none = service("none", 12, none)?;
    rig.start(&[&near, &far, &none])
}

/// Keeps a flow to the server outside, and asks twice.
fn kept<'a>(
    rig: &Rig,
    from: &'a Member,
    (family, protocol): (Family, Protocol),
    port: Option<u16>,
) -> Result<Kept<'a>> {
    let question = Ask::new(protocol, rig.client().addresses().socket(family, TARGET));
    let question = port.map_or(question, |port| question.from_port(port));
    let flow = from.peer().keep(question).with_context(|| format!("{question:?}"))?;
    for _ in 0..2 {
        let answer = flow.ask().with_context(|| format!("{question:?}"))?;
        ensure!(answer.server == rig.client().name(), "{answer:?}");
    }
    Ok(flow)
}

/// A client outside still reaches the Service whose port somebody of the node uses.
fn is_served(
    rig: &Rig,
    (family, protocol): (Family, Protocol),
    port: u16,
    server: &Member,
) -> Result<()> {
    let node = rig.node(0)?.addresses().socket(family, port);
    let answer = ask(rig.client(), Ask::new(protocol, node))?;
    ensure!(answer.server == server.name(), "{answer:?}");
    Ok(())
}

fn node_talks_to_a_server_outside_from_node_ports(shape: Shape) -> Result<()> {
    let rig = rig(shape)?;
    for flow in matrix() {
        let [near, far, none] = TAKEN;
        for port in [near, far, none] {
            drop(kept(&rig, rig.node(0)?, flow, Some(port))?);
        }
        is_served(&rig, flow, near, rig.pod(0, 0)?)?;
        is_served(&rig, flow, far, rig.pod(1, 0)?)?;
    }
    Ok(())
}

fn masqueraded_pods_talk_to_a_server_outside_from_node_ports(shape: Shape) -> Result<()> {
    let rig = rig(shape)?;
    let node = rig.node(0)?;
    let [pods4, pods6] = node.pod_ranges();
    let outside = rig.client().addresses();
    for port in TAKEN {
        // As a CNI with random ports does now and then.
        let rules = format!(
            "table inet t; delete table inet t;
             table inet t {{ chain c {{
               type nat hook postrouting priority srcnat;
               ip saddr {pods4} ip daddr {} meta l4proto {{ tcp, udp }} masquerade to :{port}
               ip6 saddr {pods6} ip6 daddr {} meta l4proto {{ tcp, udp }} masquerade to :{port}
             }}; }}",
            outside.v4, outside.v6
        );
        drop(node.netns().tool_fed("nft", &["-f", "-"], &rules)?);
        for (family, protocol) in matrix() {
            let flow = kept(&rig, rig.pod(0, 1)?, (family, protocol), None)?;
            let client = flow.ask()?.client;
            ensure!(client == node.addresses().socket(family, port), "seen as {client}");
        }
    }
    Ok(())
}

fn connection_outlives_that_its_port_becomes_a_node_port(shape: Shape) -> Result<()> {
    let rig = rig(shape)?;
    let mut flows = Vec::new();
    for flow in matrix() {
        flows.push((flow, kept(&rig, rig.node(0)?, flow, Some(LATER))?));
    }
    let later = Service::new("later", 13)?.port(80, TARGET).node_port(LATER);
    let later = later.pods(&[rig.pod(0, 0)?]);
    rig.manifests().apply(&later)?;
    for (family, protocol) in matrix() {
        // From another node, to which nothing is kept.
        let question = Ask::new(protocol, rig.node(0)?.addresses().socket(family, LATER));
        until(rig.node(1)?, question, |it| it.as_ref().is_ok_and(|it| it.server == "pod-a1"))?;
    }
    for (flow, kept) in flows {
        for _ in 0..3 {
            let answer = kept.ask().with_context(|| format!("{flow:?}"))?;
            ensure!(answer.server == rig.client().name(), "{flow:?}: {answer:?}");
        }
    }
    Ok(())
}
