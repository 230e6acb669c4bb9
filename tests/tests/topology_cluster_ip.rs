//! Questions of pods to a `ClusterIP`: backends on the same and on another node, on pod and host networks, and the
//! client itself.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, ask, different_servers, matrix};
use lb_tests::topology::{Family, Shape};
use lb_tests::traffic::{Ask, Protocol};

in_both_shapes!(
    backend_on_the_same_node_answers_and_sees_the_pod,
    backend_on_the_other_node_answers_and_sees_the_pod,
    backends_on_host_networks_answer,
    every_backend_gets_its_share,
    ports_of_a_service_lead_to_their_own_targets,
    pod_reaches_itself,
    large_questions_and_answers_arrive_whole,
    unconnected_socket_hears_from_the_frontend,
    connection_lives_on_between_questions,
    plain_traffic_between_pods_is_left_alone,
);

/// Asks a Service from pod 0 of node 0 whose only backend is pod 1 of node `node`.
fn one_backend(shape: Shape, node: usize) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let (client, server) = (0, (node, 1));
    let backend = rig.pod(server.0, server.1)?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[backend]);
    let rig = rig.start(&[&web])?;
    let (pod, backend) = (rig.pod(0, client)?, rig.pod(server.0, server.1)?);
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        let answer = ask(pod, question)?;
        let what = format!("{family} {protocol}: {answer:?}");
        ensure!(answer.server == backend.name(), "{what}");
        ensure!(answer.client.ip() == pod.ip(family), "source was translated: {what}");
        ensure!(answer.client == answer.local, "port was translated: {what}");
        ensure!(answer.peer == question.to, "the pod sees another peer: {what}");
    }
    Ok(())
}

fn backend_on_the_same_node_answers_and_sees_the_pod(shape: Shape) -> Result<()> {
    one_backend(shape, 0)
}

fn backend_on_the_other_node_answers_and_sees_the_pod(shape: Shape) -> Result<()> {
    one_backend(shape, 1)
}

fn backends_on_host_networks_answer(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let here = Service::new("here", 10)?.port(80, TARGET).endpoints([Endpoint::host(rig.node(0)?)]);
    let there =
        Service::new("there", 11)?.port(80, TARGET).endpoints([Endpoint::host(rig.node(1)?)]);
    let rig = rig.start(&[&here, &there])?;
    for (family, protocol) in matrix() {
        let pod = rig.pod(0, 0)?;
        let answer = ask(pod, Ask::new(protocol, here.frontend(family)))?;
        ensure!(answer.server == "node-a" && answer.client == answer.local, "{answer:?}");
        let answer = ask(pod, Ask::new(protocol, there.frontend(family)))?;
        ensure!(answer.server == "node-b", "{answer:?}");
    }
    Ok(())
}

fn every_backend_gets_its_share(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&rig.pods());
    let rig = rig.start(&[&web])?;
    let everybody: BTreeSet<String> = rig.pods().iter().map(|pod| pod.name().to_owned()).collect();
    for (family, protocol) in matrix() {
        let found = different_servers(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)), 4)?;
        ensure!(found == everybody, "{family} {protocol}: only {found:?}");
    }
    Ok(())
}

fn ports_of_a_service_lead_to_their_own_targets(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let backend = rig.pod(0, 1)?;
    for protocol in Protocol::ALL {
        backend.peer().serve(protocol, &backend.addresses().both(), 9_090)?;
    }
    let web = Service::new("web", 10)?.port(80, TARGET).port(81, 9_090).pods(&[backend]);
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        for port in [80, 81] {
            let to = web.cluster().socket(family, port);
            let answer = ask(rig.pod(0, 0)?, Ask::new(protocol, to))?;
            ensure!(answer.peer == to, "{answer:?}");
        }
    }
    Ok(())
}

/// The only backend of the Service is the client itself: the packet is returned to its interface before the stack.
fn pod_reaches_itself(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let own = Service::new("own", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 0)?]);
    let rig = rig.start(&[&own])?;
    let (pod, node) = (rig.pod(0, 0)?, rig.node(0)?);
    for (family, protocol) in matrix() {
        for to in [own.frontend(family), node.addresses().socket(family, 30_080)] {
            let answer = ask(pod, Ask::new(protocol, to))?;
            ensure!(answer.server == pod.name() && answer.peer == to, "{answer:?}");
            ensure!(answer.client != answer.local, "a pod that sees itself as client: {answer:?}");
        }
    }
    Ok(())
}

fn large_questions_and_answers_arrive_whole(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let near = Service::new("near", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&near, &far])?;
    for service in [&near, &far] {
        for family in Family::ALL {
            let question = Ask::tcp(service.frontend(family)).sized(1_000_000, 1_000_000);
            drop(ask(rig.pod(0, 0)?, question.within(30_000))?);
        }
    }
    Ok(())
}

fn unconnected_socket_hears_from_the_frontend(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let one = Service::new("one", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let two = Service::new("two", 11)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let rig = rig.start(&[&one, &two])?;
    for family in Family::ALL {
        let socket = rig.pod(0, 0)?.peer().keep(Ask::udp(one.frontend(family)).unconnected())?;
        for service in [&one, &two, &one] {
            let question = Ask::udp(service.frontend(family)).unconnected();
            let answer = socket.ask_as(question)?;
            ensure!(answer.peer == question.to, "{answer:?}");
        }
    }
    Ok(())
}

fn connection_lives_on_between_questions(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&rig.pods());
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let kept = rig.pod(0, 0)?.peer().keep(Ask::new(protocol, web.frontend(family)))?;
        let first = kept.ask()?;
        for _ in 0..20 {
            let again = kept.ask()?;
            ensure!(again.server == first.server, "{family} {protocol}: {first:?}, {again:?}");
        }
    }
    Ok(())
}

fn plain_traffic_between_pods_is_left_alone(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&rig.pods());
    let rig = rig.start(&[&web])?;
    let members = rig.topology().members();
    for from in &members {
        for to in &members {
            for (family, protocol) in matrix() {
                let question = Ask::new(protocol, to.addresses().socket(family, TARGET));
                let answer = ask(from, question)?;
                ensure!(answer.server == to.name() && answer.client == answer.local, "{answer:?}");
            }
        }
    }
    Ok(())
}
