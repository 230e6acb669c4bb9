//! The end, crash, restart and cleanup of an agent under traffic.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lb_agent::datapath::LAYOUT;
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, askers, matrix, until};
use lb_tests::topology::{Family, Member, Node, Pod, Shape, Topology};
use lb_tests::traffic::{Ask, Load, PAUSE};
use lb_tests::wait::wait_until;

const NODE_PORT: u16 = 30_080;
const SOON: Duration = Duration::from_secs(30);
/// Flow table sizes with room for every flow of a run of minutes; a smaller table might lose some at a change of size.
const SIZES: [&str; 2] = ["FLOWS=262144", "FLOWS=524288"];

in_both_shapes!(
    traffic_goes_on_while_the_agent_is_stopped_and_started,
    traffic_goes_on_while_the_agent_is_killed_and_started,
    traffic_goes_on_while_the_data_path_of_another_layout_is_taken_over,
    traffic_goes_on_while_another_build_of_the_same_layout_is_taken_over,
    traffic_goes_on_while_programs_of_another_build_come_and_go,
    traffic_goes_on_while_maps_get_another_size,
    connections_go_on_where_a_smaller_table_has_no_room_for_them,
    a_size_that_was_asked_for_by_a_run_that_was_killed_is_taken_back,
    another_configuration_is_taken_over_under_traffic,
    change_during_absence_is_caught_up,
    cleanup_removes_everything,
    cleanup_concerns_one_node_and_no_running_agent,
);

fn start(shape: Shape) -> Result<(Rig, Service)> {
    start_with(shape, Rig::pods)
}

/// As [`start`], with some of the pods as backends.
fn start_with(shape: Shape, backends: impl Fn(&Rig) -> Vec<&Pod>) -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&backends(&rig));
    Ok((rig.start(&[&web])?, web))
}

/// All clients ask continuously, through kept and through new sockets, while the agent of node-a is ended by `end` and
/// restarted, [`times`] times.
fn nothing_is_lost(shape: Shape, end: impl Fn(&mut Agent, &Node) -> Result<()>) -> Result<()> {
    while_everybody_asks(start(shape)?, times(), end)
}

/// The number of restarts that are all alike.
fn times() -> usize {
    campaign::size(1, 10)
}

/// The number of restarts of which each undoes the one before.
fn times_there_and_back() -> usize {
    campaign::size(2, 10)
}

/// As [`nothing_is_lost`], for flows that move to another map. A hairpin answer may be lost at that moment (ADR 0005),
/// so the client pod is not a backend here.
fn nothing_is_lost_on_the_move(
    shape: Shape,
    times: usize,
    end: impl Fn(&mut Agent, &Node) -> Result<()>,
) -> Result<()> {
    while_everybody_asks(start_with(shape, |rig| rig.pods().split_off(1))?, times, end)
}

fn while_everybody_asks(
    (mut rig, web): (Rig, Service),
    times: usize,
    end: impl Fn(&mut Agent, &Node) -> Result<()>,
) -> Result<()> {
    let mut agent = rig.take_agent(0)?;
    let mut loads: Vec<(&Member, Ask, Load<'_>)> = Vec::new();
    for (from, question) in askers(&rig, &web, NODE_PORT)? {
        for kept in [true, false] {
            loads.push((from, question, from.peer().load(question, kept, PAUSE)?));
        }
    }
    for _ in 0..times {
        end(&mut agent, rig.node(0)?)?;
        agent.start_again()?;
    }
    for (from, question, load) in loads {
        let what = || format!("{} asks {} by {}", from.name(), question.to, question.protocol);
        drop(load.finish_without_loss().with_context(what)?);
    }
    Ok(())
}

fn traffic_goes_on_while_the_agent_is_stopped_and_started(shape: Shape) -> Result<()> {
    nothing_is_lost(shape, |agent, _| agent.stop())
}

fn traffic_goes_on_while_the_agent_is_killed_and_started(shape: Shape) -> Result<()> {
    nothing_is_lost(shape, |agent, _| agent.kill9())
}

/// A renamed directory of pins looks like the state that an agent of another version would have left.
fn traffic_goes_on_while_the_data_path_of_another_layout_is_taken_over(shape: Shape) -> Result<()> {
    nothing_is_lost_on_the_move(shape, times(), |agent, node| {
        agent.stop()?;
        std::fs::rename(node.bpf().join(LAYOUT), node.bpf().join("v0"))?;
        Ok(())
    })
}

/// Two builds use the same name for layouts that differ in one map: the other maps are carried over, and list commands
/// of one build do not read maps of the other.
fn traffic_goes_on_while_another_build_of_the_same_layout_is_taken_over(
    shape: Shape,
) -> Result<()> {
    nothing_is_lost_on_the_move(shape, times(), |agent, node| {
        agent.stop()?;
        let fingerprints = node.bpf().join(LAYOUT).join("meanings");
        for mark in std::fs::read_dir(&fingerprints)?.flatten() {
            if mark.file_name().to_string_lossy().starts_with("COUNTERS-") {
                std::fs::rename(mark.path(), fingerprints.join("COUNTERS-0123456789abcdef"))?;
            }
        }
        let (code, said) = agent.exit_code(&["lb", "list"])?;
        ensure!(code == 3 && said.contains("the data path of another build"), "{code}: {said}");
        Ok(())
    })
}

/// Programs with packet logging differ from those without it, as those of another build would.
fn traffic_goes_on_while_programs_of_another_build_come_and_go(shape: Shape) -> Result<()> {
    let flags = std::cell::Cell::new(["off", "drops"]);
    nothing_is_lost(shape, |agent, _| {
        agent.stop()?;
        flags.set({
            let [now, next] = flags.get();
            agent.set_flag("--packet-log", next);
            [next, now]
        });
        Ok(())
    })
}

/// Maps get larger and smaller, and keep their flows.
fn traffic_goes_on_while_maps_get_another_size(shape: Shape) -> Result<()> {
    let sizes = std::cell::Cell::new(SIZES);
    nothing_is_lost_on_the_move(shape, times_there_and_back(), |agent, _| {
        agent.stop()?;
        let [now, next] = sizes.get();
        agent.set_flag("--map-size", now);
        sizes.set([next, now]);
        Ok(())
    })
}

/// The next packet of a connection that did not fit begins its flow again, with the same backend.
fn connections_go_on_where_a_smaller_table_has_no_room_for_them(shape: Shape) -> Result<()> {
    const CONNECTIONS: usize = 60;
    let (mut rig, web) = start(shape)?;
    let mut agent = rig.take_agent(0)?;
    let from = rig.pod(0, 0)?;
    for (family, number) in [(Family::V4, 4), (Family::V6, 6)] {
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS {
            let kept = from.peer().keep(Ask::tcp(web.frontend(family)))?;
            open.push((kept.ask()?.server, kept));
        }
        // The second start finds no older, transient copies of the entries.
        for map in ["TRANSIENT", "FLOWS"] {
            agent.stop()?;
            agent.set_flag("--map-size", &format!("{map}{number}=64"));
            agent.start_again()?;
        }
        let said = agent.log_end(40);
        ensure!(said.contains("entries did not fit into the resized map"), "{said}");
        for (server, kept) in &open {
            let answer = kept.ask()?;
            ensure!(answer.server == *server, "{server} before, {} after", answer.server);
        }
    }
    Ok(())
}

/// The attached programs use the previous size; a run that was killed had moved their map aside.
fn a_size_that_was_asked_for_by_a_run_that_was_killed_is_taken_back(shape: Shape) -> Result<()> {
    let sizes = std::cell::Cell::new(SIZES);
    nothing_is_lost_on_the_move(shape, times(), |agent, node| {
        agent.stop()?;
        let [now, before] = sizes.get();
        agent.set_flag("--map-size", before);
        agent.start_again()?;
        agent.stop()?;
        killed_halfway(agent, node, [before, now])?;
        agent.set_flag("--map-size", before);
        Ok(())
    })
}

/// Requests another size and kills the run between two of its steps. If the run was faster, its change is undone and
/// requested again.
fn killed_halfway(agent: &mut Agent, node: &Node, [before, now]: [&str; 2]) -> Result<()> {
    const TRIES: u32 = 50;
    let maps = node.bpf().join(LAYOUT).join("maps");
    let is_there = |name: &str| maps.join(name).exists();
    for _ in 0..TRIES {
        agent.set_flag("--map-size", now);
        agent.spawn_again(&[])?;
        let is_done = || agent.health("/readyz").is_ok_and(|(status, _)| status == 200);
        let began = Instant::now();
        // Polled without a pause, because a fast machine finishes soon.
        for look in 1_u32.. {
            let is_halfway = is_there("FLOWS4-old") && is_there("FLOWS4");
            if is_halfway || look % 500 == 0 && is_done() {
                break;
            }
            ensure!(began.elapsed() < SOON, "the size is not another:\n{}", agent.log_end(20));
            thread::yield_now();
        }
        agent.kill9()?;
        if is_there("FLOWS4-old") {
            return Ok(());
        }
        agent.set_flag("--map-size", before);
        agent.start_again()?;
        agent.stop()?;
    }
    bail!("{TRIES} runs finished before they were killed")
}

fn another_configuration_is_taken_over_under_traffic(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    rig.manifests().apply(&web)?;
    let file = rig.topology().directory("config")?.join("config.yaml");
    let write = |addresses: &str| {
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        std::fs::write(&file, format!("{head}nodePortAddresses: {addresses}\n"))
    };
    write("[primary]")?;
    let path = file.to_str().context("a path in UTF-8")?;
    rig.start_agents(&["--config", path])?;
    let question = Ask::tcp(rig.node(0)?.addresses().socket(Family::V4, NODE_PORT));
    drop(ask(rig.client(), question)?);
    let agent = rig.take_agent(0)?;
    let process = agent.id();
    let load = rig.pod(0, 0)?.peer().load(Ask::tcp(web.frontend(Family::V6)), false, 2)?;
    write("[no address]")?;
    let named = || agent.log_end(50).contains("is invalid").then_some(());
    wait_until(SOON, "the file that cannot be used is named", named)?;
    drop(ask(rig.client(), question)?);
    write("[172.16.0.0/12, 'fd00:50::/64']")?;
    until(rig.client(), question.within(300), Result::is_err)?;
    drop(load.finish_without_loss()?);
    ensure!(agent.id() == process, "another process");
    Ok(())
}

/// Also by a run that replaces a map of the agent's own entries by a larger one. Each change needs entries that the run
/// before did not have.
fn change_during_absence_is_caught_up(shape: Shape) -> Result<()> {
    let (mut rig, web) = start_with(shape, |rig| rig.pods().split_off(3))?;
    let mut agent = rig.take_agent(0)?;
    for (index, size) in [None, Some("MAGLEV=524288"), Some("BACKENDS=262144")].iter().enumerate() {
        agent.stop()?;
        if let Some(size) = size {
            agent.set_flag("--map-size", size);
        }
        let pods = rig.pods();
        let pod = pods.get(index).context("a pod")?;
        let only = web.clone().pods(&[pod]);
        rig.manifests().apply(&only)?;
        agent.start_again()?;
        for (family, protocol) in matrix() {
            for _ in 0..10 {
                let answer = ask(rig.pod(0, 0)?, Ask::new(protocol, only.frontend(family)))?;
                ensure!(answer.server == pod.name(), "ready, but with the past: {answer:?}");
            }
        }
    }
    Ok(())
}

fn cleanup_removes_everything(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let question = Ask::tcp(web.frontend(Family::V4));
    drop(ask(rig.pod(0, 0)?, question)?);
    let said = agent.command(&["cleanup"])?;
    ensure!(!said.trim().is_empty(), "cleanup does not say what it removed");
    until(rig.pod(0, 0)?, question.within(200), Result::is_err)?;
    // The kernel creates `maps.debug` and `progs.debug` in every bpf filesystem.
    let pins = std::fs::read_dir(rig.node(0)?.bpf())?.flatten().map(|entry| entry.path());
    let left: Vec<_> =
        pins.filter(|pin| pin.extension().is_none_or(|end| end != "debug")).collect();
    ensure!(left.is_empty(), "pins are left: {left:?}");
    let question = Ask::tcp(rig.pod(1, 0)?.addresses().socket(Family::V4, TARGET));
    drop(ask(rig.pod(0, 0)?, question)?);
    Ok(())
}

/// While an agent runs, its own cleanup changes nothing; the cleanup of another node has no effect on this one.
fn cleanup_concerns_one_node_and_no_running_agent(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let mut there = rig.take_agent(1)?;
    let questions = [Ask::tcp(web.frontend(Family::V4)), Ask::udp(web.frontend(Family::V6))];
    let from = [rig.pod(0, 0)?, rig.pod(1, 0)?];
    let [here, far] = from.map(|pod| questions.map(|question| pod.peer().load(question, true, 2)));
    let (code, said) = there.exit_code(&["cleanup"])?;
    ensure!(code == 1 && said.contains("in use by another agent"), "{code}: {said}");
    there.ensure_running()?;
    for load in far {
        drop(load?.finish_without_loss().context("refused cleanup")?);
    }
    there.stop()?;
    drop(there.command(&["cleanup"])?);
    let question = Ask::tcp(web.frontend(Family::V4));
    until(rig.pod(1, 0)?, question.within(200), Result::is_err)?;
    drop(ask(rig.pod(0, 0)?, question)?);
    for load in here {
        drop(load?.finish_without_loss().context("cleanup elsewhere")?);
    }
    Ok(())
}
