//! A node whose agent is dead: without a sweep, tables fill with expired flows. New flows and kept ones are served.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::Maps;
use lb_common::addr;
use lb_common::fake::{at, masqueraded_flow};
use lb_common::flow::{Flow, FlowKey, Kind, Shown, Tuple};
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, askers};
use lb_tests::topology::{Family, Shape};
use lb_tests::traffic::{Protocol, is_spoofed, spoofed};
use nix::time::{ClockId, clock_gettime};

use super::crowd::{FIRST_OF_NODE, PORTS, rig_with_few_ports};
use super::{CAPACITY, NODE_PORT, counted, everybody_asks, none_is_lost, protected, rig};

/// The number of new flows after which a lost answer is noticed.
const FEW: u32 = 5;
/// The time since the last packet of an expired stream, which is longer than its lifetime (`timeouts.udpStream`).
const IDLE: Duration = Duration::from_mins(3);
/// The entries of expired streams, four for each, which fill the protected tables of both families.
const ALL: usize = 2 * CAPACITY as usize;
const _: () = assert!(ALL == 2 * 4 * PORTS as usize);

/// Without an agent there is no sweep: new flows replace expired ones.
#[test]
fn with_the_agent_dead_new_flows_are_served_for_ever() -> Result<()> {
    let (mut rig, [web, _]) = rig(Shape::Routed, Some(CAPACITY))?;
    let agent = kill_agent(&mut rig)?;
    // Twice the total capacity of the tables, or eleven times in a campaign.
    let answers = new_flows(&rig, &web, campaign::size([3_000, 600], [16_700, 3_400]));
    let answers = start_again(agent, answers)?;
    campaign::figure("new flows answered while no agent runs, none lost", answers, "flows");
    Ok(())
}

/// No new flow needs a key or a port of the streams, so all of them keep their entries.
#[test]
fn with_the_agent_dead_and_tables_full_of_expired_streams_all_flows_are_served() -> Result<()> {
    let left = beside_expired_streams(false)?;
    ensure!(left == [ALL, ALL], "of {ALL} entries {left:?} are those of streams, and protected");
    Ok(())
}

/// The streams have all ports of the node towards the remote backend of the Service as well.
#[test]
fn with_the_agent_dead_expired_streams_give_up_their_ports() -> Result<()> {
    let [left, _protected] = beside_expired_streams(true)?;
    ensure!(left < ALL, "no stream has given up its entries");
    Ok(())
}

/// All clients use a Service through kept and through new sockets, while streams that expired have all protected
/// entries. `has_ports`: the remote backend is that of the streams. Returns how many protected entries are those of the
/// streams in the end, and how many there are.
fn beside_expired_streams(has_ports: bool) -> Result<[usize; 2]> {
    let (mut rig, web) = rig_with_few_ports(Shape::Routed, Some(CAPACITY), |rig| {
        Ok(vec![rig.pod(0, 1)?, rig.pod(1, 1)?])
    })?;
    let agent = kill_agent(&mut rig)?;
    fill(&rig, has_ports)?;
    let full = entries(&rig)?;
    ensure!(full == [ALL, ALL], "of {ALL} entries {full:?} are those of streams, and protected");
    let answers = || {
        let loads = everybody_asks(&rig, &web)?;
        // More flows than ports towards the remote backend: half of those of two clients are masqueraded.
        let new = new_flows(&rig, &web, campaign::size([1_500, 300], [16_700, 3_400]))?;
        Ok(new + none_is_lost(&rig, loads)?.0)
    };
    let answers = answers();
    let left = entries(&rig)?;
    let answers = start_again(agent, answers)?;
    let what = if has_ports { "entries and ports" } else { "entries" };
    let what = format!("answers without an agent, expired streams have all {what}, none lost");
    campaign::figure(&what, answers, "answers");
    Ok(left)
}

/// Kills the agent of node-a.
fn kill_agent(rig: &mut Rig) -> Result<Agent> {
    let mut agent = rig.take_agent(0)?;
    agent.kill9()?;
    Ok(agent)
}

/// Starts the agent again, which then reports what the programs have counted, and returns the outcome.
fn start_again(mut agent: Agent, answers: Result<u64>) -> Result<u64> {
    agent.start_again()?;
    answers.with_context(|| format!("{:?}", counted(&agent)))
}

/// Each client begins so many flows, multiples of [`FEW`], by UDP and by TCP, one after another. Returns the number of
/// answers, which is that of the flows.
fn new_flows(rig: &Rig, web: &Service, [by_udp, by_tcp]: [u32; 2]) -> Result<u64> {
    let mut answers = 0;
    for (from, question) in askers(rig, web, NODE_PORT)? {
        let times = if question.protocol == Protocol::Udp { by_udp } else { by_tcp };
        // A lost answer takes seconds, so the first ones end the test.
        for _ in 0..times / FEW {
            let tally = from.peer().ask_many(question, FEW).context("questions")?;
            ensure!(tally.failed() == 0, "{} asks {question:?}: {tally:?}", from.name());
            ensure!(tally.answered() == u64::from(FEW), "{tally:?}");
            answers += tally.answered();
        }
    }
    Ok(answers)
}

/// Fills the protected tables with the entries of expired streams. Each has another client and another one of the
/// ports, towards the remote backend (`has_ports`) or towards an address that is no backend's.
fn fill(rig: &Rig, has_ports: bool) -> Result<()> {
    let maps = Maps::open(&rig.node(0)?.bpf().join(LAYOUT).join("maps"))?;
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
    let seen = now.checked_sub(IDLE).context("a machine that has just started")?;
    for family in Family::ALL {
        let node = rig.node(0)?.addresses();
        let frontend = node.socket(family, NODE_PORT);
        let nobodys = SocketAddr::new(spoofed(frontend, u32::from(u16::MAX)), TARGET);
        let remote = rig.pod(1, 1)?.addresses().socket(family, TARGET);
        let backend = if has_ports { remote } else { nobodys };
        for number in 0..PORTS {
            let client = SocketAddr::new(spoofed(frontend, u32::from(number)), 9_999);
            let own = node.socket(family, FIRST_OF_NODE + number);
            let ends = [client, frontend, backend, own].map(|end| at(&end.to_string()));
            for (kind, side, [source, destination], [from, to]) in masqueraded_flow(ends) {
                let tuple = Tuple::new(source, destination);
                let key = FlowKey::new(tuple, addr::Protocol::UDP, side);
                let mut flow = Flow::new(Tuple::new(from, to), kind, seen.as_nanos() as u64);
                let is_answer = [Kind::REPLY, Kind::UNMASQUERADE].contains(&kind);
                flow.flags |= if is_answer { Flow::ANSWER } else { 0 };
                flow.flags |= Flow::PROTECTED | Flow::MASQUERADED;
                flow.shown = Shown::ESTABLISHED;
                flow.begun = flow.begun.wrapping_sub(Flow::moment(IDLE.as_nanos() as u64));
                maps.flows().restore(&key, &flow)?;
            }
        }
    }
    Ok(())
}

/// The number of protected entries of the streams of [`fill`], and of all flows.
fn entries(rig: &Rig) -> Result<[usize; 2]> {
    let of_streams = protected(rig, |tuple| {
        [tuple.source, tuple.destination].iter().any(|ip| is_spoofed((*ip).into()))
    })?;
    Ok([of_streams.len(), protected(rig, |_| true)?.len()])
}
