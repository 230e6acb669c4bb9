//! The traffic policies `Local`: clients that stay on their node, packets that are dropped, and clients that are served
//! anyway.

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, ask, different_servers, dropped, matrix, refused, servers};
use lb_tests::topology::Shape;
use lb_tests::traffic::Ask;

const NODE_PORT: u16 = 30_080;

in_both_shapes!(
    external_local_keeps_outside_clients_on_the_node,
    external_local_drops_outside_clients_without_a_local_endpoint,
    external_local_lets_pods_and_hosts_through,
    internal_local_keeps_pods_and_hosts_on_the_node,
    internal_local_drops_without_a_local_endpoint,
    local_policies_refuse_when_there_is_no_endpoint_anywhere,
    terminating_endpoint_serves_when_it_is_the_last,
);

fn web() -> Result<Service> {
    Ok(Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT))
}

fn external_local_keeps_outside_clients_on_the_node(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web()?.external_policy_local().pods(&rig.pods());
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        for (node, letter) in rig.topology().nodes().iter().zip(["pod-a", "pod-b"]) {
            let question = Ask::new(protocol, node.addresses().socket(family, NODE_PORT));
            // Often enough that a backend on the other node would have answered, if the policy allowed it.
            let found = servers(rig.client(), question, 80)?;
            ensure!(found.len() == 2, "{family} {protocol}: {found:?}");
            ensure!(found.iter().all(|name| name.starts_with(letter)), "{found:?}");
            let answer = ask(rig.client(), question)?;
            ensure!(answer.client == answer.local, "source was translated: {answer:?}");
        }
    }
    Ok(())
}

fn external_local_drops_outside_clients_without_a_local_endpoint(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web()?.external_policy_local().pods(&[rig.pod(1, 0)?]);
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let to = rig.node(0)?.addresses().socket(family, NODE_PORT);
        dropped(rig.client(), Ask::new(protocol, to))?;
    }
    Ok(())
}

/// Contract 3.2, step 4: local pods, and then the node itself, may use every endpoint.
fn external_local_lets_pods_and_hosts_through(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web()?.external_policy_local().pods(&[rig.pod(1, 0)?]);
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let to = Ask::new(protocol, rig.node(0)?.addresses().socket(family, NODE_PORT));
        ensure!(ask(rig.pod(0, 0)?, to)?.server == "pod-b1");
        ensure!(ask(rig.node(0)?, to)?.server == "pod-b1");
    }
    Ok(())
}

fn internal_local_keeps_pods_and_hosts_on_the_node(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web()?.internal_policy_local().pods(&rig.pods());
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        for from in [&**rig.pod(0, 0)?, rig.node(0)?.host()] {
            let found = servers(from, question, 30)?;
            ensure!(found.iter().all(|name| name.starts_with("pod-a")), "{found:?}");
        }
        // The internal policy does not apply to external destinations.
        let to = Ask::new(protocol, rig.node(0)?.addresses().socket(family, NODE_PORT));
        ensure!(different_servers(rig.client(), to, 4)?.len() == 4);
    }
    Ok(())
}

fn internal_local_drops_without_a_local_endpoint(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web()?.internal_policy_local().pods(&[rig.pod(1, 0)?]);
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        dropped(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?;
        ensure!(ask(rig.pod(1, 1)?, Ask::new(protocol, web.frontend(family)))?.server == "pod-b1");
    }
    Ok(())
}

fn local_policies_refuse_when_there_is_no_endpoint_anywhere(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web()?.internal_policy_local().external_policy_local();
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        refused(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?;
        let to = rig.node(0)?.addresses().socket(family, NODE_PORT);
        refused(rig.client(), Ask::new(protocol, to))?;
    }
    Ok(())
}

fn terminating_endpoint_serves_when_it_is_the_last(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let going = Endpoint::pod(rig.pod(1, 0)?).terminating(true);
    let gone = Endpoint::pod(rig.pod(0, 1)?).terminating(false);
    let web = web()?.endpoints([going, gone]);
    let rig = rig.start(&[&web])?;
    for (family, protocol) in matrix() {
        let found = servers(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)), 10)?;
        ensure!(found.iter().eq(["pod-b1"]), "{found:?}");
    }
    Ok(())
}
