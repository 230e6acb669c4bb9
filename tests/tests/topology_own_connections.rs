//! Connections that a node opens, or masquerades for its pods, from ports that are also `NodePorts`: the answers arrive
//! at a frontend and are not taken for questions to its Service.

use anyhow::{Context as _, Result, ensure};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{self, Rig, TARGET, answered_outside, ask, matrix, until};
use lb_tests::topology::{Builder, Family, Member, Shape, Topology};
use lb_tests::traffic::{Answer, Ask, Failure, Protocol};
use serde_json::json;

#[path = "topology_own_connections/beside_questions.rs"]
mod beside_questions;
#[path = "topology_own_connections/frontends.rs"]
mod frontends;
#[path = "topology_own_connections/later.rs"]
mod later;

use frontends::xdp_has_served;

in_both_shapes!(
    node_talks_to_a_server_outside_from_node_ports,
    masqueraded_pods_talk_to_a_server_outside_from_node_ports,
    random_masquerade_loses_no_connection_beside_hundreds_of_node_ports,
    masqueraded_pod_reaches_a_backend_from_the_port_of_a_flow_to_it,
);

/// `NodePorts` of Services with a local, a remote, and no backend.
const TAKEN: [u16; 3] = [30_080, 30_081, 30_082];
/// The port of a VIP that is an address of the node.
const EXTERNAL: u16 = 25_070;
/// The `NodePort` of a Service whose backend is the host of node-b.
const HOST: u16 = 30_085;

fn rig(shape: Shape) -> Result<Rig> {
    rig_of(Topology::builder(shape), "off")
}

fn rig_of(builder: Builder, acceleration: &str) -> Result<Rig> {
    let mut rig = Rig::build(builder)?;
    let [near, far, none] = TAKEN;
    let service = |name, index, number| -> Result<Service> {
        Ok(Service::new(name, index)?.port(80, TARGET).node_port(number))
    };
    let near = service("near", 10, near)?.pods(&[rig.pod(0, 0)?]);
    let far = service("far", 11, far)?.pods(&[rig.pod(1, 0)?]);
    let none = service("none", 12, none)?;
    let own = rig.node(0)?.addresses().both();
    let external = Service::new("external", 14)?.port(EXTERNAL, TARGET).load_balancer(&own, &[]);
    let external = external.pods(&[rig.pod(0, 0)?]);
    [near, far, none, external].iter().try_for_each(|service| rig.manifests().apply(service))?;
    let config = rig.configuration(&format!("acceleration: '{acceleration}'"))?;
    rig.start_agents(&[&config])?;
    Ok(rig)
}

/// An external client still reaches the Service whose port is also used by a connection of the node.
fn is_served(
    rig: &Rig,
    family: Family,
    protocol: Protocol,
    port: u16,
    server: &Member,
) -> Result<()> {
    let node = rig.node(0)?.addresses().socket(family, port);
    let answer = ask(rig.client(), Ask::new(protocol, node))?;
    ensure!(answer.server == server.name(), "{answer:?}");
    Ok(())
}

fn node_talks_to_a_server_outside_from_node_ports(shape: Shape) -> Result<()> {
    node_talks_from_node_ports(&rig(shape)?)
}

/// XDP is the first hook that the answers pass.
#[test]
fn node_talks_to_a_server_outside_from_node_ports_that_xdp_serves() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).without_checksum_offload().polling();
    let rig = rig_of(builder, "native")?;
    node_talks_from_node_ports(&rig)?;
    xdp_has_served(&rig)
}

fn node_talks_from_node_ports(rig: &Rig) -> Result<()> {
    for (family, protocol) in matrix() {
        let [near, far, none] = TAKEN;
        for port in [near, far, none, EXTERNAL] {
            drop(answered_outside(rig, rig.node(0)?, family, protocol, Some(port))?);
        }
        is_served(rig, family, protocol, near, rig.pod(0, 0)?)?;
        is_served(rig, family, protocol, far, rig.pod(1, 0)?)?;
        is_served(rig, family, protocol, EXTERNAL, rig.pod(0, 0)?)?;
    }
    Ok(())
}

/// Masquerades the connections of node-a's pods to a machine with the node's address and these ports.
fn masquerade(rig: &Rig, to: &Member, ports: &str) -> Result<()> {
    let node = rig.node(0)?;
    rig::masquerade(node, node.pod_ranges(), to, ports)
}

/// The `NodePort`s of [`many`].
const MANY: u16 = 300;

/// Gives node-a hundreds of `NodePort`s, for both protocols and families: without endpoints, with a near one, and with a
/// far one in turn.
fn many(rig: &Rig) -> Result<()> {
    let number = |index: u16| 30_100 + 8 * index;
    let mut all = Vec::new();
    for index in 0..MANY {
        let name = format!("many-{index}");
        let port = |name, protocol| json!({"name": name, "protocol": protocol, "port": 80, "nodePort": number(index)});
        let ips = [
            format!("10.96.{}.{}", 20 + index / 200, 1 + index % 200),
            format!("fd00:10:96::{:x}", 4_096 + index),
        ];
        all.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {
                "type": "NodePort", "clusterIP": ips[0], "clusterIPs": ips, "ipFamilies": ["IPv4", "IPv6"],
                "ipFamilyPolicy": "RequireDualStack", "ports": [port("tcp", "TCP"), port("udp", "UDP")],
            },
        }));
        let Some(node) = (index % 3).checked_sub(1) else { continue };
        let (pod, node) = (rig.pod(node.into(), 0)?, rig.node(node.into())?.name());
        for (family, kind) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
            let port = |name, protocol| json!({"name": name, "protocol": protocol, "port": TARGET});
            all.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
                "metadata": {"name": format!("{name}-{kind}").to_lowercase(), "labels": {"kubernetes.io/service-name": name}},
                "ports": [port("tcp", "TCP"), port("udp", "UDP")],
                "endpoints": [{"addresses": [pod.ip(family)], "nodeName": node, "conditions": {"ready": true}}],
            }));
        }
    }
    rig.manifests().write("many", &all)?;
    let refuses =
        |it: &Result<Answer, Failure>| it.as_ref().is_err_and(|it| *it == Failure::Refused);
    let node = rig.node(0)?.addresses();
    let last = node.socket(Family::V6, number(MANY - 3));
    until(rig.client(), Ask::tcp(last), refuses)?;
    let last = node.socket(Family::V6, number(MANY - 1));
    until(rig.client(), Ask::udp(last), Result::is_ok).map(drop)
}

fn random_masquerade_loses_no_connection_beside_hundreds_of_node_ports(shape: Shape) -> Result<()> {
    masquerade_by_random_ports(&rig(shape)?, &format!("{shape:?}"))
}

/// XDP is the first hook that the answers pass, before netfilter translates them for their pods.
#[test]
fn random_masquerade_loses_no_connection_beside_node_ports_that_xdp_serves() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).without_checksum_offload().polling();
    let rig = rig_of(builder, "native")?;
    masquerade_by_random_ports(&rig, "native")?;
    xdp_has_served(&rig)
}

/// Outside a campaign all masquerade ports are in the range of the `NodePorts`, so that every tenth is taken.
fn masquerade_by_random_ports(rig: &Rig, what: &str) -> Result<()> {
    let (ports, connections) =
        campaign::size(("30000-32767 random", 200), ("1024-65535 random", 6_000));
    many(rig)?;
    masquerade(rig, rig.client(), ports)?;
    rig::ask_masqueraded(rig, connections, what)
}

fn masqueraded_pods_talk_to_a_server_outside_from_node_ports(shape: Shape) -> Result<()> {
    masqueraded_pods_talk_from_node_ports(&rig(shape)?)
}

/// XDP is the first hook that the answers pass, before netfilter translates them for their pods.
#[test]
fn masqueraded_pods_talk_to_a_server_outside_from_node_ports_that_xdp_serves() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).without_checksum_offload().polling();
    let rig = rig_of(builder, "native")?;
    masqueraded_pods_talk_from_node_ports(&rig)?;
    for (family, protocol) in matrix() {
        is_served(&rig, family, protocol, TAKEN[1], rig.pod(1, 0)?)?;
    }
    xdp_has_served(&rig)
}

fn masqueraded_pods_talk_from_node_ports(rig: &Rig) -> Result<()> {
    let node = rig.node(0)?;
    for port in TAKEN.into_iter().chain([EXTERNAL]) {
        // A CNI plugin with random ports chooses such a port from time to time.
        masquerade(rig, rig.client(), &port.to_string())?;
        for (family, protocol) in matrix() {
            let flow = answered_outside(rig, rig.pod(0, 1)?, family, protocol, None)?;
            let client = flow.ask()?.client;
            ensure!(client == node.addresses().socket(family, port), "seen as {client}");
        }
    }
    Ok(())
}

/// A CNI plugin with random ports chooses the port of a flow that the agent masquerades to the same backend.
fn masqueraded_pod_reaches_a_backend_from_the_port_of_a_flow_to_it(shape: Shape) -> Result<()> {
    let rig = rig(shape)?;
    let (node, server) = (rig.node(0)?, rig.node(1)?);
    let service = Service::new("host", 13)?.port(80, TARGET).node_port(HOST);
    rig.manifests().apply(&service.endpoints([Endpoint::host(server)]))?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, node.addresses().socket(family, HOST));
        until(rig.client(), question, |it| it.as_ref().is_ok_and(|it| it.server == server.name()))?;
        let flow = rig.client().peer().keep(question)?;
        let ours = flow.ask()?.client;
        ensure!(ours.ip() == node.addresses().of(family), "seen as {ours}");
        masquerade(&rig, server, &ours.port().to_string())?;
        let direct = Ask::new(protocol, server.addresses().socket(family, TARGET));
        let pod = rig.pod(0, 1)?.peer().keep(direct)?;
        for _ in 0..3 {
            let answer = pod.ask().with_context(|| format!("{direct:?} from {ours}"))?;
            ensure!(answer.server == server.name(), "{answer:?}");
            ensure!(answer.client.ip() == ours.ip() && answer.client != ours, "{answer:?}");
            let answer = flow.ask().with_context(|| format!("{question:?} from {ours}"))?;
            ensure!(answer.server == server.name() && answer.client == ours, "{answer:?}");
        }
    }
    Ok(())
}
