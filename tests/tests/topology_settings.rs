//! Every documented setting answers as the default does: one list of questions from every client to every kind of
//! frontend, the source address that the backend sees, and the permitted effects of changes on sockets that stay open.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::rig::{ask, matrix, unused_port};
use lb_tests::topology::{Family, Shape};
use lb_tests::traffic::Ask;

#[path = "topology_settings/changes.rs"]
mod changes;
#[path = "topology_settings/ports.rs"]
mod ports;
#[path = "topology_settings/protocols.rs"]
mod protocols;
#[path = "topology_settings/sources.rs"]
mod sources;
#[path = "topology_settings/world.rs"]
mod world;

use world::{NODE_PORTS, World};

/// The deadline for a change to reach sockets that stay open.
const SOON: Duration = Duration::from_secs(30);

in_both_shapes!(
    nothing_is_set,
    sockets_of_all_are_served,
    no_sockets_are_served,
    known_flows_bypass_the_stack,
    xdp_accelerates,
    masquerade_is_that_of_kube_proxy,
    pods_sockets_are_served_beside_the_masquerade_of_kube_proxy,
    packets_of_the_host_are_translated_beside_xdp,
    pings_are_refused_and_node_ports_are_on_loopback_without_xdp,
);

/// The control run, with default settings.
fn nothing_is_set(shape: Shape) -> Result<()> {
    holds(shape, "").map(drop)
}

fn sockets_of_all_are_served(shape: Shape) -> Result<()> {
    holds(shape, "socketLB: all").map(drop)
}

fn no_sockets_are_served(shape: Shape) -> Result<()> {
    holds(shape, "socketLB: 'off'").map(drop)
}

fn known_flows_bypass_the_stack(shape: Shape) -> Result<()> {
    holds(shape, "bypass: 'on'").map(drop)
}

fn xdp_accelerates(shape: Shape) -> Result<()> {
    xdp_has_served(&holds(shape, "acceleration: native")?)
}

fn masquerade_is_that_of_kube_proxy(shape: Shape) -> Result<()> {
    holds(shape, "masquerade: kube-proxy").map(drop)
}

fn pods_sockets_are_served_beside_the_masquerade_of_kube_proxy(shape: Shape) -> Result<()> {
    holds(shape, "socketLB: all\nmasquerade: kube-proxy").map(drop)
}

fn packets_of_the_host_are_translated_beside_xdp(shape: Shape) -> Result<()> {
    xdp_has_served(&holds(shape, "socketLB: 'off'\nacceleration: native")?)
}

fn pings_are_refused_and_node_ports_are_on_loopback_without_xdp(shape: Shape) -> Result<()> {
    let world = holds(shape, "echo: reject\nlocalhostNodePorts: true\nacceleration: 'off'")?;
    for (family, protocol) in matrix() {
        let loopback = if family == Family::V4 { "127.0.0.1" } else { "::1" };
        for (port, served) in NODE_PORTS.iter().zip(&world.served) {
            let question = Ask::new(protocol, SocketAddr::new(loopback.parse()?, *port));
            for question in [question, question.from_port(unused_port())] {
                let answer = ask(world.rig.node(1)?, question)?;
                let is_right = answer.server == served.backend && answer.peer == question.to;
                ensure!(is_right, "{question:?}: {answer:?}");
            }
        }
    }
    Ok(())
}

/// Runs all checks with one setting.
fn holds(shape: Shape, setting: &str) -> Result<World> {
    let mut world = World::start(shape, setting)?;
    sources::everybody_is_answered(&world)?;
    sources::forbidden_clients_are_refused_or_get_no_answer(&world)?;
    sources::hairpin_is_answered(&world)?;
    ports::flows_of_one_port_are_distinguished(&world)?;
    protocols::pings_are_answered(&world, !setting.contains("echo: reject"))?;
    protocols::associations_are_made(&world)?;
    changes::sockets_that_stay_see_changes(&mut world)?;
    Ok(world)
}

/// Checks that XDP has translated and redirected packets.
fn xdp_has_served(world: &World) -> Result<()> {
    for verdict in ["new_flow", "forward", "to_backend", "to_client"] {
        // The checks have taken the agent of node-a out of the rig; this one of node-b ran all the time.
        let agent = world.rig.agent(0)?;
        let count = agent.metric(&["lb_datapath_packets_total", "external_xdp", verdict])?;
        ensure!(count > 0.0, "no {verdict} at external_xdp");
    }
    Ok(())
}
