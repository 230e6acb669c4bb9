//! `ClientIP` affinity: a client reaches the same backend through every frontend and every hook.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, Shared, TARGET, ask, matrix, servers, until};
use lb_tests::topology::{Family, Member, Shape};
use lb_tests::traffic::{Answer, Ask, Failure};
use lb_tests::wait::wait_until;
use serde_json::Value;

const NODE_PORT: u16 = 30_080;
const SOON: Duration = Duration::from_mins(1);
/// Source ports of processes, outside the range from which the kernel assigns ports.
const PORTS: [u16; 5] = [61_991, 61_992, 61_993, 61_994, 61_995];

in_both_shapes!(
    pod_stays_with_its_backend,
    client_outside_stays_with_its_backend,
    host_process_stays_with_its_backend,
    frontends_of_a_service_share_affinity,
    backend_that_leaves_is_forgotten_at_once,
    affinity_ends_after_its_time,
    affinity_that_is_switched_off_ends_for_new_flows,
    rows_of_clients_that_stay_away_are_removed,
    rows_go_with_their_service,
);

fn rig(shape: Shape, seconds: u32) -> Result<(Shared, Service)> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    let web = web.affinity(seconds);
    Ok((rig.start(&[&web])?, web))
}

/// Asks repeatedly through new sockets, and returns the only server that answered.
fn only_server(from: &Member, question: Ask) -> Result<String> {
    let found = servers(from, question, 20)?;
    ensure!(found.len() == 1, "{} asks {}: {found:?}", from.name(), question.to);
    found.into_iter().next().context("no server")
}

fn pod_stays_with_its_backend(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape, 600)?;
    for (family, protocol) in matrix() {
        for pod in rig.pods() {
            drop(only_server(pod, Ask::new(protocol, web.frontend(family)))?);
        }
    }
    Ok(())
}

fn client_outside_stays_with_its_backend(shape: Shape) -> Result<()> {
    let (rig, _) = rig(shape, 600)?;
    for (family, protocol) in matrix() {
        let to = rig.node(0)?.addresses().socket(family, NODE_PORT);
        drop(only_server(rig.client(), Ask::new(protocol, to))?);
    }
    Ok(())
}

fn host_process_stays_with_its_backend(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape, 600)?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        let connected = only_server(rig.node(0)?, question)?;
        let unconnected = only_server(rig.node(0)?, question.unconnected())?;
        ensure!(connected == unconnected, "{family} {protocol}: {connected}, {unconnected}");
        for port in PORTS {
            // A socket that is bound to a port is not served by the hook; its packets are translated.
            let bound = ask(rig.node(0)?, question.from_port(port))?.server;
            ensure!(connected == bound, "{family} {protocol} {port}: {connected}, {bound}");
        }
    }
    Ok(())
}

fn frontends_of_a_service_share_affinity(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape, 600)?;
    let node = rig.node(0)?;
    for (family, protocol) in matrix() {
        for from in [&**rig.pod(0, 0)?, node.host()] {
            let by_cluster_ip = only_server(from, Ask::new(protocol, web.frontend(family)))?;
            let node_port = Ask::new(protocol, node.addresses().socket(family, NODE_PORT));
            let by_node_port = only_server(from, node_port)?;
            let name = from.name();
            ensure!(
                by_cluster_ip == by_node_port,
                "{name} {family} {protocol}: {by_cluster_ip}, {by_node_port}"
            );
        }
    }
    Ok(())
}

fn backend_that_leaves_is_forgotten_at_once(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape, 600)?;
    for (family, protocol) in matrix() {
        let (pod, question) = (rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)));
        let first = only_server(pod, question)?;
        let others: Vec<_> = rig.pods().into_iter().filter(|pod| pod.name() != first).collect();
        let left = |outcome: &Result<Answer, Failure>| {
            outcome.as_ref().is_ok_and(|answer| answer.server != first)
        };
        rig.change(&web.clone().pods(&others), pod, question, left)?;
        let second = only_server(pod, question)?;
        ensure!(second != first, "{family} {protocol}");
        // The backend that returns is not remembered.
        rig.manifests().apply(&web)?;
        let returned = Ask::new(protocol, web.frontend(family));
        until(
            rig.client(),
            Ask::new(protocol, rig.node(0)?.addresses().socket(family, NODE_PORT)),
            Result::is_ok,
        )?;
        ensure!(only_server(pod, returned)? == second, "{family} {protocol}");
    }
    Ok(())
}

/// With a timeout of one second, a client that asks less often reaches several backends after a while.
fn affinity_ends_after_its_time(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape, 1)?;
    for (family, protocol) in matrix().filter(|(family, _)| *family == Family::V4) {
        let question = Ask::new(protocol, web.frontend(family));
        let pod = rig.pod(0, 0)?;
        // Asked once: more than a second may pass between two of several questions.
        let first = ask(pod, question)?.server;
        let mut last = Instant::now();
        wait_until(SOON, "another backend after the affinity ended", || {
            // Each question restarts the timeout, so there must be more than a second between two of them.
            if last.elapsed() < Duration::from_millis(1_200) {
                return None;
            }
            last = Instant::now();
            ask(pod, question).is_ok_and(|answer| answer.server != first).then_some(())
        })?;
    }
    Ok(())
}

fn affinity_that_is_switched_off_ends_for_new_flows(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape, 600)?;
    let without = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    for (family, protocol) in matrix() {
        let (pod, question) = (rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)));
        rig.manifests().apply(&web)?;
        wait_until(SOON, "affinity is on", || {
            servers(pod, question, 20).is_ok_and(|found| found.len() == 1).then_some(())
        })?;
        rig.manifests().apply(&without)?;
        wait_until(SOON, "affinity is off", || {
            servers(pod, question, 40).is_ok_and(|found| found.len() > 1).then_some(())
        })?;
    }
    Ok(())
}

/// The rows of `AFFINITY` on node-a: the id of the Service port, and its name.
fn rows(rig: &Rig) -> Result<Vec<(u64, String)>> {
    let said = rig.agent(0)?.command(&["affinity", "list", "-o", "json"])?;
    let all: Vec<Value> = serde_json::from_str(&said)?;
    let row = |row: &Value| {
        let service = row["service"].as_str().unwrap_or_default();
        Some((row["id"].as_u64()?, service.to_owned()))
    };
    all.iter().map(|it| row(it).with_context(|| format!("a row without id: {it}"))).collect()
}

/// The ids of the ports of a Service for which node-a remembers clients: one for each family and transport.
fn ports_with_rows(rig: &Rig, service: &str) -> Result<BTreeSet<u64>> {
    let rows = rows(rig)?.into_iter();
    let of = rows.filter(|(_, name)| name.starts_with(&format!("default/{service}:")));
    Ok(of.map(|(id, _)| id).collect())
}

/// A pod and the host ask a Service in every family and with every transport.
fn ask_everywhere(rig: &Rig, service: &Service) -> Result<()> {
    for (family, protocol) in matrix() {
        for from in [&**rig.pod(0, 0)?, rig.node(0)?.host()] {
            drop(ask(from, Ask::new(protocol, service.frontend(family)))?);
        }
    }
    Ok(())
}

/// The table is large enough that no row is displaced. The sweep removes the expired rows, and only them.
fn rows_of_clients_that_stay_away_are_removed(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape, 600)?;
    let short = Service::new("short", 11)?.port(80, TARGET).pods(&rig.pods()).affinity(2);
    let rig = rig.start(&[&short])?;
    ask_everywhere(&rig, &web)?;
    let kept = ports_with_rows(&rig, "web")?;
    ensure!(kept.len() == 4, "{kept:?}");
    let found = wait_until(SOON, "all clients are remembered", || {
        ask_everywhere(&rig, &short).ok()?;
        ports_with_rows(&rig, "short").ok().filter(|found| found.len() == 4)
    })?;
    wait_until(SOON, "all clients are forgotten", || {
        let rows = rows(&rig).ok()?;
        (!rows.iter().any(|(id, _)| found.contains(id))).then_some(())
    })?;
    ensure!(ports_with_rows(&rig, "web")? == kept, "of {kept:?} some are gone");
    Ok(())
}

/// The rows are removed at once, without a sweep, also while a connection keeps the frontend.
fn rows_go_with_their_service(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape, 600)?;
    let gone = Service::new("gone", 11)?.port(80, TARGET).pods(&rig.pods()).affinity(600);
    let rig = rig.start(&[&gone])?;
    for service in [&web, &gone] {
        ask_everywhere(&rig, service)?;
    }
    let (kept, found) = (ports_with_rows(&rig, "web")?, ports_with_rows(&rig, "gone")?);
    ensure!(kept.len() == 4 && found.len() == 4, "{kept:?} {found:?}");
    let open = Family::ALL.map(|family| {
        let open = rig.pod(0, 0)?.peer().keep(Ask::tcp(gone.frontend(family)))?;
        Ok::<_, anyhow::Error>((open.ask()?.server, open))
    });
    rig.manifests().delete(&gone)?;
    // An agent handles changes in order: once the second one is done, so is the first.
    rig.until_programmed()?;
    rig.manifests().apply(&web.pods(&rig.pods()[1..]))?;
    rig.until_programmed()?;
    let left: Vec<_> = rows(&rig)?.into_iter().filter(|(id, _)| found.contains(id)).collect();
    ensure!(left.is_empty(), "{left:?}");
    ensure!(ports_with_rows(&rig, "web")? == kept, "of {kept:?} some are gone");
    for open in open {
        let (server, open) = open?;
        ensure!(open.ask()?.server == server);
    }
    Ok(())
}
