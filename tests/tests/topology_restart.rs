//! The agent ends, crashes, comes back and is cleaned up, under traffic.

use anyhow::{Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Load};

const NODE_PORT: u16 = 30_080;

in_both_shapes!(
    traffic_goes_on_while_the_agent_is_stopped_and_started,
    traffic_goes_on_while_the_agent_is_killed_and_started,
    change_during_absence_is_caught_up,
    cleanup_removes_everything,
);

fn start(shape: Shape) -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    Ok((rig.start(&[&web])?, web))
}

/// Everybody asks without pause, through kept and through new sockets, while the agent of node-a
/// goes away by `end` and comes back, twice.
fn nothing_is_lost(shape: Shape, end: impl Fn(&mut Agent) -> Result<()>) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let mut agent = rig.take_agent(0)?;
    let mut loads: Vec<(&Member, Ask, Load<'_>)> = Vec::new();
    for (family, protocol) in matrix() {
        let node_port = Ask::new(protocol, rig.node(0)?.addresses().socket(family, NODE_PORT));
        let cluster_ip = Ask::new(protocol, web.frontend(family));
        let askers: [(&Member, Ask); 3] =
            [(rig.pod(0, 0)?, cluster_ip), (rig.node(0)?, cluster_ip), (rig.client(), node_port)];
        for (from, question) in askers {
            for kept in [true, false] {
                loads.push((from, question, from.peer().load(question, kept, 2)?));
            }
        }
    }
    for _ in 0..2 {
        end(&mut agent)?;
        agent.start_again()?;
    }
    for (from, question, load) in loads {
        let tally = load.finish()?;
        let what =
            format!("{} asks {} by {}: {tally:?}", from.name(), question.to, question.protocol);
        ensure!(tally.failed() == 0 && tally.answered() > 20, "{what}");
    }
    Ok(())
}

fn traffic_goes_on_while_the_agent_is_stopped_and_started(shape: Shape) -> Result<()> {
    nothing_is_lost(shape, Agent::stop)
}

fn traffic_goes_on_while_the_agent_is_killed_and_started(shape: Shape) -> Result<()> {
    nothing_is_lost(shape, Agent::kill9)
}

fn change_during_absence_is_caught_up(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let only = web.pods(&[rig.pod(1, 1)?]);
    rig.manifests().apply(&only)?;
    agent.start_again()?;
    for (family, protocol) in matrix() {
        for _ in 0..10 {
            let answer = ask(rig.pod(0, 0)?, Ask::new(protocol, only.frontend(family)))?;
            ensure!(answer.server == "pod-b2", "ready, but with the past: {answer:?}");
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
    // The kernel itself puts `maps.debug` and `progs.debug` into every bpf filesystem.
    let pins = std::fs::read_dir(rig.node(0)?.bpf())?.flatten().map(|entry| entry.path());
    let left: Vec<_> =
        pins.filter(|pin| pin.extension().is_none_or(|end| end != "debug")).collect();
    ensure!(left.is_empty(), "pins are left: {left:?}");
    let question = Ask::tcp(rig.pod(1, 0)?.addresses().socket(Family::V4, TARGET));
    drop(ask(rig.pod(0, 0)?, question)?);
    Ok(())
}
