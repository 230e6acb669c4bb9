//! Changes of endpoints, ports and Services while packets flow.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::join_all::join_all;
use lb_tests::manifest::Service;
use lb_tests::rig::{self, Rig, TARGET, answered_by, matrix, servers, until};
use lb_tests::topology::{Family, Member, Shape};
use lb_tests::traffic::{Ask, Failure, Protocol};
use lb_tests::wait::wait_until;

const NODE_PORT: u16 = 30_080;
/// The deadline for a change to reach sockets that stay open.
const SOON: Duration = Duration::from_secs(30);

in_both_shapes!(
    new_flows_follow_a_changed_backend,
    tcp_connection_outlives_its_endpoint,
    connections_go_on_when_their_flows_are_forgotten,
    udp_flow_moves_on_when_its_endpoint_leaves,
    socket_that_connects_early_or_stays_is_served_whatever_becomes_of_endpoints,
    udp_flow_that_was_refused_is_answered_once_there_is_an_endpoint,
    changed_target_port_is_followed,
    deleted_service_is_gone_and_comes_back,
    no_question_fails_while_backends_come_and_go,
);

fn web() -> Result<Service> {
    Ok(Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT))
}

/// The clients and their questions: a pod, the host of node-a, and the external client.
fn askers<'a>(rig: &'a Rig, web: &Service, protocol: Protocol) -> Result<Vec<(&'a Member, Ask)>> {
    let all = rig::askers(rig, web, NODE_PORT)?.into_iter();
    Ok(all.filter(|(_, question)| question.protocol == protocol).collect())
}

fn new_flows_follow_a_changed_backend(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let before = web()?.pods(&[rig.pod(0, 1)?]);
    let after = web()?.pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&before])?;
    for protocol in Protocol::ALL {
        for (from, question) in askers(&rig, &before, protocol)? {
            rig.change(&before, from, question, answered_by("pod-a2"))?;
            rig.change(&after, from, question, answered_by("pod-b2"))?;
        }
    }
    Ok(())
}

fn tcp_connection_outlives_its_endpoint(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let before = web()?.pods(&[rig.pod(0, 1)?]);
    let after = web()?.pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&before])?;
    for (from, question) in askers(&rig, &before, Protocol::Tcp)? {
        rig.change(&before, from, question, answered_by("pod-a2"))?;
        let kept = from.peer().keep(question)?;
        ensure!(kept.ask()?.server == "pod-a2");
        rig.change(&after, from, question, answered_by("pod-b2"))?;
        let later = kept.ask()?;
        ensure!(later.server == "pod-a2", "{} {}: {later:?}", from.name(), question.to);
        rig.change(&web()?, from, question, |outcome| *outcome == Err(Failure::Refused))?;
        ensure!(kept.ask()?.server == "pod-a2", "{} {}", from.name(), question.to);
    }
    Ok(())
}

/// A packet in the middle of a connection without a flow entry must reach the same backend as before. The entry may
/// have been evicted, or the table lost.
fn connections_go_on_when_their_flows_are_forgotten(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web()?.pods(&rig.pods());
    let rig = rig.start(&[&web])?;
    let mut open = Vec::new();
    for _ in 0..8 {
        for (from, question) in askers(&rig, &web, Protocol::Tcp)? {
            let kept = from.peer().keep(question)?;
            open.push((kept.ask()?.server, format!("{} asks {}", from.name(), question.to), kept));
        }
    }
    let said = rig.agent(0)?.command(&["ct", "flush", "--all"])?;
    ensure!(said.contains("deleted"), "{said}");
    for (server, who, kept) in &open {
        let answer = kept.ask().with_context(|| who.clone())?;
        ensure!(answer.server == *server, "{who}: {server} before, {} after", answer.server);
    }
    Ok(())
}

fn udp_flow_moves_on_when_its_endpoint_leaves(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let before = web()?.pods(&[rig.pod(0, 1)?]);
    let after = web()?.pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&before])?;
    for (from, question) in askers(&rig, &before, Protocol::Udp)? {
        for question in [question, question.unconnected()] {
            rig.change(&before, from, question, answered_by("pod-a2"))?;
            let kept = from.peer().keep(question)?;
            ensure!(kept.ask()?.server == "pod-a2");
            rig.change(&after, from, question, answered_by("pod-b2"))?;
            // The old flow ends right after the switch; a question may fall between the two.
            let mut later = None;
            wait_until(SOON, "the flow moves on", || {
                answered_by("pod-b2")(later.insert(kept.ask())).then_some(())
            })
            .with_context(|| format!("{} asks {question:?}: {later:?}", from.name()))?;
        }
    }
    Ok(())
}

/// A statsd or syslog client connects once, perhaps before there is any endpoint.
fn socket_that_connects_early_or_stays_is_served_whatever_becomes_of_endpoints(
    shape: Shape,
) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let empty = web()?;
    let rig = rig.start(&[&empty])?;
    let stages =
        [(rig.pod(0, 1)?, "pod-a2"), (rig.pod(1, 1)?, "pod-b2"), (rig.pod(0, 1)?, "pod-a2")];
    let mut open = Vec::new();
    for (from, question) in askers(&rig, &empty, Protocol::Udp)? {
        rig.change(&empty, from, question, |outcome| *outcome == Err(Failure::Refused))?;
        open.push((from, question, from.peer().keep(question)?));
    }
    for (pod, name) in stages {
        rig.manifests().apply(&web()?.pods(&[pod]))?;
        for (from, question, kept) in &open {
            let mut last = None;
            wait_until(SOON, "the socket is answered", || {
                answered_by(name)(last.insert(kept.ask())).then_some(())
            })
            .with_context(|| format!("{} asks {question:?} for {name}: {last:?}", from.name()))?;
            let answer = kept.ask()?;
            ensure!(answer.peer == question.to && answer.server == name, "{answer:?}");
        }
    }
    Ok(())
}

/// Contract 5, CT5: the first endpoint is added while the client is already sending.
fn udp_flow_that_was_refused_is_answered_once_there_is_an_endpoint(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let empty = web()?;
    let after = web()?.pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&empty])?;
    for (from, question) in askers(&rig, &empty, Protocol::Udp)? {
        // A port outside the range for masquerading and outside the range from which the kernel assigns ports.
        let question = question.from_port(61_000);
        rig.change(&empty, from, question, |outcome| *outcome == Err(Failure::Refused))?;
        rig.change(&after, from, question, answered_by("pod-b2"))?;
    }
    Ok(())
}

fn changed_target_port_is_followed(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let before = web()?.pods(&[rig.pod(1, 1)?]);
    let after = before.clone().retarget(9_090);
    let rig = rig.start(&[&before])?;
    let (pod, backend) = (rig.pod(0, 0)?, rig.pod(1, 1)?);
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, before.frontend(family));
        rig.change(&before, pod, question, Result::is_ok)?;
        backend.peer().stop_serving(protocol, &backend.addresses().both(), TARGET)?;
        backend.peer().serve(protocol, &backend.addresses().both(), 9_090)?;
        rig.change(&after, pod, question, Result::is_ok)?;
        backend.peer().serve(protocol, &backend.addresses().both(), TARGET)?;
    }
    Ok(())
}

fn deleted_service_is_gone_and_comes_back(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web()?.pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&web])?;
    for protocol in Protocol::ALL {
        let askers = askers(&rig, &web, protocol)?;
        for _ in 0..2 {
            rig.manifests().apply(&web)?;
            drop(join_all(
                askers
                    .iter()
                    .map(|(from, question)| || until(from, *question, answered_by("pod-b2"))),
            )?);
            rig.manifests().delete(&web)?;
            drop(join_all(
                askers.iter().map(|(from, question)| || until(from, *question, Result::is_err)),
            )?);
        }
    }
    Ok(())
}

fn no_question_fails_while_backends_come_and_go(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let all = web()?.pods(&rig.pods());
    let rig = rig.start(&[&all])?;
    for protocol in Protocol::ALL {
        let askers = askers(&rig, &all, protocol)?;
        let loads: Vec<_> = askers
            .iter()
            .map(|(from, question)| from.peer().load(*question, false, 2))
            .collect::<Result<_, _>>()?;
        for round in 0..6 {
            let (pods, skipped) = (rig.pods(), round % 4);
            let some: Vec<_> =
                (0..4).filter(|i| *i != skipped).filter_map(|i| pods.get(i).copied()).collect();
            rig.manifests().apply(&all.clone().pods(&some))?;
            // Waits until each change was seen, because of two quick changes only the last might be programmed.
            let (from, question) = (rig.pod(1, 0)?, Ask::new(protocol, all.frontend(Family::V4)));
            let expected: BTreeSet<String> = some.iter().map(|pod| pod.name().to_owned()).collect();
            wait_until(SOON, "the change reaches packets", || {
                servers(from, question, 40).is_ok_and(|found| found == expected).then_some(())
            })?;
        }
        for ((from, question), load) in askers.iter().zip(loads) {
            let what = || format!("{} asks {}", from.name(), question.to);
            drop(load.finish_without_loss().with_context(what)?);
        }
    }
    Ok(())
}
