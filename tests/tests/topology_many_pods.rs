//! Many new pods: each gets its programs, and an agent that starts beside all of them attaches to all of them within a
//! bounded multiple of the time for adding a plain qdisc to each.
//!
//! The test prints its measurements: the time from an interface that is up to its programs, on a quiet machine and, in
//! a campaign, beside two computing threads for each CPU; and the time from a start to the last interface.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::cpus::{nice, while_busy};
use lb_tests::manifest::Service;
use lb_tests::netns::Netns;
use lb_tests::programs;
use lb_tests::rig::{Rig, TARGET};
use lb_tests::topology::{Shape, Topology};

/// The limit for attaching to one interface at a start, as a multiple of the time for adding one qdisc. The time of a
/// start without these interfaces is added, once more for each busy thread.
const QDISCS: u32 = 60;
/// The number of pods that exist when an agent starts.
const ALL: usize = 500;
/// The pause between two checks; busy polling would take CPU time from the agent.
const LOOK: Duration = Duration::from_micros(200);
/// The deadline for programs to be attached.
const SOON: Duration = Duration::from_mins(1);

#[test]
fn pods_that_come_and_pods_that_are_there_get_programs() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&rig.pods());
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    let peers = Netns::new("peers")?;
    // Otherwise the measurement would include the scheduling delay of this thread.
    nice(-19)?;
    let (each, loads) = campaign::size((60, &[0][..]), (200, &[0, 2]));
    let (mut pods, cpus) = (0, thread::available_parallelism()?.get());
    for busy in loads.iter().map(|per_cpu| per_cpu * cpus) {
        while_busy(busy, || one_by_one(&rig, &peers, pods..pods + each, busy))?;
        pods += each;
    }
    let (_, without) = restarted(&mut agent)?;
    add(&rig, &peers, pods..ALL)?;
    let qdiscs = qdiscs(&peers)?;
    campaign::figure(&format!("{ALL} qdiscs"), qdiscs.as_millis(), "ms");
    for busy in campaign::size(vec![0], vec![0, cpus]) {
        let longest = without * (1 + busy as u32) + qdiscs * QDISCS;
        while_busy(busy, || start_beside_all(&rig, &mut agent, busy, longest))?;
    }
    Ok(())
}

/// Starts an agent beside all pods and `busy` computing threads, and fails if that takes `longest`.
fn start_beside_all(rig: &Rig, agent: &mut Agent, busy: usize, longest: Duration) -> Result<()> {
    let what = format!("{ALL} pods and {busy} busy threads");
    let figure = |name: &str, time: Duration| {
        campaign::figure(&format!("{name} beside {what}"), time.as_millis(), "ms");
    };
    let (ended, ready) = restarted(agent)?;
    let all = ready + until_attached(rig, 0..ALL)?;
    figure("end and cleanup", ended);
    figure("start until ready", ready);
    figure("start until all are attached", all);
    ensure!(all < longest, "{all:?}, at most {longest:?}");
    Ok(())
}

/// Adds pods one after another, each after the one before has its programs.
fn one_by_one(rig: &Rig, peers: &Netns, pods: Range<usize>, busy: usize) -> Result<()> {
    let mut waits = Vec::new();
    for pod in pods {
        add(rig, peers, pod..pod + 1)?;
        waits.push(until_attached(rig, pod..pod + 1)?);
    }
    waits.sort_unstable();
    let at = |percent: usize| waits.get(waits.len() * percent / 100).or_else(|| waits.last());
    for (name, wait) in [("median", at(50)), ("99 of 100", at(99)), ("worst", at(100))] {
        let name = format!("from up to attached beside {busy} busy threads, {name}");
        campaign::figure(&name, wait.context("a pod")?.as_micros(), "us");
    }
    Ok(())
}

/// Stops the agent, cleans up, and starts it again; returns the time of the end with the cleanup, and that of the
/// start.
fn restarted(agent: &mut Agent) -> Result<(Duration, Duration)> {
    let began = Instant::now();
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    let ended = began.elapsed();
    let began = Instant::now();
    agent.start_again()?;
    Ok((ended, began.elapsed()))
}

/// Adds a qdisc for programs to the other end of each interface, and returns the time that this takes.
fn qdiscs(peers: &Netns) -> Result<Duration> {
    let lines: Vec<String> =
        (0..ALL).map(|pod| format!("qdisc add dev peer{pod} clsact")).collect();
    let began = Instant::now();
    drop(peers.tool_fed("tc", &["-batch", "-"], &lines.join("\n"))?);
    Ok(began.elapsed())
}

/// Adds interfaces as a CNI plugin does; they are up when this returns.
fn add(rig: &Rig, peers: &Netns, pods: Range<usize>) -> Result<()> {
    let commands = pods.map(|pod| {
        let peers = peers.name();
        format!(
            "link add many{pod} type veth peer name peer{pod} netns {peers}\n\
             link set many{pod} up\n"
        )
    });
    rig.node(0)?.netns().ip(&commands.collect::<String>())
}

/// Waits until all interfaces have programs in both directions, and returns the time that this took.
fn until_attached(rig: &Rig, pods: Range<usize>) -> Result<Duration> {
    let began = Instant::now();
    rig.node(0)?.netns().run_in(|| {
        for pod in pods {
            while !programs::are_on(&format!("many{pod}"))? {
                ensure!(began.elapsed() < SOON, "many{pod} has no programs");
                thread::park_timeout(LOOK);
            }
        }
        Ok(began.elapsed())
    })?
}
