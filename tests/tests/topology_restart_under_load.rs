//! Thousands of questions, a hundred thousand in a campaign, while the agent of one node is stopped, killed at random
//! times, restarted with other map sizes and replaced by another build: every question is answered, and no TCP segment
//! is lost.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::differential::random::Random;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, askers};
use lb_tests::topology::{Member, Shape, Topology};
use lb_tests::traffic::{Load, PAUSE};
use lb_tests::wait::{pass, try_wait_until};

const NODE_PORT: u16 = 30_080;
/// In every life with a number divisible by this, the agent is killed repeatedly before it has taken over.
const UNLUCKY: u32 = 4;
/// The largest number of lives. Each is bounded by the messages of its agent, not by time, so that a busy machine needs
/// no more of them.
const MOST: u32 = 500;
/// The deadline for a message of the agent.
const SOON: Duration = Duration::from_mins(1);
/// The number of Services that change at each start, so that each start writes maps.
const OTHERS: u8 = 60;
/// Messages of a starting agent: before, during and after programs are replaced, and before and after maps are written.
const MOMENTS: [&str; 5] = [
    "agent started",
    "resizing map",
    "programs attached",
    "initial sync complete",
    "everything programmed",
];

/// The number of these messages that come before the agent has taken over.
const EARLY: usize = 3;

/// The seed of the schedule: equal seeds end the agent at equal points.
const SEED: u64 = 7;

#[test]
fn of_thousands_of_questions_none_is_lost_whatever_becomes_of_the_agent() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed))?;
    // The client pod is not a backend: a hairpin answer may be lost when programs are replaced (ADR 0005).
    let pods = [rig.pod(0, 1)?, rig.pod(1, 0)?, rig.pod(1, 1)?];
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&pods);
    rig.manifests().apply(&web)?;
    change_others(&rig, 0)?;
    rig.start_agents(&[])?;
    let mut agent = rig.take_agent(0)?;
    let before = lost_segments(&rig)?;
    let began = Instant::now();
    let loads = everybody_asks(&rig, &web)?;
    let (mut random, mut lives) = (Random::new(SEED), 0);
    let (least_lives, least) = campaign::size((5, 10_000), (12, 100_000));
    while lives < least_lives || answered(&loads)? < least {
        let before = answered(&loads)?;
        ensure!(lives < MOST, "{lives} lives, {before} answers");
        lives += 1;
        let live = if lives % UNLUCKY == 0 { unlucky_life } else { one_life };
        live(&rig, &mut agent, &mut random).with_context(|| format!("life {lives}"))?;
        ensure!(answered(&loads)? > before, "no question is answered in life {lives}");
    }
    let mut total = 0;
    let drops = drops(&agent)?;
    for (what, load) in loads {
        let tally = load.finish_without_loss().with_context(|| format!("{what}; {drops:?}"))?;
        ensure!(!what.ends_with("kept") || tally.servers.len() == 1, "{what}: {tally:?}");
        total += tally.answered();
    }
    let lost = lost_segments(&rig)? - before;
    println!("{:?}; lost segments: {lost}", began.elapsed());
    campaign::figure("answers, none lost", total, "answers");
    campaign::figure("lives of the agent", lives, "lives");
    ensure!(lost <= 0, "{lost} TCP segments were lost");
    Ok(())
}

/// Loads of pods, the host and the external client, in both families, with both transports, through kept and new
/// sockets.
fn everybody_asks<'a>(rig: &'a Rig, web: &Service) -> Result<Vec<(String, Load<'a>)>> {
    let mut loads = Vec::new();
    for (from, question) in askers(rig, web, NODE_PORT)? {
        for (kept, how) in [(true, "kept"), (false, "new")] {
            let load = from.peer().load(question, kept, PAUSE)?;
            let (name, to, protocol) = (from.name(), question.to, question.protocol);
            loads.push((format!("{name} asks {to} by {protocol}, {how}"), load));
        }
    }
    Ok(loads)
}

fn answered(loads: &[(String, Load<'_>)]) -> Result<u64> {
    loads.iter().map(|(_, load)| Ok(load.so_far()?.answered())).sum()
}

/// Stops the agent, starts it with another log setting or another map size, kills it during that start, and restarts
/// it.
fn one_life(rig: &Rig, agent: &mut Agent, random: &mut Random) -> Result<()> {
    if random.below(2) == 0 {
        agent.stop()?;
    } else {
        agent.kill9()?;
    }
    // Programs with packet logging differ, as those of another build would.
    agent.set_flag("--packet-log", random.of(&["off", "drops"]));
    agent.set_flag("--map-size", random.of(&["FLOWS=524288", "FLOWS=262144", "AFFINITY=32768"]));
    for _ in 0..random.below(4) {
        change_others(rig, random.below(250) as u8)?;
        let before = agent.log_end(usize::MAX);
        agent.spawn_again(&[])?;
        if random.below(2) == 0 {
            pass(Duration::from_millis(random.below(700) as u64));
        } else {
            wait_to_hear(agent, &before, random.of(&MOMENTS))?;
        }
        agent.kill9()?;
    }
    change_others(rig, random.below(250) as u8)?;
    agent.start_again()
}

/// Requests another size of the flow tables in several runs, kills each of them while it changes the size, and lets the
/// last one finish.
fn unlucky_life(rig: &Rig, agent: &mut Agent, random: &mut Random) -> Result<()> {
    for _ in 0..4 {
        agent.kill9()?;
        change_others(rig, random.below(250) as u8)?;
        let sizes = ["FLOWS=524288", "FLOWS=393216", "FLOWS=262144"];
        agent.set_flag("--map-size", random.of(&sizes));
        let before = agent.log_end(usize::MAX);
        agent.spawn_again(&[])?;
        wait_to_hear(agent, &before, random.of(&MOMENTS[..EARLY]))?;
        pass(Duration::from_millis(random.below(100) as u64));
    }
    agent.kill9()?;
    agent.start_again()
}

/// Waits until the agent logs this message once more than before, or is ready and will not log it again.
fn wait_to_hear(agent: &mut Agent, before: &str, moment: &str) -> Result<()> {
    const READY: &str = "everything programmed";
    let count = |log: &str| [moment, READY].map(|line| log.matches(line).count());
    let before = count(before);
    try_wait_until(SOON, &format!("the agent says {moment:?}"), || {
        agent.ensure_running()?;
        Ok((count(&agent.log_end(usize::MAX)) != before).then_some(()))
    })
}

/// The drops of the node's programs in all lives, by reason.
fn drops(agent: &Agent) -> Result<Vec<(String, f64)>> {
    let drops = |(name, count): &(String, f64)| name.starts_with("lb_drops_total") && *count > 0.0;
    Ok(agent.metrics()?.into_iter().filter(drops).collect())
}

/// Changes the endpoints of each of the other Services.
fn change_others(rig: &Rig, number: u8) -> Result<()> {
    let pods = rig.pods();
    for index in 0..OTHERS {
        let chosen = pods.iter().enumerate().filter(|(at, _)| number >> at & 1 == index & 1);
        let chosen: Vec<_> = chosen.map(|(_, pod)| *pod).collect();
        let name = format!("other-{index}");
        rig.manifests().apply(&Service::new(&name, 100 + index)?.port(80, TARGET).pods(&chosen))?;
    }
    Ok(())
}

/// The number of TCP segments that pods and the external client retransmitted, as evidence for lost packets. Segments
/// that the receiver already had (DSACK, RFC 2883) were late and not lost, for example on a busy machine. Hosts are not
/// counted, because the test itself connects to the agent's port there until it is open.
fn lost_segments(rig: &Rig) -> Result<i64> {
    let hosts: Vec<&str> = rig.topology().nodes().iter().map(|node| node.name()).collect();
    let of = |member: &&Member| -> Result<i64> {
        let netns = member.netns();
        let again = netns.counter("snmp", "Tcp RetransSegs")?;
        Ok(again - netns.counter("netstat", "TcpExt TCPDSACKRecv")?)
    };
    let members = rig.topology().members();
    members.iter().filter(|member| !hosts.contains(&member.name())).map(of).sum()
}
