//! The node changes while the agent runs: addresses come and go, its object changes and vanishes.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Service, node_object};
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Addresses, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;
use serde_json::json;

const NODE_PORT: u16 = 30_080;
const SOON: Duration = Duration::from_secs(5);

in_both_shapes!(
    node_port_follows_addresses_that_come_and_go,
    node_port_follows_the_addresses_of_the_node_object,
    services_are_served_without_a_node_object,
);

fn start(shape: Shape, flags: &[&str]) -> Result<(Rig, Service)> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    rig.manifests().apply(&web)?;
    rig.start_agents(flags)?;
    Ok((rig, web))
}

fn other() -> Result<Addresses> {
    Addresses::parse("192.168.50.77", "fd00:50::77")
}

fn node_port_follows_addresses_that_come_and_go(shape: Shape) -> Result<()> {
    let (rig, _) = start(shape, &["--nodeport-addresses=192.168.50.0/24,fd00:50::/64"])?;
    let Addresses { v4, v6 } = other()?;
    for _ in 0..2 {
        rig.node(0)?.netns().ip(&format!(
            "address add {v4}/24 dev eth0
             address add {v6}/64 dev eth0 nodad"
        ))?;
        for (family, protocol) in matrix() {
            let question = Ask::new(protocol, other()?.socket(family, NODE_PORT));
            until(rig.client(), question, Result::is_ok)?;
        }
        rig.node(0)?.netns().ip(&format!(
            "address delete {v4}/24 dev eth0
             address delete {v6}/64 dev eth0"
        ))?;
        for (family, protocol) in matrix() {
            let question = Ask::new(protocol, other()?.socket(family, NODE_PORT));
            until(rig.client(), question.within(300), Result::is_err)?;
        }
    }
    Ok(())
}

fn node_port_follows_the_addresses_of_the_node_object(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape, &["--nodeport-addresses=primary"])?;
    let (node, Addresses { v4, v6 }) = (rig.node(0)?, other()?);
    node.netns().ip(&format!(
        "address add {v4}/24 dev eth0
         address add {v6}/64 dev eth0 nodad"
    ))?;
    let mut object = node_object(node);
    let own = [v4.to_string(), v6.to_string()];
    object["status"]["addresses"] =
        own.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
    rig.manifests().write(node.name(), &[object])?;
    for (family, protocol) in matrix() {
        let question =
            |addresses: Addresses| Ask::new(protocol, addresses.socket(family, NODE_PORT));
        until(rig.client(), question(other()?), Result::is_ok)?;
        until(rig.client(), question(node.addresses()).within(300), Result::is_err)?;
        drop(ask(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?);
    }
    rig.take_agent(0)?.ensure_running()
}

fn services_are_served_without_a_node_object(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape, &[])?;
    let mut agent = rig.take_agent(0)?;
    rig.manifests().delete_node(rig.node(0)?)?;
    let is = |expected: u16| {
        let (code, text) = agent.health("/healthz")?;
        ensure!(code == expected, "/healthz answers with {code}: {text}");
        ensure!(agent.health("/livez")?.0 == 200, "not alive");
        Ok(())
    };
    wait_until_ok(SOON, "the health server says that the node is not known", || is(503))?;
    let served = || -> Result<()> {
        for (family, protocol) in matrix() {
            let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
            drop(ask(rig.client(), Ask::new(protocol, node_port))?);
            drop(ask(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?);
        }
        Ok(())
    };
    served()?;
    rig.manifests().node(rig.node(0)?)?;
    wait_until_ok(SOON, "the health server says that the node is back", || is(200))?;
    // It is about to be removed: load balancers shall leave it, and the agent is fine (contract 6.2).
    let mut leaving = node_object(rig.node(0)?);
    leaving["spec"]["taints"] =
        json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    rig.manifests().write(rig.node(0)?.name(), &[leaving])?;
    wait_until_ok(SOON, "the health server says that the node leaves", || is(503))?;
    served()?;
    rig.manifests().node(rig.node(0)?)?;
    wait_until_ok(SOON, "the health server says that the node stays", || is(200))?;
    served()?;
    agent.ensure_running()
}
