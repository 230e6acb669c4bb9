//! Nodes with other network software: a firewall that closes FORWARD and masquerades pods, an overlay, two external
//! interfaces.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Addresses, Builder, Member, Segment, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;

/// The deadline for `status` to show the result of inspecting the rules.
const SOON: Duration = Duration::from_mins(1);

in_both_shapes!(
    services_work_beside_the_firewall_of_a_cni,
    services_work_over_an_overlay,
    services_work_through_a_tunnel,
    services_work_with_a_loose_reverse_path_filter,
    node_port_works_on_a_second_device,
    node_port_works_when_answers_leave_by_another_device,
);

/// Docker 28 writes such a rule for each container without published ports.
#[test]
fn rule_that_drops_packets_to_a_backend_is_a_problem_that_names_it() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let rig = rig.start(&[&web])?;
    let (agent, node) = (rig.agent(0)?, rig.node(0)?.netns());
    let problems = || -> Result<Vec<String>> {
        let status = agent.exit_said(&["status"])?;
        let problems = status.lines().filter(|line| line.starts_with("Problem"));
        Ok(problems.map(str::to_owned).collect())
    };
    ensure!(problems()?.is_empty(), "{:?}", problems()?);
    let backend = rig.pod(0, 1)?.addresses();
    let rules = format!(
        "table ip raw {{ chain PREROUTING {{
           type filter hook prerouting priority raw; policy accept;
           ip daddr 172.17.0.9 iifname != \"docker0\" counter drop
           ip daddr {} iifname != \"docker0\" counter drop
         }}; }}
         table ip6 raw {{ chain PREROUTING {{
           type filter hook prerouting priority raw; policy accept;
           ip6 daddr {} counter drop
         }}; }}",
        backend.v4, backend.v6
    );
    drop(node.tool_fed("nft", &["-f", "-"], &rules)?);
    wait_until_ok(SOON, "status names both addresses", || {
        let problems = problems()?;
        let names = |address: &str, family: &str| {
            let wanted = format!("backend {address}: PREROUTING of nft table {family} raw drops");
            problems.iter().any(|problem| problem.contains(&wanted))
        };
        ensure!(
            names(&backend.v4.to_string(), "ip") && names(&backend.v6.to_string(), "ip6"),
            "{problems:?}"
        );
        ensure!(problems.len() == 2, "not only the backend is named: {problems:?}");
        Ok(())
    })?;
    for family in ["ip", "ip6"] {
        drop(node.tool("nft", &["delete", "table", family, "raw"])?);
    }
    wait_until_ok(SOON, "nothing is wrong", || {
        let problems = problems()?;
        ensure!(problems.is_empty(), "{problems:?}");
        Ok(())
    })
}

/// All clients use every kind of backend, through `ClusterIP` and `NodePort`.
fn everything_works(builder: Builder) -> Result<Rig> {
    let rig = Rig::build(builder)?;
    let (node_a, node_b) = (rig.node(0)?, rig.node(1)?);
    let backends = [
        ("near", Endpoint::pod(rig.pod(0, 1)?)),
        ("far", Endpoint::pod(rig.pod(1, 1)?)),
        ("host", Endpoint::host(node_a)),
        ("far-host", Endpoint::host(node_b)),
    ];
    let services = backends.into_iter().zip(10_u8..).map(|((name, endpoint), index)| {
        let service = Service::new(name, index)?.port(80, TARGET);
        Ok(service.node_port(30_000 + u16::from(index)).endpoints([endpoint]))
    });
    let services: Vec<Service> = services.collect::<Result<_>>()?;
    let rig = rig.start(&services.iter().collect::<Vec<_>>())?;
    for (family, protocol) in matrix() {
        for (service, port) in services.iter().zip(30_010..) {
            let node_port = rig.node(0)?.addresses().socket(family, port);
            let askers: [(&Member, _); 5] = [
                (rig.pod(0, 0)?, service.frontend(family)),
                (rig.node(0)?, service.frontend(family)),
                (rig.client(), node_port),
                (rig.pod(0, 0)?, node_port),
                (rig.pod(1, 0)?, node_port),
            ];
            for (from, to) in askers {
                ask_twice(from, Ask::new(protocol, to))?;
            }
        }
    }
    Ok(rig)
}

/// The second question takes the path of the flow that the first one created.
fn ask_twice(from: &Member, question: Ask) -> Result<()> {
    let what = || format!("{} asks {question:?}", from.name());
    let kept = from.peer().keep(question).with_context(what)?;
    for _ in 0..2 {
        let answer = kept.ask().with_context(what)?;
        ensure!(answer.peer == question.to, "{}: {answer:?}", what());
    }
    Ok(())
}

/// Connection tracking must not consider any packet invalid that our programs leave to the stack.
fn services_work_beside_the_firewall_of_a_cni(shape: Shape) -> Result<()> {
    let rig = everything_works(Topology::builder(shape).firewall())?;
    for node in rig.topology().nodes() {
        let rules = node.netns().tool("nft", &["list", "chain", "inet", "cni", "forward"])?;
        for kind in ["invalid", "refused"] {
            let rule = rules.lines().find(|rule| rule.contains(kind)).context("a counter")?;
            ensure!(rule.contains("packets 0 "), "{}: {rule}", node.name());
        }
    }
    Ok(())
}

fn services_work_over_an_overlay(shape: Shape) -> Result<()> {
    everything_works(Topology::builder(shape).overlay()).map(drop)
}

fn services_work_through_a_tunnel(shape: Shape) -> Result<()> {
    everything_works(Topology::builder(shape).tunnel()).map(drop)
}

fn services_work_with_a_loose_reverse_path_filter(shape: Shape) -> Result<()> {
    everything_works(Topology::builder(shape).rp_filter(2)).map(drop)
}

/// Two Services with a local and a remote backend, and nodes with two external interfaces.
fn two_devices(shape: Shape, flags: &[&str]) -> Result<Rig> {
    let mut rig = Rig::build(Topology::builder(shape).two_segments().rp_filter(2))?;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    rig.manifests().apply(&near)?;
    rig.manifests().apply(&far)?;
    // All interfaces are veths here, and the second one has no address of the Node object, so the flag names them.
    rig.start_agents(&[&["--external-device=eth*"], flags].concat())?;
    Ok(rig)
}

fn node_port_works_on_a_second_device(shape: Shape) -> Result<()> {
    let rig = two_devices(shape, &["--nodeport-addresses=0.0.0.0/0,::/0"])?;
    let second = Segment::Second.host(11)?;
    for (family, protocol) in matrix() {
        for port in [30_080, 30_081] {
            let question = Ask::new(protocol, second.socket(family, port));
            ensure!(ask(rig.client(), question)?.peer == question.to);
        }
    }
    Ok(())
}

/// The client uses a source address that nodes reach through the second segment; its packets arrive through the first.
fn node_port_works_when_answers_leave_by_another_device(shape: Shape) -> Result<()> {
    let rig = two_devices(shape, &[])?;
    rig.client().netns().ip("address add 192.168.70.1/32 dev lo
         address add fd00:70::1/128 dev lo nodad")?;
    let client = Segment::Second.host(100)?;
    for node in rig.topology().nodes() {
        node.netns().ip(&format!(
            "route add 192.168.70.1/32 via {}
             route add fd00:70::1/128 via {}",
            client.v4, client.v6
        ))?;
    }
    let first = rig.node(0)?.addresses();
    for (family, protocol) in matrix() {
        let own = Addresses::parse("192.168.70.1", "fd00:70::1")?;
        for port in [30_080, 30_081] {
            let question = Ask::new(protocol, first.socket(family, port));
            let question = question.from(own.socket(family, 0));
            ensure!(ask(rig.client(), question)?.peer == question.to);
        }
    }
    Ok(())
}
