//! An API server with unexpected answers: their cost, the effect on traffic, and the time until the watches work again.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::{Agent, Source};
use lb_tests::campaign;
use lb_tests::cluster::{Cluster, Outage, Published, Traffic};
use lb_tests::interceptor::{Interceptor, Says};
use lb_tests::join_all::join_all;
use lb_tests::topology::Shape;
use lb_tests::wait::wait_until;

/// The deadline for an agent to notice that it receives no changes.
const NOTICE: Duration = Duration::from_mins(1);
/// The deadline for a change while another object cannot be read, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(10);
const STALE: &str = "lb_source_stale_since_seconds";

/// Ports of the interceptors, one for the agent of each node.
const PORTS: [u16; 2] = [7_443, 7_444];

/// Starts a cluster whose agents each use an interceptor of their own, with two Services.
fn start() -> Result<(Cluster, Vec<Interceptor>, [Published; 2])> {
    let mut cluster = Cluster::without_agents(Shape::Routed)?;
    let netns = cluster.rig().topology().fabric().name().to_owned();
    let interceptor = |port| Interceptor::start(cluster.control_plane(), &netns, port);
    let interceptors = PORTS.into_iter().map(interceptor).collect::<Result<Vec<_>>>()?;
    let nodes = cluster.rig().topology().nodes().iter();
    let sources = interceptors.iter().map(|it| Source::Kubeconfig(it.kubeconfig()));
    for agent in Agent::start_all(nodes.zip(sources), &[])? {
        cluster.rig_mut().give_agent(agent);
    }
    let services = cluster.publish_pair()?;
    Ok((cluster, interceptors, services))
}

fn all_say(interceptors: &[Interceptor], says: &Says) {
    for interceptor in interceptors {
        interceptor.says(says.clone());
    }
}

fn stale_kinds(agent: &Agent) -> Result<usize> {
    let kinds = ["services", "endpointslices", "nodes", "servicecidrs"];
    let since = |kind| agent.metric(&[STALE, kind]);
    Ok(kinds
        .into_iter()
        .map(since)
        .collect::<Result<Vec<_>>>()?
        .iter()
        .filter(|s| **s > 0.0)
        .count())
}

fn until_stale(agent: &Agent, kinds: usize, within: Duration) -> Result<()> {
    wait_until(within, &format!("{kinds} kinds are stale"), || {
        (stale_kinds(agent).ok()? == kinds).then_some(())
    })
}

#[test]
fn outages_of_every_kind_are_reported_and_end_soon() -> Result<()> {
    let (cluster, interceptors, [web, other]) = start()?;
    let (rig, control_plane) = (cluster.rig(), cluster.control_plane());
    let traffic = Traffic::start(rig, &web)?;
    // The agents of the two nodes have different outages at the same time.
    for says in [[Says::Busy(503), Says::Page], [Says::Busy(429), Says::Nothing]] {
        for (interceptor, says) in interceptors.iter().zip(&says) {
            interceptor.says(says.clone());
        }
        let waits = interceptors
            .iter()
            .enumerate()
            .map(|(node, interceptor)| move || until_asked_again(rig.agent(node)?, interceptor));
        drop(join_all(waits).with_context(|| format!("{says:?}"))?);
        cluster.endpoints(&other, &[rig.pod(1, 1)?])?;
        all_say(&interceptors, &Says::TheSame);
        let [one, two] = &says;
        let name = format!("{one:?} on one node, {two:?} on the other");
        let over = Outage { name: &name, ended: Instant::now(), control_plane, rig };
        over.change_is_seen_soon(&other, [rig.pod(1, 1)?, rig.pod(0, 1)?])?;
        for node in 0..PORTS.len() {
            until_stale(rig.agent(node)?, 0, NOTICE)?;
        }
    }
    traffic.finish()
}

/// Waits until an agent reports every kind as stale and has repeated its requests, with pauses.
fn until_asked_again(agent: &Agent, interceptor: &Interceptor) -> Result<()> {
    // The number of requests in an outage, and the least number of seconds that the pauses between them take. Without
    // pauses they would take a moment.
    let (requests, least) = campaign::size((16, 1), (25, 2));
    until_stale(agent, 4, NOTICE)?;
    // An agent requests four kinds of objects, and its pauses double from 0.2 s to 3 s.
    let (before, began) = (interceptor.requests(), Instant::now());
    wait_until(NOTICE, "the agent asks again", || {
        (interceptor.requests() > before + requests).then_some(())
    })?;
    let took = began.elapsed();
    ensure!(took > Duration::from_secs(least), "{requests} requests within {} s", took.as_secs());
    Ok(())
}

#[test]
fn an_object_that_cannot_be_read_is_served_as_before_and_named() -> Result<()> {
    let (cluster, interceptors, [web, other]) = start()?;
    let agent = cluster.rig().agent(0)?;
    let traffic = Traffic::start(cluster.rig(), &web)?;
    all_say(&interceptors, &Says::Spoilt("web"));
    drop(cluster.control_plane().kubectl(&["annotate", "service", "web", "note=spoilt"])?);
    wait_until(NOTICE, "the object is named", || {
        agent
            .log_end(usize::MAX)
            .contains("Service default/web: object: cannot be read")
            .then_some(())
    })?;
    let requests = || interceptors.iter().map(Interceptor::requests).sum::<u64>();
    let before = requests();
    let began = Instant::now();
    cluster.endpoints(&other, &[cluster.rig().pod(1, 1)?])?;
    cluster.until_answered_by(&other, &["pod-b2"])?;
    ensure!(began.elapsed() < SOON, "a change was seen after {} s", began.elapsed().as_secs());
    wait_until(NOTICE, "an Event names it", || {
        let arguments = ["get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}"];
        cluster.control_plane().kubectl(&arguments).ok()?.contains("ObjectNotRead").then_some(())
    })?;
    ensure!(stale_kinds(agent)? == 0, "a kind is stale");
    ensure!(requests() - before < 20, "too many requests");
    all_say(&interceptors, &Says::TheSame);
    drop(cluster.control_plane().kubectl(&["annotate", "service", "web", "note2=well"])?);
    traffic.finish()?;
    cluster.until_answered_by(&web, &["pod-a2", "pod-b2"])
}
