//! Questions of external clients, pods and other nodes to a `NodePort`.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, ask, different_servers, matrix, refused};
use lb_tests::topology::{Family, Shape};
use lb_tests::traffic::Ask;

const NODE_PORT: u16 = 30_080;

in_both_shapes!(
    backend_on_the_node_sees_the_client_outside,
    backend_on_the_other_node_answers_the_client_outside,
    backend_on_the_host_network_answers_the_client_outside,
    every_backend_gets_its_share_from_outside,
    large_questions_and_answers_arrive_whole,
    pods_ask_the_port_of_their_own_and_of_the_other_node,
    privileged_ports_stay_privileged,
    number_that_no_service_has_is_left_to_the_host,
    connection_from_outside_lives_on_between_questions,
);

fn service(endpoints: Vec<Endpoint>) -> Result<Service> {
    Ok(Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).endpoints(endpoints))
}

fn backend_on_the_node_sees_the_client_outside(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(vec![Endpoint::pod(rig.pod(0, 0)?)])?;
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let to = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let answer = ask(rig.client(), Ask::new(protocol, to))?;
        ensure!(answer.server == "pod-a1" && answer.peer == to, "{answer:?}");
        ensure!(answer.client == answer.local, "source was translated: {answer:?}");
    }
    Ok(())
}

fn backend_on_the_other_node_answers_the_client_outside(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(vec![Endpoint::pod(rig.pod(1, 0)?)])?;
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let node = rig.node(0)?.addresses();
        let answer = ask(rig.client(), Ask::new(protocol, node.socket(family, NODE_PORT)))?;
        ensure!(answer.server == "pod-b1", "{answer:?}");
        // The backend must answer through the node that the client used.
        ensure!(answer.client.ip() == node.of(family), "{answer:?}");
    }
    Ok(())
}

fn backend_on_the_host_network_answers_the_client_outside(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(vec![Endpoint::host(rig.node(0)?)])?;
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        for node in [0, 1] {
            let to = rig.node(node)?.addresses().socket(family, NODE_PORT);
            let answer = ask(rig.client(), Ask::new(protocol, to))?;
            ensure!(answer.server == "node-a" && answer.peer == to, "{answer:?}");
        }
    }
    Ok(())
}

fn every_backend_gets_its_share_from_outside(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(rig.pods().into_iter().map(Endpoint::pod).collect())?;
    let rig = rig.start(&[&web])?;
    let everybody: BTreeSet<String> = rig.pods().iter().map(|pod| pod.name().to_owned()).collect();
    for (family, protocol) in matrix() {
        let to = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let found = different_servers(rig.client(), Ask::new(protocol, to), 4)?;
        ensure!(found == everybody, "{family} {protocol}: only {found:?}");
    }
    Ok(())
}

fn large_questions_and_answers_arrive_whole(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(vec![Endpoint::pod(rig.pod(0, 0)?)])?;
    let rig = rig.start(&[&web])?;
    for family in Family::ALL {
        for node in rig.topology().nodes() {
            let question = Ask::tcp(node.addresses().socket(family, NODE_PORT));
            drop(ask(rig.client(), question.sized(1_000_000, 1_000_000).within(30_000))?);
        }
    }
    Ok(())
}

fn pods_ask_the_port_of_their_own_and_of_the_other_node(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(rig.pods().into_iter().map(Endpoint::pod).collect())?;
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        for node in rig.topology().nodes() {
            let question = Ask::new(protocol, node.addresses().socket(family, NODE_PORT));
            let found = different_servers(rig.pod(0, 0)?, question, 4)?;
            ensure!(found.len() == 4, "{family} {protocol} to {}: {found:?}", question.to);
        }
    }
    Ok(())
}

fn privileged_ports_stay_privileged(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(vec![Endpoint::pod(rig.pod(1, 0)?)])?;
    let rig = rig.start(&[&web])?;
    for ((family, protocol), port) in matrix().zip(700..) {
        let question = Ask::new(protocol, rig.node(0)?.addresses().socket(family, NODE_PORT));
        let answer = ask(rig.client(), question.from_port(port))?;
        let seen = answer.client;
        ensure!(seen.ip() == rig.node(0)?.ip(family) && seen.port() < 1_024, "seen as {seen}");
    }
    Ok(())
}

fn number_that_no_service_has_is_left_to_the_host(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(vec![Endpoint::pod(rig.pod(0, 0)?)])?;
    let rig = rig.start(&[&web])?;
    let node = rig.node(0)?;
    for (family, protocol) in matrix() {
        let answer =
            ask(rig.client(), Ask::new(protocol, node.addresses().socket(family, TARGET)))?;
        ensure!(answer.server == "node-a", "{answer:?}");
        refused(rig.client(), Ask::new(protocol, node.addresses().socket(family, NODE_PORT + 1)))?;
    }
    Ok(())
}

fn connection_from_outside_lives_on_between_questions(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = service(rig.pods().into_iter().map(Endpoint::pod).collect())?;
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let to = rig.node(1)?.addresses().socket(family, NODE_PORT);
        let kept = rig.client().peer().keep(Ask::new(protocol, to))?;
        let first = kept.ask()?;
        for _ in 0..20 {
            ensure!(kept.ask()?.server == first.server, "{family} {protocol}");
        }
    }
    Ok(())
}
