//! Packets of known flows go past the stack where nobody would miss them, and through it where somebody would (ADR 0021).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, matrix};
use lb_tests::topology::{Addresses, Builder, Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Capture, Kept, Protocol};
use lb_tests::wait::wait_until_ok;

in_both_shapes!(
    known_flows_go_past_the_stack_both_ways,
    a_firewall_sees_every_packet_from_the_moment_it_is_noticed,
    devices_that_others_use_are_left_to_the_stack,
);

/// How long the agent may take to notice somebody.
const SOON: Duration = Duration::from_secs(30);

/// Near, far and host backends, by `ClusterIP` and by `NodePort`.
fn start(builder: Builder) -> Result<(Rig, Vec<Service>)> {
    let rig = Rig::build(builder)?;
    let backends = [
        ("near", Endpoint::pod(rig.pod(0, 1)?)),
        ("far", Endpoint::pod(rig.pod(1, 1)?)),
        ("far-host", Endpoint::host(rig.node(1)?)),
    ];
    let services = backends.into_iter().zip(10_u8..).map(|((name, endpoint), index)| {
        let service = Service::new(name, index)?.port(80, TARGET);
        Ok(service.node_port(30_000 + u16::from(index)).endpoints([endpoint]))
    });
    let services: Vec<Service> = services.collect::<Result<_>>()?;
    let rig = rig.start(&services.iter().collect::<Vec<_>>())?;
    Ok((rig, services))
}

/// Waits until `status` says so of short cuts.
fn until_shown(agent: &Agent, what: &str) -> Result<()> {
    wait_until_ok(SOON, &format!("status shows {what:?}"), || {
        let status = agent.command(&["status"])?;
        let mut lines = status.lines().filter(|line| line.starts_with("Short cuts"));
        ensure!(lines.any(|line| line.contains(what)), "{status}");
        Ok(())
    })
}

/// Packets that went past the stack from a hook.
fn sent(agent: &Agent, hook: &str) -> Result<f64> {
    agent.metric(&["lb_datapath_packets_total", hook, "sent"])
}

/// A pod of node-a by `ClusterIP` and a client outside by `NodePort`: a conversation, and where its packets are met first.
fn conversations<'a>(
    rig: &'a Rig,
    services: &[Service],
) -> Result<Vec<(Kept<'a>, Ask, &'static str)>> {
    let mut all = Vec::new();
    for (family, protocol) in matrix() {
        for (service, port) in services.iter().zip(30_010..) {
            let node_port = rig.node(0)?.addresses().socket(family, port);
            let askers: [(&Member, _, _); 2] = [
                (rig.pod(0, 0)?, service.frontend(family), "pod_ingress"),
                (rig.client(), node_port, "edge_ingress"),
            ];
            for (from, to, hook) in askers {
                let question = Ask::new(protocol, to).sized(901, 1_201);
                all.push((from.peer().keep(question)?, question, hook));
            }
        }
    }
    Ok(all)
}

fn is_answered(kept: &Kept<'_>, question: Ask) -> Result<()> {
    let answer = kept.ask().with_context(|| format!("{question:?}"))?;
    ensure!(answer.peer == question.to, "{question:?}: {answer:?}");
    Ok(())
}

fn is_near(question: Ask, near: &Service) -> bool {
    question.to.port() == 30_010
        || Family::ALL.iter().any(|family| near.frontend(*family) == question.to)
}

fn known_flows_go_past_the_stack_both_ways(shape: Shape) -> Result<()> {
    let (rig, services) = start(Topology::builder(shape))?;
    let (agent, near) = (rig.agent(0)?, services.first().context("a near one")?);
    until_shown(agent, "on")?;
    let captures = [(rig.client(), "client"), (rig.pod(0, 0)?, "pod"), (rig.pod(1, 1)?, "far")];
    let captures = captures.map(|(member, name)| (Capture::start(member.netns(), "eth0"), name));
    for (kept, question, hook) in conversations(&rig, &services)? {
        // A connection's first packet is the stack's.
        is_answered(&kept, question)?;
        let before = [sent(agent, hook)?, sent(agent, "ingress")?];
        for _ in 0..5 {
            is_answered(&kept, question)?;
        }
        let after = [sent(agent, hook)?, sent(agent, "ingress")?];
        let [here, both] = [0, 1].map(|at| after[at] - before[at]);
        // To a backend behind a bridge the stack finds the way.
        if shape == Shape::Routed || !is_near(question, near) {
            ensure!(
                here >= 5.0 && both >= 10.0,
                "{question:?}: {here} past the stack at {hook}, {both} in all"
            );
        }
    }
    for (capture, name) in captures {
        capture?.ensure_checksums().context(name)?;
    }
    Ok(())
}

/// Every packet of both directions meets its counter again, and the connections go on.
fn a_firewall_sees_every_packet_from_the_moment_it_is_noticed(shape: Shape) -> Result<()> {
    let (rig, services) = start(Topology::builder(shape))?;
    let (node, agent) = (rig.node(0)?, rig.agent(0)?);
    until_shown(agent, "on")?;
    let conversations = conversations(&rig, &services)?;
    for (kept, question, _) in &conversations {
        is_answered(kept, *question)?;
    }
    let rules = "table inet wall { counter met { }
                 chain input { type filter hook input priority 0; policy accept; counter; }
                 chain forward { type filter hook forward priority 0; policy drop;
                 ct state established,related,new counter name met accept; }; }";
    drop(node.netns().tool_fed("nft", &["-f", "-"], rules)?);
    until_shown(agent, "off: nftables: chain inet wall forward")?;
    let past =
        |agent| Ok::<_, anyhow::Error>(sent(agent, "pod_ingress")? + sent(agent, "edge_ingress")?);
    // What was on its way when it was noticed has come.
    rig.until_closed()?;
    let before = past(agent)?;
    for (kept, question, _) in &conversations {
        for _ in 0..3 {
            is_answered(kept, *question)?;
        }
    }
    ensure!(past(agent)? <= before, "packets went past a firewall");
    drop(node.netns().tool("nft", &["delete", "table", "inet", "wall"])?);
    until_shown(agent, "on")?;
    for (kept, question, _) in &conversations {
        is_answered(kept, *question)?;
    }
    ensure!(past(agent)? > before, "no short cut after it is gone");
    Ok(())
}

fn devices_that_others_use_are_left_to_the_stack(shape: Shape) -> Result<()> {
    let (rig, services) = start(Topology::builder(shape))?;
    let (node, agent) = (rig.node(0)?, rig.agent(0)?);
    until_shown(agent, "on")?;
    let device = "veth-a1";
    let shaped = [
        "qdisc", "add", "dev", device, "root", "tbf", "rate", "1gbit", "burst", "1mb", "latency",
        "1s",
    ];
    drop(node.netns().tool("tc", &shaped)?);
    until_shown(agent, &format!("not by {device}: it has a queueing discipline (tbf)"))?;
    let far = services.get(1).context("a far one")?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, far.frontend(family)).sized(901, 1_201);
        let kept = rig.pod(0, 0)?.peer().keep(question)?;
        let before = sent(agent, "pod_ingress")? + sent(agent, "edge_ingress")?;
        for _ in 0..3 {
            is_answered(&kept, question)?;
        }
        let after = sent(agent, "pod_ingress")? + sent(agent, "edge_ingress")?;
        ensure!(after <= before, "{question:?} went past a queue");
    }
    drop(node.netns().tool("tc", &["qdisc", "del", "dev", device, "root"])?);
    wait_until_ok(SOON, "status shows no exception", || {
        ensure!(!agent.command(&["status"])?.contains("not by"));
        Ok(())
    })
}

/// The pod's link takes smaller packets than the wire does: who sends too large ones is told, and so he is by the stack.
#[test]
fn a_narrow_way_is_told_of() -> Result<()> {
    let (rig, services) = start(Topology::builder(Shape::Routed))?;
    until_shown(rig.agent(0)?, "on")?;
    let far = services.get(1).context("a far one")?;
    for family in Family::ALL {
        let question = Ask::new(Protocol::Tcp, far.frontend(family)).sized(4_001, 4_001);
        let kept = rig.pod(0, 0)?.peer().keep(question)?;
        is_answered(&kept, question)?;
        let before = rig.agent(0)?.metric(&["lb_events_total", "kept_too_big"])?;
        let [far4, far6] = rig.node(1)?.pod_ranges();
        let range = if family == Family::V4 { far4 } else { far6 };
        let via: Addresses = rig.node(1)?.addresses();
        rig.node(0)?
            .netns()
            .ip(&format!("route change {range} via {} mtu lock 1300", via.of(family)))?;
        is_answered(&kept, question)?;
        let after = rig.agent(0)?.metric(&["lb_events_total", "kept_too_big"])?;
        ensure!(after > before, "{question:?}: nothing was too big");
    }
    Ok(())
}
