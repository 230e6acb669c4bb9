//! Changes of the node while the agent runs: addresses come and go, and the Node object changes and is deleted.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Service, node_object};
use lb_tests::rig::{Rig, TARGET, ask, matrix, refused, until, until_within};
use lb_tests::topology::{Addresses, Family, Shape, Topology};
use lb_tests::traffic::{Answer, Ask};
use lb_tests::wait::wait_until_ok;
use serde_json::json;

const NODE_PORT: u16 = 30_080;
const NODE_PORTS: &str = "--nodeport-addresses=192.168.50.0/24,fd00:50::/64";
const SOON: Duration = Duration::from_secs(30);
/// The deadline for flows to be updated: the sweep runs every five seconds.
const RENEWED: Duration = Duration::from_mins(1);

in_both_shapes!(
    node_port_follows_addresses_that_come_and_go,
    address_whose_prefix_changes_is_served_throughout,
    node_port_follows_the_addresses_of_the_node_object,
    addresses_that_the_map_refuses_are_a_problem_until_it_has_room,
    node_ports_have_room_before_other_addresses,
    interface_whose_alias_is_no_utf8_is_served,
    services_are_served_without_a_node_object,
    node_ports_wait_for_the_primary_address_of_the_node_object,
    flows_keep_their_ports_when_the_range_for_sources_changes,
    flows_to_the_other_node_outlive_the_address_that_stood_for_their_client,
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
    let (rig, _) = start(shape, &[NODE_PORTS])?;
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

/// The kernel keeps an IPv4 address once for each network, and one of them goes.
fn address_whose_prefix_changes_is_served_throughout(shape: Shape) -> Result<()> {
    let (rig, _) = start(shape, &[NODE_PORTS])?;
    let (node, Addresses { v4, .. }) = (rig.node(0)?.netns(), other()?);
    for (number, lines) in [
        format!("address add {v4}/24 dev eth0"),
        format!("address add {v4}/25 dev eth0\naddress delete {v4}/24 dev eth0"),
    ]
    .into_iter()
    .enumerate()
    {
        // Once a later address is served, the agent has seen all changes.
        let later = SocketAddr::new(format!("192.168.50.{}", 90 + number).parse()?, NODE_PORT);
        node.ip(&format!("{lines}\naddress add {}/24 dev eth0", later.ip()))?;
        until(rig.client(), Ask::tcp(later), Result::is_ok)?;
        drop(ask(rig.client(), Ask::tcp(SocketAddr::from((v4, NODE_PORT))).within(2_000))?);
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

/// The map has room for fewer addresses than the node has after a while.
fn addresses_that_the_map_refuses_are_a_problem_until_it_has_room(shape: Shape) -> Result<()> {
    const ROOM: usize = 16;
    let (rig, _) = start(shape, &[NODE_PORTS, &format!("--map-size=ADDRESSES={ROOM}")])?;
    let (node, agent) = (rig.node(0)?.netns(), rig.agent(0)?);
    let spare = |verb: &str| -> String {
        let lines = (1..=ROOM).map(|last| format!("address {verb} 10.77.0.{last}/32 dev lo"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let problem = "addresses of this node could not be written";
    agent.has_problems(0)?;
    node.ip(&spare("add"))?;
    wait_until_ok(SOON, "status names the addresses", || {
        let status = agent.exit_said(&["status"])?;
        let mut problems = status.lines().filter(|line| line.starts_with("Problem"));
        ensure!(problems.any(|line| line.contains(problem)), "{status}");
        agent.has_problems(1)
    })?;
    // The addresses that were there before are still served; a new one finds room when the others go.
    drop(ask(rig.client(), Ask::tcp(rig.node(0)?.addresses().socket(Family::V4, NODE_PORT)))?);
    let late = SocketAddr::new(other()?.v4.into(), NODE_PORT);
    node.ip(&format!("address add {}/24 dev eth0", late.ip()))?;
    node.ip(&spare("delete"))?;
    until(rig.client(), Ask::tcp(late), Result::is_ok)?;
    wait_until_ok(SOON, "status no longer names addresses", || agent.has_problems(0))
}

/// As beside `kube-ipvs0`, which has the address of every Service: more than the map has room for, and before those of
/// the node in its order.
fn node_ports_have_room_before_other_addresses(shape: Shape) -> Result<()> {
    const ROOM: usize = 16;
    let mut rig = Rig::build(Topology::builder(shape))?;
    let lines = (1..=ROOM).map(|last| format!("address add 10.77.0.{last}/32 dev lo"));
    rig.node(0)?.netns().ip(&lines.collect::<Vec<_>>().join("\n"))?;
    serve_node_port(&mut rig, &[NODE_PORTS, &format!("--map-size=ADDRESSES={ROOM}")])
}

/// The kernel takes any bytes, and the netlink library no message with such an alias.
fn interface_whose_alias_is_no_utf8_is_served(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let name = "ip link set dev eth0 alias \"$(printf 'B\\374ro')\"";
    drop(rig.node(0)?.netns().tool("sh", &["-c", name])?);
    serve_node_port(&mut rig, &[])
}

/// Starts the agents, and asks a `NodePort` from outside.
fn serve_node_port(rig: &mut Rig, flags: &[&str]) -> Result<()> {
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    rig.manifests().apply(&web)?;
    rig.start_agents(flags)?;
    for (family, protocol) in matrix() {
        let to = rig.node(0)?.addresses().socket(family, NODE_PORT);
        drop(ask(rig.client(), Ask::new(protocol, to))?);
    }
    Ok(())
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
    served()?;
    agent.ensure_running()
}

/// At a first start: without a primary address, `NodePorts` would be served at every address of the node.
fn node_ports_wait_for_the_primary_address_of_the_node_object(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    rig.manifests().apply(&web)?;
    rig.manifests().delete_node(rig.node(0)?)?;
    rig.start_agents(&[])?;
    let has_problem = |text: &str| {
        let status = rig.agent(0)?.exit_said(&["status"])?;
        let mut problems = status.lines().filter(|line| line.starts_with("Problem"));
        ensure!(problems.any(|line| line.contains(text)), "{status}");
        Ok(())
    };
    let node_port =
        |family| -> Result<SocketAddr> { Ok(rig.node(0)?.addresses().socket(family, NODE_PORT)) };
    let unserved = || -> Result<()> {
        for family in Family::ALL {
            refused(rig.client(), Ask::tcp(node_port(family)?))?;
        }
        for (family, protocol) in matrix() {
            drop(ask(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?);
        }
        Ok(())
    };
    wait_until_ok(SOON, "status misses the Node", || has_problem("does not exist"))?;
    unserved()?;
    let mut object = node_object(rig.node(0)?);
    drop(object["status"]["addresses"].take());
    rig.manifests().write(rig.node(0)?.name(), &[object])?;
    wait_until_ok(SOON, "status misses the address", || has_problem("names no address"))?;
    unserved()?;
    rig.manifests().node(rig.node(0)?)?;
    for (family, protocol) in matrix() {
        until(rig.client(), Ask::new(protocol, node_port(family)?), Result::is_ok)?;
    }
    wait_until_ok(SOON, "status names no problem", || rig.agent(0)?.has_problems(0))
}

/// The ports of masqueraded flows are outside of the range that new flows get.
fn flows_keep_their_ports_when_the_range_for_sources_changes(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    rig.manifests().apply(&web.pods(&[rig.pod(1, 1)?]))?;
    rig.start_agents(&[])?;
    let mut agent = rig.take_agent(0)?;
    let node = rig.node(0)?;
    let mut kept = Vec::new();
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, node.addresses().socket(family, NODE_PORT));
        for _ in 0..4 {
            kept.push(rig.client().peer().keep(question)?);
        }
    }
    let all_answer = |when: &str| -> Result<()> {
        for (number, flow) in kept.iter().enumerate() {
            drop(flow.ask().with_context(|| format!("flow {number} {when}"))?);
        }
        Ok(())
    };
    all_answer("at first")?;
    node.netns().sysctl("net.ipv4.ip_local_port_range", "10000 65535")?;
    wait_until_ok(SOON, "new flows get ports below 10000", || {
        let status = agent.command(&["status"])?;
        ensure!(status.contains("1024-9999"), "{status}");
        Ok(())
    })?;
    all_answer("with another range")?;
    agent.stop()?;
    agent.start_again()?;
    all_answer("after a restart")
}

/// Contract 3.11: a client asks continuously from one port, through an address of the node that stays.
fn flows_to_the_other_node_outlive_the_address_that_stood_for_their_client(
    shape: Shape,
) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let remote = [rig.pod(1, 0)?];
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&remote);
    rig.manifests().apply(&web)?;
    let (node, stays) = (rig.node(0)?, other()?);
    // Otherwise the second address of a network would be removed together with the first.
    node.netns()
        .run_in(|| fs::write("/proc/sys/net/ipv4/conf/eth0/promote_secondaries", "1"))??;
    node.netns().ip(&format!(
        "address add {}/24 dev eth0
         address add {}/64 dev eth0 nodad preferred_lft 0",
        stays.v4, stays.v6
    ))?;
    rig.start_agents(&[NODE_PORTS])?;
    let node = rig.node(0)?;
    let goes = node.addresses();
    let question =
        |family| Ask::udp(stays.socket(family, NODE_PORT)).from_port(40_123).unconnected();
    for family in [Family::V4, Family::V6] {
        until(rig.client(), question(family), Result::is_ok)?;
        let seen = ask(rig.client(), question(family))?.client.ip();
        ensure!(seen == goes.of(family), "the backend saw {seen}, not the first of {goes:?}");
    }
    node.netns().ip(&format!(
        "address change {}/64 dev eth0 nodad preferred_lft forever
         address delete {}/24 dev eth0
         address delete {}/64 dev eth0",
        stays.v6, goes.v4, goes.v6
    ))?;
    for family in [Family::V4, Family::V6] {
        let is_shown = |ip| {
            move |answer: &Result<Answer, _>| {
                answer.as_ref().is_ok_and(|answer| answer.client.ip() == ip)
            }
        };
        let ip = stays.of(family);
        until_within(RENEWED, rig.client(), question(family), is_shown(ip))?;
    }
    Ok(())
}
