//! Interfaces without a link-layer header, such as those of `WireGuard` and ipip: clients and backends behind a tunnel.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::{Direction, attached_programs};
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, refused};
use lb_tests::topology::{Addresses, Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Handmade, Raw, pieces, ping};
use lb_tests::wait::wait_until_ok;
use nix::net::if_::if_nametoindex;

in_both_shapes!(
    node_port_is_asked_through_the_tunnel,
    fragments_come_through_the_tunnel_in_any_order,
    large_segments_and_datagrams_find_the_mtu_of_the_tunnel,
    process_that_no_hook_serves_asks_through_the_tunnel,
    ping_of_a_cluster_ip_is_answered_through_the_tunnel,
    tunnel_is_served_while_it_is_up_and_never_by_xdp,
    agent_that_comes_back_finds_the_programs_of_the_tunnel,
);

/// The deadline for a change of a link to be reported.
const SOON: Duration = Duration::from_secs(30);
/// `NodePort`s of a local backend, a remote one, and none.
const NODE_PORTS: [u16; 3] = [30_080, 30_081, 30_082];
/// The flag that makes agents serve `NodePort`s on the addresses of the tunnel as well.
const EVERYWHERE: &str = "--nodeport-addresses=0.0.0.0/0,::/0";

/// Starts agents, and Services with a local backend, a remote one, and none.
fn start(shape: Shape, flags: &[&str]) -> Result<(Rig, [Service; 3])> {
    let mut rig = Rig::build(Topology::builder(shape).tunnel())?;
    let pods = [vec![rig.pod(0, 1)?], vec![rig.pod(1, 1)?], Vec::new()];
    let mut services = Vec::new();
    for ((pods, port), index) in pods.iter().zip(NODE_PORTS).zip(10_u8..) {
        let service = Service::new(["near", "far", "none"][usize::from(index - 10)], index)?;
        let service = service.port(80, TARGET).node_port(port).pods(pods);
        rig.manifests().apply(&service)?;
        services.push(service);
    }
    rig.start_agents(flags)?;
    let services = services.try_into().ok().context("three services")?;
    Ok((rig, services))
}

/// The addresses of node-a in the tunnel.
fn inside() -> Result<Addresses> {
    Addresses::parse("10.245.0.1", "fd00:245::1")
}

/// The later questions take the path of the flow that the first one created.
fn ask_thrice(from: &Member, question: Ask) -> Result<()> {
    let kept = from.peer().keep(question).with_context(|| format!("{question:?}"))?;
    for _ in 0..3 {
        let answer = kept.ask().with_context(|| format!("{question:?}"))?;
        ensure!(answer.peer == question.to, "{question:?}: {answer:?}");
    }
    Ok(())
}

/// The client is at the other end of the tunnel; its packets to the remote backend return into the tunnel with the
/// node's address.
fn node_port_is_asked_through_the_tunnel(shape: Shape) -> Result<()> {
    let (rig, _) = start(shape, &[EVERYWHERE])?;
    let client = rig.node(1)?;
    for (family, protocol) in matrix() {
        let inside = inside()?;
        let [near, far, none] =
            NODE_PORTS.map(|port| Ask::new(protocol, inside.socket(family, port)));
        for question in [near, far] {
            ask_thrice(client, question)?;
        }
        refused(client, none)?;
    }
    let metric = |hook, what| rig.agent(0)?.metric(&["lb_datapath_packets_total", hook, what]);
    ensure!(metric("external_ingress", "no_backend")? > 3.5, "too few refusals were counted");
    ensure!(metric("external_ingress", "unmasquerade")? > 3.5);
    Ok(())
}

fn fragments_come_through_the_tunnel_in_any_order(shape: Shape) -> Result<()> {
    let (rig, _) = start(shape, &[EVERYWHERE])?;
    let client = rig.node(1)?;
    let from = Addresses::parse("10.245.0.2", "fd00:245::2")?;
    // This bypasses the client's own connection tracking, which would reassemble the fragments.
    let device = Raw::open(client.netns(), "tun0")?;
    let mut id = 0;
    for family in Family::ALL {
        for (port, own) in [(NODE_PORTS[0], 26_000), (NODE_PORTS[1], 26_001)] {
            let to = inside()?.socket(family, port);
            let hand = Handmade::open(client, from.socket(family, own))?;
            for (size, by) in [(3_000, 0), (3_000, 1), (20_000, 8)] {
                id += 1;
                let mut parts = pieces(&hand.question(to, size), 1_320, id);
                parts.rotate_left(by);
                parts.iter().try_for_each(|part| device.send(&part.network()))?;
                hand.answer(to, size).with_context(|| format!("{size} bytes to {to} from {by}"))?;
            }
        }
    }
    let held = ["lb_datapath_packets_total", "external_ingress", "fragment_held"];
    ensure!(rig.agent(0)?.metric(&held)? > 3.5, "too few fragments were held");
    Ok(())
}

/// The tunnel has a smaller MTU than the wires of pods and clients.
fn large_segments_and_datagrams_find_the_mtu_of_the_tunnel(shape: Shape) -> Result<()> {
    let (rig, [_, far, _]) = start(shape, &[])?;
    for family in Family::ALL {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORTS[1]);
        let askers: [(&Member, _); 2] =
            [(rig.pod(0, 0)?, far.frontend(family)), (rig.client(), node_port)];
        for (from, to) in askers {
            let large = Ask::tcp(to).sized(300_000, 300_000).within(30_000);
            ensure!(ask(from, large)?.peer == to);
            for size in [1_300, 4_000, 20_001] {
                ensure!(ask(from, Ask::udp(to).sized(size, size).within(30_000))?.peer == to);
            }
        }
    }
    Ok(())
}

/// A packet to a frontend that leaves through the tunnel is translated there.
fn process_that_no_hook_serves_asks_through_the_tunnel(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape).tunnel())?;
    let file = rig.topology().directory("configuration")?.join("config.yaml");
    let text = "apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\nsocketLB: 'off'\n";
    fs::write(&file, text).with_context(|| format!("configuration {}", file.display()))?;
    let near = Service::new("near", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).pods(&[rig.pod(1, 1)?]);
    let none = Service::new("none", 12)?.port(80, TARGET);
    for service in [&near, &far, &none] {
        rig.manifests().apply(service)?;
    }
    rig.start_agents(&["--config", &file.to_string_lossy()])?;
    let node = rig.node(0)?;
    node.netns().ip("route add 10.96.0.0/16 dev tun0
         route add fd00:10:96::/112 dev tun0")?;
    for (family, protocol) in matrix() {
        for service in [&near, &far] {
            ask_thrice(node, Ask::new(protocol, service.frontend(family)))?;
        }
        refused(node, Ask::new(protocol, none.frontend(family)))?;
    }
    Ok(())
}

/// Answered by the node's own programs where the ping leaves, and by the programs at the other end once the node has
/// none; with and without fragments.
fn ping_of_a_cluster_ip_is_answered_through_the_tunnel(shape: Shape) -> Result<()> {
    let (mut rig, [near, ..]) = start(shape, &[])?;
    rig.node(1)?.netns().ip("route add 10.96.0.0/16 dev tun0
         route add fd00:10:96::/112 dev tun0")?;
    let mut other = rig.take_agent(1)?;
    let answers =
        |agent: &Agent, hook| agent.metric(&["lb_datapath_packets_total", hook, "\"echo\""]);
    let all = |rig: &Rig| {
        for family in Family::ALL {
            for size in [56, 4_000] {
                ping(rig.node(1)?, near.cluster().of(family), size)?;
            }
        }
        Ok::<_, anyhow::Error>(())
    };
    all(&rig)?;
    ensure!(
        answers(&other, "external_egress")? > 3.5,
        "the egress program of node-b did not answer"
    );
    other.stop()?;
    drop(other.command(&["cleanup"])?);
    all(&rig)?;
    ensure!(
        answers(rig.agent(0)?, "external_ingress")? > 3.5,
        "the ingress program of node-a did not answer"
    );
    Ok(())
}

/// These programs are loaded separately from the others, and serve on without the agent.
fn agent_that_comes_back_finds_the_programs_of_the_tunnel(shape: Shape) -> Result<()> {
    let (mut rig, _) = start(shape, &[])?;
    let programs = |rig: &Rig| {
        let number = |index, direction| {
            Ok::<_, std::io::Error>(
                attached_programs(index, direction)?.first().map(|it| it.program),
            )
        };
        let numbers = || {
            let index = if_nametoindex("tun0")?;
            Ok([number(index, Direction::Ingress)?, number(index, Direction::Egress)?])
        };
        let found: std::io::Result<_> = rig.node(0)?.netns().run_in(numbers)?;
        found.context("what is attached to tun0")
    };
    let before = programs(&rig)?;
    ensure!(before.iter().all(Option::is_some), "{before:?}");
    let mut agent = rig.take_agent(0)?;
    let to = rig.node(0)?.addresses().socket(Family::V4, NODE_PORTS[1]);
    let kept = rig.client().peer().keep(Ask::tcp(to))?;
    ensure!(kept.ask()?.peer == to);
    agent.kill9()?;
    ensure!(kept.ask()?.peer == to);
    agent.start_again()?;
    ensure!(kept.ask()?.peer == to && ask(rig.client(), Ask::udp(to))?.peer == to);
    let after = programs(&rig)?;
    ensure!(after == before, "{after:?}, not {before:?}");
    Ok(())
}

fn tunnel_is_served_while_it_is_up_and_never_by_xdp(shape: Shape) -> Result<()> {
    let (rig, _) = start(shape, &[])?;
    let netns = rig.node(0)?.netns();
    let shows = |wanted: &[&str]| {
        wait_until_ok(SOON, "status says what there is of the tunnel", || {
            let said = rig.agent(0)?.command(&["status"])?;
            let lines = said.lines().filter(|line| line.contains("tun0"));
            let lines: Vec<String> = lines.map(|line| line.replace("  ", " ")).collect();
            let said = lines.join("\n");
            ensure!(lines.len() == wanted.len(), "{said}");
            ensure!(wanted.iter().zip(&lines).all(|(part, line)| line.contains(part)), "{said}");
            Ok(())
        })
    };
    let served = [
        "attached 10.245.0.1 fd00:245::1",
        "not attached: it has no link-layer header, which XDP needs",
    ];
    shows(&served)?;
    netns.ip("link set tun0 down")?;
    shows(&[])?;
    netns.ip("link set tun0 up\naddress add fd00:245::1/64 dev tun0 nodad")?;
    shows(&served)
}
