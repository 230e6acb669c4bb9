//! An API server with unexpected answers: their cost, the effect on traffic, and the time until the watches work again.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::agent::{Agent, Source};
use lb_tests::campaign;
use lb_tests::cluster::{Cluster, Outage, Published, Traffic};
use lb_tests::interceptor::{Interceptor, Says};
use lb_tests::topology::Shape;
use lb_tests::wait::wait_until;

/// The deadline for an agent to notice that it receives no changes.
const NOTICE: Duration = Duration::from_mins(1);
/// The deadline for a change while another object cannot be read, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(10);
const STALE: &str = "lb_source_stale_since_seconds";

/// Starts a cluster whose agents use the interceptor, with two Services.
fn start() -> Result<(Cluster, Interceptor, [Published; 2])> {
    let mut cluster = Cluster::without_agents(Shape::Routed)?;
    let netns = cluster.rig().topology().fabric().name().to_owned();
    let interceptor = Interceptor::start(cluster.control_plane(), &netns)?;
    cluster.rig_mut().start_agents_from(Source::Kubeconfig(interceptor.kubeconfig()), &[])?;
    let services = cluster.publish_pair()?;
    Ok((cluster, interceptor, services))
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
fn outages_are_told_of_every_kind_and_end_soon() -> Result<()> {
    let (cluster, interceptor, [web, other]) = start()?;
    let agent = cluster.rig().agent(0)?;
    let traffic = Traffic::start(cluster.rig(), &web)?;
    // The number of requests in an outage, and the least number of seconds that the pauses between them take. Without
    // pauses they would take a moment.
    let (requests, least) = campaign::size((32, 1), (50, 2));
    for says in [Says::Busy(503), Says::Busy(429), Says::Page, Says::Nothing] {
        interceptor.says(says.clone());
        until_stale(agent, 4, NOTICE)?;
        // Two agents with four kinds of objects each, and pauses that double from 0.2 s to 3 s.
        let (before, began) = (interceptor.requests(), Instant::now());
        wait_until(NOTICE, "agents ask again", || {
            (interceptor.requests() > before + requests).then_some(())
        })?;
        let took = began.elapsed();
        ensure!(
            took > Duration::from_secs(least),
            "{requests} requests within {} s",
            took.as_secs()
        );
        let (rig, control_plane) = (cluster.rig(), cluster.control_plane());
        cluster.endpoints(&other, &[rig.pod(1, 1)?])?;
        interceptor.says(Says::TheSame);
        let over = Outage { name: &format!("{says:?}"), ended: Instant::now(), control_plane, rig };
        over.change_is_seen_soon(&other, [rig.pod(1, 1)?, rig.pod(0, 1)?])?;
        until_stale(agent, 0, NOTICE)?;
    }
    traffic.finish()
}

#[test]
fn an_object_that_cannot_be_read_is_served_as_before_and_named() -> Result<()> {
    let (cluster, interceptor, [web, other]) = start()?;
    let agent = cluster.rig().agent(0)?;
    let traffic = Traffic::start(cluster.rig(), &web)?;
    interceptor.says(Says::Spoilt("web"));
    drop(cluster.control_plane().kubectl(&["annotate", "service", "web", "note=spoilt"])?);
    wait_until(NOTICE, "the object is named", || {
        agent
            .log_end(usize::MAX)
            .contains("Service default/web: object: cannot be read")
            .then_some(())
    })?;
    let before = interceptor.requests();
    let began = Instant::now();
    cluster.endpoints(&other, &[cluster.rig().pod(1, 1)?])?;
    cluster.until_answered_by(&other, &["pod-b2"])?;
    ensure!(began.elapsed() < SOON, "a change was seen after {} s", began.elapsed().as_secs());
    wait_until(NOTICE, "an Event names it", || {
        let arguments = ["get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}"];
        cluster.control_plane().kubectl(&arguments).ok()?.contains("ObjectNotRead").then_some(())
    })?;
    ensure!(stale_kinds(agent)? == 0, "a kind is stale");
    ensure!(interceptor.requests() - before < 20, "too many requests");
    interceptor.says(Says::TheSame);
    drop(cluster.control_plane().kubectl(&["annotate", "service", "web", "note2=well"])?);
    traffic.finish()?;
    cluster.until_answered_by(&web, &["pod-a2", "pod-b2"])
}
