//! The setting `bypass: on`: packets of established flows bypass the stack; forged and oversized packets do not (ADR
//! 0021).

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, dropped, matrix};
use lb_tests::topology::{Addresses, Builder, Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Capture, Frame, Handmade, Kept, Protocol};

in_both_shapes!(known_flows_go_past_the_stack_both_ways, a_forged_source_takes_the_stack,);

/// Starts agents and Services with local, remote and host backends, each with a `ClusterIP` and a `NodePort`.
fn start(builder: Builder) -> Result<(Rig, Vec<Service>)> {
    let mut rig = Rig::build(builder)?;
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
    services.iter().try_for_each(|service| rig.manifests().apply(service))?;
    let config = rig.configuration("bypass: 'on'")?;
    rig.start_agents(&[&config])?;
    Ok((rig, services))
}

/// The number of packets that bypassed the stack at a hook.
fn redirected(agent: &Agent, hook: &str) -> Result<f64> {
    agent.metric(&["lb_datapath_packets_total", hook, "redirected"])
}

/// Flows of a pod of node-a through `ClusterIP`s and of an external client through `NodePort`s, each with the hook that
/// its packets meet first.
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
                (rig.client(), node_port, "external_ingress"),
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
    let captures = [(rig.client(), "client"), (rig.pod(0, 0)?, "pod"), (rig.pod(1, 1)?, "far")];
    let captures = captures.map(|(member, name)| (Capture::start(member.netns(), "eth0"), name));
    for (kept, question, hook) in conversations(&rig, &services)? {
        // The first packet of a connection passes the stack.
        is_answered(&kept, question)?;
        let before = [redirected(agent, hook)?, redirected(agent, "ingress")?];
        for _ in 0..5 {
            is_answered(&kept, question)?;
        }
        let after = [redirected(agent, hook)?, redirected(agent, "ingress")?];
        let [here, both] = [0, 1].map(|at| after[at] - before[at]);
        // For a backend behind a bridge, the stack finds the bridge port.
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

/// A pod that forges the source address of another pod does not get its answers, and its forged answers of a backend
/// are not delivered.
fn a_forged_source_takes_the_stack(shape: Shape) -> Result<()> {
    let (rig, services) = start(Topology::builder(shape))?;
    let node = rig.node(0)?;
    for device in ["all", "default"] {
        node.netns().sysctl(&format!("net.ipv4.conf.{device}.rp_filter"), "1")?;
    }
    let (forger, victim) = (rig.pod(0, 0)?, rig.pod(0, 1)?);
    let far = services.get(1).context("a far one")?;
    let kept_source = || rig.agent(0)?.metric(&["lb_events_total", "kept_source"]);
    for family in Family::ALL {
        let to = far.frontend(family);
        let own = victim.addresses().socket(family, 27_000);
        let question = Ask::new(Protocol::Udp, to).from(own);
        let kept = victim.peer().keep(question)?;
        for _ in 0..3 {
            is_answered(&kept, question)?;
        }
        let before = kept_source()?;
        let capture = Capture::start(forger.netns(), "eth0")?;
        let arrived = Capture::start(victim.netns(), "eth0")?;
        let hand = Handmade::open(forger, forger.addresses().socket(family, 27_001))?;
        let backend = rig.pod(1, 1)?.addresses().socket(family, TARGET);
        // Strict reverse path filtering drops a forged answer. Neither IPv6 nor a bridge has it.
        let is_filtered = family == Family::V4 && shape == Shape::Routed;
        // A forged question causes an answer, for which the victim is waiting.
        let forgeries = [(own, to, &b"ask 0 \n"[..]), (backend, own, b"forged")];
        for (from, to, payload) in forgeries.into_iter().take(1 + usize::from(is_filtered)) {
            let [source, destination] = [from, to].map(|end| at(&end.to_string()));
            let forged = Datagram::new(source, destination, Transport::Udp(true));
            hand.send(&forged.with(payload), to)?;
        }
        // The forged packet was processed before this answer arrives.
        is_answered(&kept, question)?;
        rig.until_closed()?;
        ensure!(kept_source()? > before, "no packet was kept from the bypass for its source");
        let answers = capture.count(|frame| frame.source() == Some(to));
        ensure!(answers == 0, "{answers} answers of {to} reached the forger");
        let is_forged = |frame: &Frame| !frame.outgoing && frame.bytes.ends_with(b"forged");
        ensure!(arrived.count(is_forged) == 0, "a forged answer arrived");
    }
    Ok(())
}

/// Two flows of a pod that bypass the stack by now: one with a long timeout, and one with a short timeout.
fn known(pod: &Member, question: Ask) -> Result<[Kept<'_>; 2]> {
    let kept = pod.peer().keep(question)?;
    let hasty = pod.peer().keep(question.within(500))?;
    for _ in 0..3 {
        is_answered(&kept, question)?;
        drop(hasty.ask());
    }
    Ok([kept, hasty])
}

/// Isolated ports of a bridge: the bypass must not connect pods that the bridge keeps apart.
#[test]
fn isolated_ports_of_a_bridge_stay_isolated() -> Result<()> {
    let (rig, services) = start(Topology::builder(Shape::Bridged))?;
    let near = services.first().context("a near one")?;
    let (pod, backend) = (rig.pod(0, 0)?, rig.pod(0, 1)?);
    let isolate = |state| {
        let ports = [pod.device(), backend.device()];
        let commands =
            ports.map(|port| format!("link set {port} type bridge_slave isolated {state}\n"));
        rig.node(0)?.netns().ip(&commands.concat())
    };
    for family in Family::ALL {
        let question = Ask::udp(near.frontend(family));
        let [kept, hasty] = known(pod, question)?;
        isolate("on")?;
        // The question is routed; its answer would pass from one isolated port to another.
        dropped(pod, question)?;
        ensure!(hasty.ask().is_err(), "an isolated port answers {question:?} of a known flow");
        isolate("off")?;
        is_answered(&kept, question)?;
    }
    Ok(())
}

/// The forwarding table of the bridge selects the port for packets that bypass the stack, so an entry of an operator
/// applies to them.
#[test]
fn bridge_chooses_the_port_by_its_own_table() -> Result<()> {
    let (rig, services) = start(Topology::builder(Shape::Bridged))?;
    let near = services.first().context("a near one")?;
    let (pod, backend, node) = (rig.pod(0, 0)?, rig.pod(0, 1)?, rig.node(0)?.netns());
    let line = backend.netns().tool("ip", &["-brief", "link", "show", "dev", "eth0"])?;
    let address = line.split_whitespace().nth(2).context(line.clone())?;
    // A sticky entry stays when the backend sends from another port.
    let entry = ["fdb", "replace", address, "dev", pod.device(), "master", "static", "sticky"];
    for family in Family::ALL {
        let question = Ask::udp(near.frontend(family));
        let [kept, hasty] = known(pod, question)?;
        drop(node.tool("bridge", &entry)?);
        ensure!(hasty.ask().is_err(), "{question:?} left by another port than the table's");
        drop(node.tool("bridge", &["fdb", "delete", address, "dev", pod.device(), "master"])?);
        is_answered(&kept, question)?;
    }
    Ok(())
}

/// A firewall that relies on connection tracking is reloaded repeatedly while connections bypass it. It has seen only
/// their first packets, and must not end them.
#[test]
fn firewall_that_is_loaded_ends_no_connection() -> Result<()> {
    const RULES: &str = "table inet firewall { chain forward { \
        type filter hook forward priority 0; policy drop; \
        ct state invalid drop; ct state established accept; \
        meta l4proto udp accept; tcp flags & (syn | ack) == syn accept; }; }";
    let (rig, services) = start(Topology::builder(Shape::Routed))?;
    let all = conversations(&rig, &services)?;
    let everybody = || all.iter().try_for_each(|(kept, question, _)| is_answered(kept, *question));
    let netns = rig.node(0)?.netns();
    everybody()?;
    for _ in 0..3 {
        everybody()?;
        drop(netns.tool_fed("nft", &["-f", "-"], RULES)?);
        everybody()?;
        // New connections pass the stack, as the rules allow.
        for (kept, question, _) in &conversations(&rig, &services)? {
            is_answered(kept, *question)?;
        }
        drop(netns.tool("nft", &["delete", "table", "inet", "firewall"])?);
    }
    everybody()
}

/// The pod's link has a smaller MTU than the wire: the sender of a too large packet gets an ICMP error, also from the
/// stack.
#[test]
fn a_narrow_path_is_reported() -> Result<()> {
    let (rig, services) = start(Topology::builder(Shape::Routed))?;
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
