//! Flows that differ before translation also differ after it, whichever ports their clients chose.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_agent::node::settings::ports_of_translated_sources;
use lb_common::addr::Protocol as transport;
use lb_common::fake::{at, source_port};
use lb_common::flow::Tuple;
use lb_tests::agent::{Agent, Source};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{self, Rig, Shared, TARGET, ask, matrix, unused_port};
use lb_tests::topology::{Family, Member, Node, Shape, Topology};
use lb_tests::traffic::{Ask, Protocol, Tally};
use lb_tests::wait::wait_until_ok;

in_both_shapes!(
    pod_asks_two_services_of_one_backend_from_one_port,
    pod_asks_a_service_and_its_backend_from_one_port,
    client_asks_two_node_ports_of_one_backend_from_one_port,
    client_asks_both_nodes_from_one_port,
    pod_asks_a_node_and_a_backend_behind_it_from_one_port,
    two_pods_ask_through_one_node_from_one_port,
    host_asks_a_backend_from_the_port_of_a_closed_flow,
    host_asks_a_backend_from_the_source_of_a_masqueraded_flow,
    masqueraded_flow_avoids_the_port_of_a_silent_connection_of_the_host,
);

/// The number of questions of each of two concurrent clients.
const ASKED: u32 = 200;

/// Two Services, each with a `NodePort`, whose only backend is pod 0 of node `node`.
fn two_services(shape: Shape, node: usize) -> Result<(Shared, [Service; 2])> {
    let rig = Rig::shared(shape)?;
    let backend = rig.pod(node, 1)?;
    let one = Service::new("one", 10)?.port(80, TARGET).node_port(30_080).pods(&[backend]);
    let two = Service::new("two", 11)?.port(80, TARGET).node_port(30_081).pods(&[backend]);
    let rig = rig.start(&[&one, &two])?;
    Ok((rig, [one, two]))
}

/// As `rig::from_one_port`, with one client.
fn from_one_port(from: &Member, protocol: Protocol, frontends: &[SocketAddr]) -> Result<()> {
    let flows: Vec<_> = frontends.iter().map(|frontend| (from, *frontend)).collect();
    rig::from_one_port(protocol, &flows).map(drop)
}

fn pod_asks_two_services_of_one_backend_from_one_port(shape: Shape) -> Result<()> {
    for node in [0, 1] {
        let (rig, services) = two_services(shape, node)?;
        for (family, protocol) in matrix() {
            let frontends = services.each_ref().map(|service| service.frontend(family));
            from_one_port(rig.pod(0, 0)?, protocol, &frontends)?;
        }
    }
    Ok(())
}

/// In either order, and whether or not the client used that backend before.
fn pod_asks_a_service_and_its_backend_from_one_port(shape: Shape) -> Result<()> {
    for node in [0, 1] {
        let (rig, [service, other]) = two_services(shape, node)?;
        let backend = rig.pod(node, 1)?.addresses();
        for (family, protocol) in matrix() {
            let [direct, first, second] =
                [backend.socket(family, TARGET), service.frontend(family), other.frontend(family)];
            for frontends in [&[direct, first][..], &[first, direct], &[first, direct, second]] {
                from_one_port(rig.pod(0, 0)?, protocol, frontends)?;
            }
        }
    }
    Ok(())
}

fn client_asks_two_node_ports_of_one_backend_from_one_port(shape: Shape) -> Result<()> {
    for node in [0, 1] {
        let (rig, _) = two_services(shape, node)?;
        for (family, protocol) in matrix() {
            let asked = rig.node(0)?.addresses();
            let frontends = [30_080, 30_081].map(|port| asked.socket(family, port));
            from_one_port(rig.client(), protocol, &frontends)?;
        }
    }
    Ok(())
}

fn client_asks_both_nodes_from_one_port(shape: Shape) -> Result<()> {
    let (rig, _) = two_services(shape, 0)?;
    let nodes = [rig.node(0)?.addresses(), rig.node(1)?.addresses()];
    for (family, protocol) in matrix() {
        let frontends = nodes.map(|node| node.socket(family, 30_080));
        from_one_port(rig.client(), protocol, &frontends)?;
    }
    Ok(())
}

/// The other node translates the question to its `NodePort`, and this node translates the question to the Service.
/// Towards a backend on the other node both must differ, in either order, and after a connection that has ended.
fn pod_asks_a_node_and_a_backend_behind_it_from_one_port(shape: Shape) -> Result<()> {
    let (rig, [service, _]) = two_services(shape, 1)?;
    let [node, own, backend] =
        [rig.node(1)?.addresses(), rig.node(0)?.addresses(), rig.pod(1, 1)?.addresses()];
    for (family, protocol) in matrix() {
        let far = node.socket(family, 30_080);
        let near =
            [service.frontend(family), own.socket(family, 30_081), backend.socket(family, TARGET)];
        for other in near {
            for frontends in [[far, other], [other, far]] {
                from_one_port(rig.pod(0, 0)?, protocol, &frontends)?;
            }
            let port = unused_port();
            for asked in [far, other] {
                let answer = ask(rig.pod(0, 0)?, Ask::new(protocol, asked).from_port(port))?;
                ensure!(answer.peer == asked, "{answer:?}");
            }
        }
    }
    Ok(())
}

/// Both flows get the node's address as source towards the backend on the other node.
fn two_pods_ask_through_one_node_from_one_port(shape: Shape) -> Result<()> {
    let (rig, _) = two_services(shape, 1)?;
    let frontend = |family: Family| rig.node(1).map(|n| n.addresses().socket(family, 30_080));
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, frontend(family)?).from_port(unused_port());
        let first = rig.pod(0, 0)?.peer().keep(question)?;
        let second = rig.pod(0, 1)?.peer().keep(question)?;
        for flow in [&first, &second, &first, &second] {
            let answer = flow.ask().with_context(|| format!("{question:?}"))?;
            ensure!(answer.peer == question.to, "{answer:?}");
        }
    }
    Ok(())
}

/// The backend's kernel accepts the second connection as a new one; its answers must not belong to the first flow.
fn host_asks_a_backend_from_the_port_of_a_closed_flow(shape: Shape) -> Result<()> {
    let (rig, _) = two_services(shape, 0)?;
    let [node, backend] = [rig.node(0)?.addresses(), rig.pod(0, 1)?.addresses()];
    for family in Family::ALL {
        let port = unused_port();
        for asked in [node.socket(family, 30_080), backend.socket(family, TARGET)] {
            let question = Ask::tcp(asked).from_port(port);
            let answer = rig.node(1)?.peer().ask(question);
            let answer = answer.with_context(|| format!("{question:?}"))?;
            ensure!(answer.peer == asked, "{answer:?}");
        }
    }
    Ok(())
}

/// Netfilter may choose that port while the data path drains, and so may a process if `ip_local_port_range` leaves no
/// ports for masquerading.
fn host_asks_a_backend_from_the_source_of_a_masqueraded_flow(shape: Shape) -> Result<()> {
    let (rig, _) = two_services(shape, 1)?;
    let [node, backend] = [rig.node(0)?.addresses(), rig.pod(1, 1)?.addresses()];
    for (family, protocol) in matrix() {
        let outside = rig.client().peer().keep(Ask::new(protocol, node.socket(family, 30_080)))?;
        let source = outside.ask()?.client;
        ensure!(source.ip() == node.socket(family, 0).ip(), "not masqueraded: {source}");
        let direct = Ask::new(protocol, backend.socket(family, TARGET)).from_port(source.port());
        let direct = rig.node(0)?.peer().keep(direct).with_context(|| format!("from {source}"))?;
        for flow in [&direct, &outside, &direct, &outside] {
            drop(flow.ask().with_context(|| format!("{protocol} beside {source}"))?);
        }
        let seen = [direct.ask()?.client, outside.ask()?.client];
        ensure!(seen[0] != seen[1], "the backend saw one client: {seen:?}");
    }
    Ok(())
}

/// The connection was open before the programs were attached, and sends nothing afterwards: only the kernel's table of
/// sockets shows it. Its port is the first that the flow would get.
fn masqueraded_flow_avoids_the_port_of_a_silent_connection_of_the_host(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080);
    rig.manifests().apply(&web.pods(&[rig.pod(1, 1)?]))?;
    let mut silent = Vec::new();
    for (family, protocol) in matrix() {
        let [node, client] = [rig.node(0)?.addresses(), rig.client().addresses()];
        let from = client.socket(family, unused_port());
        let question = Ask::new(protocol, node.socket(family, 30_080)).from_port(from.port());
        let backend = rig.pod(1, 1)?.addresses().socket(family, TARGET);
        let port = first_source(rig.node(0)?, from, backend, protocol)?;
        let direct = Ask::new(protocol, backend).from_port(port);
        let direct = rig.node(0)?.peer().keep(direct).with_context(|| format!("from {port}"))?;
        drop(direct.ask()?);
        silent.push((question, port, direct));
    }
    let source = Source::Manifests(rig.manifests().directory());
    let _agents = Agent::start_all(rig.topology().nodes().iter().map(|it| (it, source)), &[])?;
    for (question, port, direct) in silent {
        let outside = rig.client().peer().keep(question)?;
        let source = outside.ask().with_context(|| format!("{question:?} beside {port}"))?.client;
        ensure!(source.port() != port, "the backend saw two connections from {source}");
        for flow in [&direct, &outside] {
            drop(flow.ask().with_context(|| format!("{question:?} beside {port}"))?);
        }
    }
    Ok(())
}

/// The port that the data path of a node tries first for a masqueraded flow.
fn first_source(
    node: &Node,
    client: SocketAddr,
    backend: SocketAddr,
    protocol: Protocol,
) -> Result<u16> {
    let range = node.home().run_in(ports_of_translated_sources)?;
    let tuple = Tuple::new(at(&client.to_string()), at(&backend.to_string()));
    let number = if protocol == Protocol::Tcp { transport::TCP } else { transport::UDP };
    Ok(source_port(&range, &tuple, number, 0).get())
}

/// The kernel may assign any port to the node's own connections. `status` reports this as a problem, and neither side
/// loses a connection.
#[test]
fn node_without_ports_for_sources_reports_it_and_serves() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed))?;
    let backend = rig.pod(1, 1)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&[backend]);
    rig.manifests().apply(&web)?;
    rig.node(0)?.netns().sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
    rig.start_agents(&[])?;
    let problem = "net.ipv4.ip_local_port_range is 1024 to 65535 and leaves no ports";
    wait_until_ok(Duration::from_mins(1), "status reports the missing ports", || {
        let status = rig.agent(0)?.exit_said(&["status"])?;
        let is_reported = |it: &str| it.starts_with("Problem") && it.contains(problem);
        ensure!(status.lines().any(is_reported), "{status}");
        Ok(())
    })?;
    let [node, backend] = [rig.node(0)?.addresses(), rig.pod(1, 1)?.addresses()];
    for (family, protocol) in matrix() {
        let through = Ask::new(protocol, node.socket(family, 30_080));
        let direct = Ask::new(protocol, backend.socket(family, TARGET));
        let (client, host) = (rig.client().peer(), rig.node(0)?.peer());
        let tallies = thread::scope(|scope| -> Result<[Tally; 2]> {
            let outside = scope.spawn(|| client.ask_many(through, ASKED));
            let own = host.ask_many(direct, ASKED)?;
            let outside = outside.join().map_err(|_panic| anyhow!("a client ended early"))?;
            Ok([outside?, own])
        })?;
        for tally in tallies {
            ensure!(tally.failed() == 0, "{family:?} {protocol}: {tally:?}");
        }
    }
    Ok(())
}
