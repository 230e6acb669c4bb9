//! The agent on a node that changes, with invalid input, and its answers to queries about its work.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::Maps;
use lb_tests::agent::{Agent, Source};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Ask, Protocol};
use lb_tests::wait::{wait_until, wait_until_ok};
use nix::net::if_::if_nametoindex;
use serde_json::Value;

/// The deadline for the agent to follow a change.
const SOON: Duration = Duration::from_secs(30);

in_both_shapes!(
    pod_that_appears_later_is_served,
    pods_are_attached_by_the_event_that_announces_them,
    device_that_vanishes_leaves_the_others_served,
    pods_that_leave_are_no_fault,
    pods_that_leave_at_once_are_no_fault,
    only_devices_that_are_named_are_those_of_pods,
    malformed_manifest_leaves_other_services_alone,
    status_and_list_speak_with_and_without_an_agent,
    second_agent_on_one_node_is_refused,
    agent_that_must_listen_and_cannot_ends,
    verdicts_and_entries_are_counted,
    packets_are_logged_when_asked_for,
    three_capabilities_are_enough_and_missing_ones_are_named,
);

/// Starts a rig of one node, whose agent all tests of this file examine.
fn start(shape: Shape) -> Result<(Rig, Service)> {
    start_with(shape, 2)
}

/// Starts a rig with `pods` pods; the second one is the backend.
fn start_with(shape: Shape, pods: u8) -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(shape).nodes(1).pods(pods))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    Ok((rig.start(&[&web])?, web))
}

fn pod_that_appears_later_is_served(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    drop(rig.add_pod(0)?.name().to_owned());
    let late = rig.pod(0, 2)?;
    for (family, protocol) in matrix() {
        until(late, Ask::new(protocol, web.frontend(family)), Result::is_ok)?;
    }
    Ok(())
}

/// Interfaces are listed every half minute, and failures are retried every second. A new pod must not depend on either.
fn pods_are_attached_by_the_event_that_announces_them(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let attached = |rig: &Rig, by: &str| -> Result<f64> {
        rig.agent(0)?.metric(&["lb_devices_attached_total", &format!("source=\"{by}\"")])
    };
    let before = attached(&rig, "event")?;
    for count in 1..=3 {
        drop(rig.add_pod(0)?.name().to_owned());
        until(rig.pod(0, 1 + count)?, Ask::tcp(web.frontend(Family::V6)), Result::is_ok)?;
    }
    let (by_event, by_retry) = (attached(&rig, "event")? - before, attached(&rig, "retry")?);
    // A periodic list may by chance coincide with the new interface.
    ensure!(by_event > 1.5 && by_retry < 0.5, "{by_event} by events, {by_retry} tried again");
    Ok(())
}

fn device_that_vanishes_leaves_the_others_served(shape: Shape) -> Result<()> {
    let (mut rig, web) = start_with(shape, 3)?;
    let device = rig.pod(0, 2)?.device().to_owned();
    let index = rig.node(0)?.home().run_in(|| if_nametoindex(device.as_str()))??;
    let before = traces(&rig, index, &device)?;
    ensure!(before.len() == 4, "traces before its removal: {before:?}");
    rig.node(0)?.netns().ip(&format!("link delete {device}"))?;
    wait_until(SOON, "no state of the interface is left", || {
        traces(&rig, index, &device).is_ok_and(|traces| traces.is_empty()).then_some(())
    })?;
    drop(rig.add_pod(0)?.name().to_owned());
    until(rig.pod(0, 3)?, Ask::tcp(web.frontend(Family::V4)), Result::is_ok)?;
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V6)))?);
    rig.take_agent(0)?.ensure_running()
}

/// An interface disappears before the agent gets the event. That happens with every pod that ends, and is not a fault.
fn pods_that_leave_are_no_fault(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    for count in 2..6 {
        let device = rig.add_pod(0)?.device().to_owned();
        until(rig.pod(0, count)?, Ask::tcp(web.frontend(Family::V4)), Result::is_ok)?;
        let index = rig.node(0)?.home().run_in(|| if_nametoindex(device.as_str()))??;
        // Network plug-ins delete the pod's end.
        rig.pod(0, count)?.netns().ip("link delete eth0")?;
        wait_until(SOON, "no state of the interface is left", || {
            traces(&rig, index, &device).is_ok_and(|traces| traces.is_empty()).then_some(())
        })?;
    }
    rig.agent(0)?.warned_of_nothing()
}

/// Interfaces that exist for less than a millisecond: most are gone before the agent handles them.
fn pods_that_leave_at_once_are_no_fault(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let pod = rig.pod(0, 0)?.netns().name().to_owned();
    let lines: Vec<String> = (0..100)
        .map(|number| {
            format!(
                "link add brief{number} type veth peer name brief netns {pod}
                 link set brief{number} up\nlink delete brief{number}"
            )
        })
        .collect();
    rig.node(0)?.netns().ip(&lines.join("\n"))?;
    // A pod that is added later is served after all of these were handled.
    drop(rig.add_pod(0)?.name().to_owned());
    until(rig.pod(0, 2)?, Ask::tcp(web.frontend(Family::V4)), Result::is_ok)?;
    rig.agent(0)?.warned_of_nothing()
}

/// The traces of an interface on node-a: two links, an entry of `DEVICES`, a line of `status`.
fn traces(rig: &Rig, index: u32, device: &str) -> Result<Vec<String>> {
    let pins = rig.node(0)?.bpf().join(LAYOUT);
    let links = ["ingress", "egress"].map(|direction| format!("links/{index}-{direction}"));
    let mut traces: Vec<String> =
        links.into_iter().filter(|link| pins.join(link).exists()).collect();
    let rows = Maps::open(&pins.join("maps"))?.devices()?;
    traces.extend(rows.iter().filter(|(it, _)| *it == index).map(|(it, _)| format!("row {it}")));
    let status = rig.agent(0)?.command(&["status"])?;
    let (by_name, by_index) = (format!(" {device} "), format!(" #{index} "));
    let names_it = |line: &&str| line.contains(&by_name) || line.contains(&by_index);
    traces.extend(status.lines().filter(names_it).map(str::to_owned));
    Ok(traces)
}

fn only_devices_that_are_named_are_those_of_pods(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&["--pod-device=veth-?1"])?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        drop(ask(rig.pod(0, 0)?, question)?);
        let unserved = rig.pod(0, 1)?.peer().ask(question.within(300));
        ensure!(unserved.is_err(), "a pod of another interface is served: {unserved:?}");
    }
    let status = rig.agent(0)?.command(&["status"])?;
    ensure!(status.contains("veth-a1 "), "{status}");
    ensure!(!status.contains("veth-a2 "), "{status}");
    Ok(())
}

fn malformed_manifest_leaves_other_services_alone(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    rig.manifests().write_text("broken", "kind: [Service\n")?;
    rig.manifests().write_text("misspelt", "apiVersion: v1\nkind: Servcie\n")?;
    rig.manifests().write_text("nameless", "apiVersion: v1\nkind: Service\nspec: {}\n")?;
    let other = Service::new("other", 11)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let question = Ask::tcp(other.frontend(Family::V4));
    rig.change(&other, rig.pod(0, 0)?, question, Result::is_ok)?;
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)))?);
    let mut agent = rig.take_agent(0)?;
    agent.ensure_running()?;
    let log = agent.log_end(200);
    ensure!(log.contains("broken.yaml"), "the log does not name the file: {log}");
    ensure!(log.contains("misspelt.yaml: line 1, kind: \"v1 Servcie\""), "not named: {log}");
    Ok(())
}

fn status_and_list_speak_with_and_without_an_agent(shape: Shape) -> Result<()> {
    let (mut rig, _) = start(shape)?;
    let mut agent = rig.take_agent(0)?;
    for stopped in [false, true] {
        if stopped {
            agent.stop()?;
        }
        let status = agent.command(&["status"])?;
        ensure!(!status.trim().is_empty(), "status says nothing");
        let table = agent.command(&["lb", "list"])?;
        ensure!(table.contains("10.96.0.10"), "no ClusterIP in:\n{table}");
        let json = agent.command(&["lb", "list", "-o", "json"])?;
        drop(serde_json::from_str::<Value>(&json)?);
        ensure!(json.contains("fd00:10:96::10"), "no ClusterIP in:\n{json}");
    }
    Ok(())
}

fn second_agent_on_one_node_is_refused(shape: Shape) -> Result<()> {
    let (rig, web) = start(shape)?;
    let source = Source::Manifests(rig.manifests().directory());
    let mut second = Agent::spawn(rig.node(0)?, source, &[])?;
    let first = format!("in use by another agent (process {})", rig.agent(0)?.id());
    second.refuses_to_run(&[&first, "stop it first"])?;
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)))?);
    Ok(())
}

fn agent_that_must_listen_and_cannot_ends(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape).nodes(1))?;
    let taken = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
    rig.node(0)?.peer().serve(Protocol::Tcp, &taken, 10_256)?;
    let source = Source::Manifests(rig.manifests().directory());
    let mut agent = Agent::spawn(rig.node(0)?, source, &["--bind-address-hard-fail"])?;
    wait_until(SOON, "the agent ends", || agent.ensure_running().is_err().then_some(()))?;
    let log = agent.log_end(5);
    ensure!(
        log.contains("cannot listen on 127.0.0.1:10256 (health)"),
        "the log does not name the reason: {log}"
    );
    Ok(())
}

fn verdicts_and_entries_are_counted(shape: Shape) -> Result<()> {
    let (rig, web) = start(shape)?;
    let agent = rig.agent(0)?;
    let before = agent.metric(&["new_flow"])?;
    for _ in 0..10 {
        drop(ask(rig.pod(0, 0)?, Ask::new(Protocol::Tcp, web.frontend(Family::V4)))?);
    }
    let counted = agent.metric(&["new_flow"])? - before;
    ensure!((counted - 10.0).abs() < 0.5, "{counted} new flows were counted, not 10");
    let names: Vec<String> = agent.metrics()?.into_keys().collect();
    ensure!(names.iter().any(|name| name.starts_with("lb_drops_total{reason=")), "{names:?}");
    // Closed connections are forgotten, so one stays open; the agent counts the entries once a second.
    let _kept = rig.pod(0, 0)?.peer().keep(Ask::tcp(web.frontend(Family::V4)))?;
    wait_until_ok(SOON, "metrics show entries and capacity of maps", || {
        for map in ["SERVICES", "MAGLEV", "BACKENDS", "FLOWS4"] {
            let of = |name| agent.metric(&[name, &format!("map=\"{map}\"")]);
            let (used, capacity) = (of("lb_map_entries")?, of("lb_map_capacity")?);
            ensure!(used > 0.5 && used < capacity, "{map}: {used} entries of {capacity}");
        }
        Ok(())
    })
}

fn packets_are_logged_when_asked_for(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&["--packet-log", "all"])?;
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)))?);
    let agent = rig.agent(0)?;
    let named = "packet hook=\"pod_ingress\" verdict=\"translated\" reason=\"new_flow\" index=";
    wait_until(SOON, "the packet by name in the agent's log", || {
        agent.log_end(500).contains(named).then_some(())
    })
}

fn three_capabilities_are_enough_and_missing_ones_are_named(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    agent.confine("-all,+net_admin");
    agent.spawn_again(&[])?;
    agent.refuses_to_run(&["CAP_BPF, CAP_PERFMON missing: run as root"])?;
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)))?);

    agent.confine("-all,+bpf,+net_admin,+perfmon");
    agent.start_again()?;
    let late = Service::new("late", 12)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let question = Ask::tcp(late.frontend(Family::V6));
    rig.change(&late, rig.pod(0, 0)?, question, Result::is_ok)
}
