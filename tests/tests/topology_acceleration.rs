//! XDP before tc on the external interfaces: requested by a setting, because the interfaces of a topology are veths.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, dropped, matrix, refused, until};
use lb_tests::topology::{Builder, Family, Node, Segment, Shape, Topology};
use lb_tests::traffic::{Ask, Capture, Protocol};
use lb_tests::wait::wait_until_ok;

#[path = "topology_acceleration/programs.rs"]
mod programs;

in_both_shapes!(
    node_ports_are_served_through_xdp,
    xdp_redirects_packets_to_other_nodes,
    unfinished_packets_are_left_to_tc,
    a_backend_that_is_a_frontend_itself_gets_its_packets,
);

/// The deadline for the agent to follow a change of an interface.
const SOON: Duration = Duration::from_secs(30);

/// Starts agents with a value of `acceleration`, and Services with a local, a remote and no backend.
fn start(builder: Builder, acceleration: &str) -> Result<Rig> {
    let rig = Rig::build(builder)?;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    let none = Service::new("none", 12)?.port(80, TARGET).node_port(30_082);
    for service in [&near, &far, &none] {
        rig.manifests().apply(service)?;
    }
    with_agents(rig, acceleration)
}

/// Starts agents with a value of `acceleration`, followed by other lines of the configuration.
fn with_agents(mut rig: Rig, acceleration: &str) -> Result<Rig> {
    let config = rig.configuration(&format!("acceleration: {acceleration}"))?;
    rig.start_agents(&[&config])?;
    Ok(rig)
}

/// Checks that local and remote backends answer the external client from the address that it used, and that a Service
/// without a backend refuses.
fn everything_is_answered(rig: &Rig) -> Result<()> {
    let node = rig.node(0)?.addresses();
    for (family, protocol) in matrix() {
        for (port, server) in [(30_080, "pod-a2"), (30_081, "pod-b2")] {
            let question = Ask::new(protocol, node.socket(family, port)).sized(901, 1_201);
            let kept = rig.client().peer().keep(question)?;
            for _ in 0..3 {
                let answer = kept.ask().with_context(|| format!("{question:?}"))?;
                ensure!(answer.server == server && answer.peer == question.to, "{answer:?}");
                let sees_client = answer.client.ip() == rig.client().ip(family);
                ensure!(
                    sees_client == (port == 30_080),
                    "the backend saw another client: {answer:?}"
                );
            }
        }
        refused(rig.client(), Ask::new(protocol, node.socket(family, 30_082)))?;
    }
    Ok(())
}

/// Waits until `status` shows this text for the external interface.
fn until_shown(agent: &Agent, what: &str) -> Result<()> {
    wait_until_ok(SOON, &format!("status shows {what:?}"), || {
        let status = agent.command(&["status"])?;
        let line = status.lines().find(|line| line.starts_with("XDP")).context("no line of XDP")?;
        ensure!(line.contains("eth0") && line.contains(what), "{line}");
        Ok(())
    })
}

/// Whether an XDP program is attached to the external interface.
fn is_on(node: &Node) -> Result<bool> {
    is_on_device(node, "eth0")
}

fn is_on_device(node: &Node, device: &str) -> Result<bool> {
    Ok(node.netns().tool("ip", &["link", "show", "dev", device])?.contains("prog/xdp"))
}

fn counted(agent: &Agent, verdict: &str) -> Result<f64> {
    agent.metric(&["lb_datapath_packets_total", "external_xdp", verdict])
}

/// Packets that reached tc after XDP.
fn counted_at_tc(agent: &Agent, verdict: &str) -> Result<f64> {
    agent.metric(&["lb_datapath_packets_total", "external_ingress", verdict])
}

fn node_ports_are_served_through_xdp(shape: Shape) -> Result<()> {
    let rig = start(Topology::builder(shape).without_checksum_offload(), "native")?;
    until_shown(rig.agent(0)?, "eth0            attached")?;
    ensure!(is_on(rig.node(0)?)?, "no program on eth0");
    let captures = [(rig.client(), "client"), (rig.pod(0, 1)?, "near"), (rig.node(0)?, "node")];
    let captures = captures.map(|(member, name)| (Capture::start(member.netns(), "eth0"), name));
    everything_is_answered(&rig)?;
    for (capture, name) in captures {
        capture?.ensure_checksums().context(name)?;
    }
    for verdict in ["new_flow", "forward", "left_to_tc"] {
        ensure!(counted(rig.agent(0)?, verdict)? > 0.0, "{verdict} at external_xdp");
    }
    // One in 65,536 complete checksums looks like a partial one, and XDP leaves its packet to tc.
    let left = counted(rig.agent(0)?, "partial_checksum")?;
    for verdict in ["new_flow", "forward", "unmasquerade"] {
        let again = counted_at_tc(rig.agent(0)?, verdict)?;
        ensure!(
            again <= left,
            "{again} times {verdict} at external_ingress after XDP, {left} left to it"
        );
    }
    Ok(())
}

/// A frontend is added with the address of a backend whose packets XDP has translated: no packet is translated twice,
/// also during a capture, for which the kernel copies packets.
fn a_backend_that_is_a_frontend_itself_gets_its_packets(shape: Shape) -> Result<()> {
    let rig = start(Topology::builder(shape).without_checksum_offload(), "native")?;
    until_shown(rig.agent(0)?, "eth0            attached")?;
    let node = rig.node(0)?.addresses();
    let questions =
        matrix().map(|(family, protocol)| Ask::new(protocol, node.socket(family, 30_080)));
    let kept = questions.map(|question| Ok((question, rig.client().peer().keep(question)?)));
    let kept = kept.collect::<Result<Vec<_>>>()?;
    let all_are_answered = || -> Result<()> {
        for (question, kept) in &kept {
            for answer in [kept.ask(), rig.client().peer().ask(*question)] {
                let answer = answer.with_context(|| format!("{question:?}"))?;
                ensure!(answer.server == "pod-a2", "{question:?}: {answer:?}");
            }
        }
        Ok(())
    };
    all_are_answered()?;
    let backend = rig.pod(0, 1)?.addresses();
    let also = Service::new("also", 13)?.port(TARGET, TARGET).external_ips(&backend.both());
    rig.manifests().apply(&also.pods(&[rig.pod(0, 0)?]))?;
    let directly = Ask::tcp(backend.socket(Family::V4, TARGET));
    until(rig.client(), directly, |answer| answer.as_ref().is_ok_and(|it| it.server == "pod-a1"))?;
    let at_tc = |verdict| counted_at_tc(rig.agent(0)?, verdict);
    for is_captured in [false, true] {
        rig.until_closed()?;
        let left = || counted(rig.agent(0)?, "partial_checksum");
        let before = [at_tc("accelerated")?, at_tc("new_flow")? - left()?];
        let netns = rig.node(0)?.netns();
        let capture = is_captured.then(|| Capture::start(netns, "eth0")).transpose()?;
        all_are_answered()?;
        // Also counts the last packet of each connection.
        rig.until_closed()?;
        let after = [at_tc("accelerated")?, at_tc("new_flow")? - left()?];
        drop(capture);
        let [passed, again] = [after[0] - before[0], after[1] - before[1]];
        let least = 2.0 * kept.len() as f64;
        ensure!(passed >= least && again <= 0.0, "{passed} passed, {again} translated again");
    }
    Ok(())
}

fn event(agent: &Agent, event: &str) -> Result<f64> {
    agent.metric(&["lb_events_total", event])
}

/// Checks that neither direction of an established connection passes the stack.
fn is_sent_out(rig: &Rig, to: impl Fn(Family) -> SocketAddr) -> Result<()> {
    for (family, protocol) in matrix() {
        // The closing packets of the connection before pass the stack.
        rig.until_closed()?;
        let question = Ask::new(protocol, to(family)).sized(901, 1_201);
        let kept = rig.client().peer().keep(question)?;
        // Twice, until the stack has seen an answer in each direction.
        for _ in 0..2 {
            drop(kept.ask().with_context(|| format!("{question:?}"))?);
        }
        let agent = rig.agent(0)?;
        let redirected = |what| counted(agent, what);
        let stack =
            || agent.metric(&["lb_datapath_packets_total", "external_egress", "masquerade"]);
        let before = [redirected("to_backend")?, redirected("to_client")?, stack()?];
        for _ in 0..10 {
            let answer = kept.ask().with_context(|| format!("{question:?}"))?;
            ensure!(answer.server == "pod-b2" && answer.peer == question.to, "{answer:?}");
        }
        let after = [redirected("to_backend")?, redirected("to_client")?, stack()?];
        let [forward, reply, stack] = [0, 1, 2].map(|what| after[what] - before[what]);
        let figures = format!("{question:?}: {forward} out, {reply} back, {stack} by the stack");
        ensure!(forward >= 10.0 && reply >= 10.0 && stack == 0.0, "{figures}");
    }
    Ok(())
}

fn xdp_redirects_packets_to_other_nodes(shape: Shape) -> Result<()> {
    let rig = start(Topology::builder(shape).without_checksum_offload().polling(), "native")?;
    until_shown(rig.agent(0)?, "attached, redirects")?;
    let captures = [(rig.client(), "client"), (rig.pod(1, 1)?, "far")];
    let captures = captures.map(|(member, name)| (Capture::start(member.netns(), "eth0"), name));
    everything_is_answered(&rig)?;
    for (capture, name) in captures {
        capture?.ensure_checksums().context(name)?;
    }
    let node = rig.node(0)?;
    is_sent_out(&rig, |family| node.addresses().socket(family, 30_081))?;
    // Without polling, the veth discards redirected frames: packets sent meanwhile are lost, and then the agent leaves
    // them to the stack.
    rig.topology().poll(node, "eth0", false)?;
    until_shown(rig.agent(0)?, "attached, passes to tc: its driver accepts no frames")?;
    rig.until_closed()?;
    let before = counted(rig.agent(0)?, "redirected")?;
    everything_is_answered(&rig)?;
    ensure!(
        counted(rig.agent(0)?, "redirected")? <= before,
        "packets were redirected to a veth that does not poll"
    );
    Ok(())
}

/// Packets arrive on one interface and leave by another, in both directions.
#[test]
fn xdp_sends_out_by_another_device() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).two_segments().rp_filter(2);
    let rig = Rig::build(builder.without_checksum_offload().polling())?;
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    rig.manifests().apply(&far)?;
    let rig = with_agents(
        rig,
        "native
externalDevices: [eth*]
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
nodePortAddresses: [0.0.0.0/0, '::/0']",
    )?;
    wait_until_ok(SOON, "XDP redirects on both interfaces", || {
        let status = rig.agent(0)?.command(&["status"])?;
        let sending = status.lines().filter(|line| line.ends_with("redirects")).count();
        ensure!(sending == 2, "{status}");
        Ok(())
    })?;
    let second = Segment::Second.host(11)?;
    is_sent_out(&rig, |family| second.socket(family, 30_081))
}

/// Packets that the stack must answer or refuse are left to it.
#[test]
fn packets_that_need_the_stack_are_left_to_it() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).without_checksum_offload().polling();
    let rig = start(builder, "native")?;
    until_shown(rig.agent(0)?, "attached, redirects")?;
    let (node, agent) = (rig.node(0)?, rig.agent(0)?);
    for family in Family::ALL {
        let to = node.addresses().socket(family, 30_081);
        let kept = rig.client().peer().keep(Ask::new(Protocol::Tcp, to).sized(4_001, 4_001))?;
        for _ in 0..3 {
            drop(kept.ask()?);
        }
        // The MTU of the route becomes smaller, and the client must get an ICMP error.
        let before = event(agent, "kept_too_big")?;
        let (far, via) = (rig.node(1)?.pod_ranges(), rig.node(1)?.addresses());
        let [far4, far6] = far;
        let range = if family == Family::V4 { far4 } else { far6 };
        node.netns().ip(&format!("route change {range} via {} mtu lock 1300", via.of(family)))?;
        drop(kept.ask().with_context(|| format!("{to} by a narrow way"))?);
        ensure!(event(agent, "kept_too_big")? > before, "nothing was too big");
    }
    // A firewall decides about new connections.
    let rules = "table inet wall { chain forward { type filter hook forward priority 0; \
                 tcp dport 8080 drop; udp dport 8080 drop; }; }";
    drop(node.netns().tool_fed("nft", &["-f", "-"], rules)?);
    for (family, protocol) in matrix() {
        dropped(rig.client(), Ask::new(protocol, node.addresses().socket(family, 30_081)))?;
    }
    Ok(())
}

/// A sender on this machine leaves checksums to the interface. XDP passes its packets on, and tc serves them.
fn unfinished_packets_are_left_to_tc(shape: Shape) -> Result<()> {
    let rig = start(Topology::builder(shape), "native")?;
    until_shown(rig.agent(0)?, "eth0            attached")?;
    everything_is_answered(&rig)?;
    ensure!(counted(rig.agent(0)?, "partial_checksum")? > 0.0, "none was left to tc");
    Ok(())
}
