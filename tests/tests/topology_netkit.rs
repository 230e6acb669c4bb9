//! Pods behind netkit: in mode l2 they ask and answer as behind a veth, in mode l3 the agent reports the problem to the
//! operator.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::kinds::Kind;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, askers};
use lb_tests::topology::{Builder, Family, Shape, Topology, Wire};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;

in_both_shapes!(
    pods_behind_netkit_ask_and_answer,
    pods_behind_netkit_ask_and_answer_past_the_stack,
);

const SOON: Duration = Duration::from_secs(30);

const fn topology(shape: Shape) -> Builder {
    Topology::builder(shape).wire(Wire::NetkitL2)
}

fn pods_behind_netkit_ask_and_answer(shape: Shape) -> Result<()> {
    if Kind::Netkit.is_skipped()? {
        return Ok(());
    }
    let mut rig = Rig::build(topology(shape))?;
    questions_are_answered(&mut rig, &[])
}

/// With the stack bypass, the kernel delivers packets into the pod's own network namespace (`bpf_redirect_peer`).
fn pods_behind_netkit_ask_and_answer_past_the_stack(shape: Shape) -> Result<()> {
    if Kind::Netkit.is_skipped()? {
        return Ok(());
    }
    let mut rig = Rig::build(topology(shape))?;
    let configuration = rig.configuration("bypass: 'on'")?;
    questions_are_answered(&mut rig, &[&configuration])?;
    ensure!(
        rig.agent(0)?.metric(&["lb_datapath_packets_total", "pod_ingress", "redirected"])? > 0.5
    );
    Ok(())
}

/// A pod, its host and an external client use a pod of the same node, a pod of the other node, and the client pod
/// itself: through new sockets, and again through one that stays open.
fn questions_are_answered(rig: &mut Rig, flags: &[&str]) -> Result<()> {
    let mut services = Vec::new();
    for ((name, node, pod), index) in
        [("near", 0, 1), ("far", 1, 1), ("own", 0, 0)].into_iter().zip(10_u8..)
    {
        let service = Service::new(name, index)?.port(80, TARGET);
        let service = service.node_port(30_000 + u16::from(index)).pods(&[rig.pod(node, pod)?]);
        rig.manifests().apply(&service)?;
        services.push((name, service, rig.pod(node, pod)?.name().to_owned()));
    }
    rig.start_agents(flags)?;
    wait_until_ok(SOON, "netkits have the programs of pods", || {
        let status = rig.agent(0)?.exit_said(&["status"])?;
        for pod in rig.node(0)?.pods() {
            let expected = ["Interface", pod.device(), "pod", "attached"];
            let words = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            ensure!(words.into_iter().any(|words| words.starts_with(&expected)), "{status}");
        }
        Ok(())
    })?;
    for ((name, service, backend), port) in services.iter().zip(30_010..) {
        for (from, question) in askers(rig, service, port)? {
            let what = || format!("{} asks {name}: {question:?}", from.name());
            let answer = ask(from, question).with_context(what)?;
            ensure!(answer.server == *backend && answer.peer == question.to, "{answer:?}");
            let kept = from.peer().keep(question).with_context(what)?;
            for _ in 0..3 {
                let answer = kept.ask().with_context(what)?;
                ensure!(answer.server == *backend && answer.peer == question.to, "{answer:?}");
            }
        }
        for family in Family::ALL {
            let large = Ask::tcp(service.frontend(family)).sized(300_000, 300_000);
            drop(ask(rig.pod(0, 0)?, large.within(30_000))?);
        }
    }
    Ok(())
}

#[test]
fn netkit_in_mode_l3_is_a_problem_that_names_pod_and_remedy() -> Result<()> {
    if Kind::Netkit.is_skipped()? {
        return Ok(());
    }
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(1).wire(Wire::NetkitL3);
    let mut rig = Rig::build(topology)?;
    rig.start_agents(&[])?;
    let pod = rig.pod(0, 0)?;
    let problem = format!("interface eth0 of pod network namespace {}", pod.netns().name());
    let device = format!("its other end {}", pod.device());
    wait_until_ok(SOON, "status names interface, namespace and remedy", || {
        let status = rig.agent(0)?.exit_said(&["status"])?;
        let mut problems = status.lines().filter(|line| line.starts_with("Problem"));
        let line = problems.find(|line| line.contains(&problem)).context(status.clone())?;
        ensure!(line.contains("is a netkit in mode l3"), "{line}");
        ensure!(line.contains(&device) && line.contains("use mode l2"), "{line}");
        let about = status.lines().filter(|line| line.contains(pod.device())).count();
        ensure!(about == 1, "more than one line about {}: {status}", pod.device());
        // The metric and /healthz report it too.
        rig.agent(0)?.has_problems(1)
    })
}
