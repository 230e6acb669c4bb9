//! Connections of pods that netfilter masquerades with random ports, as some CNI plugins have it, beside hundreds of
//! `NodePorts`: some get the number of a `NodePort`, and none is lost.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use lb_tests::campaign;
use lb_tests::manifest::Service;
use lb_tests::rig::{
    TARGET, answered_by, ask_masqueraded, masquerade, masquerade_no_more, matrix, until,
};
use lb_tests::traffic::Ask;

use super::Life;

/// Services without endpoints, with a near backend, and with a far one in turn.
const NAMES: [&str; 6] =
    ["life-many-1", "life-many-2", "life-many-3", "life-many-4", "life-many-5", "life-many-6"];
/// The number of `NodePorts` of each Service, which are for both transports.
const PORTS: u16 = 50;

/// Outside a campaign all masquerade ports are in the range of the `NodePorts`, so that every ninth is taken.
pub(crate) fn cost_no_connection(life: &Life<'_>) -> Result<()> {
    let (rig, control_plane) = (life.rig(), life.server.control_plane());
    let node = rig.node(0)?;
    let (ports, connections) =
        campaign::size(("30000-32767 random", 200), ("1024-65535 random", 6_000));
    publish(life)?;
    masquerade(node, node.pod_ranges(), rig.client(), ports)?;
    let proxy = life.world.agent().map_or("with kube-proxy", |_| "with the agent");
    ask_masqueraded(rig, connections, proxy)?;
    masquerade_no_more(node)?;
    control_plane.kubectl(&[&["delete", "service"][..], &NAMES].concat()).map(drop)
}

/// Publishes the Services, and waits until the last of their `NodePorts` is served.
fn publish(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    let far = rig.pod(1, 1)?;
    let backends = [vec![], vec![rig.pod(0, 1)?], vec![far]];
    let mut objects = Vec::new();
    for ((name, index), backends) in NAMES.into_iter().zip(222..).zip(backends.iter().cycle()) {
        let service = Service::new(name, index)?;
        // In place of 0 the API server assigns a number that no health check has, the same for both transports.
        let service = (1..=PORTS).fold(service, |it, port| it.port(port, TARGET).node_port(0));
        objects.extend(service.pods(backends).objects());
    }
    life.server.publish(&objects)?;
    let numbers = node_ports(life)?;
    let all: BTreeSet<&u16> = numbers.iter().collect();
    ensure!(all.len() == NAMES.len() * usize::from(PORTS), "{} NodePorts: {all:?}", all.len());
    let last = *numbers.last().context("a NodePort")?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, rig.node(0)?.addresses().socket(family, last));
        until(rig.client(), question, answered_by(far.name()))?;
    }
    Ok(())
}

/// The assigned `NodePorts`, in the order of the Services and their ports.
fn node_ports(life: &Life<'_>) -> Result<Vec<u16>> {
    let numbers = "--output=jsonpath={.items[*].spec.ports[*].nodePort}";
    let get = [&["get", "service", numbers][..], &NAMES].concat();
    let said = life.server.control_plane().kubectl(&get)?;
    said.split_whitespace().map(|number| Ok(number.parse()?)).collect()
}
