//! Restarts of agents and of the API server under traffic: every question is answered, and later changes reach packets.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::cluster::{
    Cluster, Outage, Published, Shared, Traffic, slices_of, until_answered_by,
};
use lb_tests::rig::Rig;
use lb_tests::topology::{Family, Pod, Shape};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until;

/// The deadline for an agent to notice that the server is unreachable.
const NOTICE: Duration = Duration::from_mins(1);
/// The deadline for watches of all kinds to work again, on a machine that also compiles.
const BACK: Duration = Duration::from_secs(90);
/// The number of writes after the snapshot.
const CHANGES: u32 = 300;
/// The agent's log message about an API server with an older state than before.
const PAST: &str = "state of the API server is older than before";
/// The metric with the time since which changes do not arrive.
const STALE: &str = "lb_source_stale_since_seconds";

/// Starts two agents, and a Service with two backends in the API server.
fn start() -> Result<(Shared, Published)> {
    let cluster = Cluster::shared(Shape::Routed)?;
    let web = cluster.publish("web", false)?;
    cluster.endpoints(&web, &backends(cluster.rig())?)?;
    cluster.until_answered_by(&web, &["pod-a2", "pod-b2"])?;
    Ok((cluster, web))
}

fn backends(rig: &Rig) -> Result<[&Pod; 2]> {
    Ok([rig.pod(0, 1)?, rig.pod(1, 1)?])
}

#[test]
fn no_question_is_lost_while_the_agent_is_stopped_or_killed_and_started() -> Result<()> {
    let (mut cluster, web) = start()?;
    let mut agent = cluster.rig_mut().take_agent(0)?;
    let traffic = Traffic::start(cluster.rig(), &web)?;
    agent.stop()?;
    agent.start_again()?;
    agent.kill9()?;
    agent.start_again()?;
    traffic.finish()?;
    cluster.rig_mut().give_agent(agent);
    change_arrives(&cluster, &web)?;
    cluster.give_back()
}

#[test]
fn no_question_is_lost_while_the_api_server_is_killed_and_started() -> Result<()> {
    let (mut cluster, web) = start()?;
    let other = cluster.publish("other", false)?;
    {
        let (control_plane, rig) = cluster.split();
        let before = [failed_requests(rig.agent(0)?)?, failed_requests(rig.agent(1)?)?];
        let traffic = Traffic::start(rig, &web)?;
        control_plane.stop_api_server();
        says_that_its_view_is_old(rig.agent(0)?)?;
        for (index, before) in before.into_iter().enumerate() {
            wait_until(NOTICE, "the agent notices that the server is away", || {
                failed_requests(rig.agent(index).ok()?).is_ok_and(|now| now > before).then_some(())
            })?;
        }
        control_plane.restart_api_server()?;
        let (ended, control_plane) = (Instant::now(), &*control_plane);
        // Changed before agents reconnect, so that they must catch up on missed changes.
        control_plane.apply(&slices_of(&other, &[rig.pod(1, 1)?]))?;
        let over = Outage { name: "the server was killed", ended, control_plane, rig };
        over.change_is_seen_soon(&other, [rig.pod(1, 1)?, rig.pod(0, 1)?])?;
        wait_until(BACK, "the view is fresh again", || {
            (rig.agent(0).ok()?.metric(&[STALE]).ok()? < 0.5).then_some(())
        })?;
        traffic.finish()?;
        says_it_once(rig.agent(0)?)?;
    }
    change_arrives(&cluster, &web)?;
    cluster.give_back()
}

/// The agent logs the failed watch and its consequence; the client library must log nothing in addition.
fn says_it_once(agent: &Agent) -> Result<()> {
    let log = agent.log_end(1_000);
    ensure!(log.contains("watch failed; keeping the last known state"), "not in the log:\n{log}");
    for noise in ["failed with error", "eof in poll"] {
        ensure!(!log.contains(noise), "{noise:?} is in the log:\n{log}");
    }
    Ok(())
}

/// Waits until metrics and `status` name the kinds of objects whose changes do not arrive, and `/healthz` reports them.
fn says_that_its_view_is_old(agent: &Agent) -> Result<()> {
    for resource in ["services", "endpointslices", "nodes"] {
        let label = format!("resource=\"{resource}\"");
        wait_until(NOTICE, &format!("{resource} are old in metrics and status"), || {
            let is_counted = agent.metric(&[STALE, &label]).ok()? > 0.0;
            let is_in_health = agent.health("/healthz").ok()?.1.contains("\"staleKinds\":");
            // `status` exits with 1 if there is a problem; its output is then part of the error.
            let said = agent.command(&["status"]).unwrap_or_else(|error| error.to_string());
            let is_said = said.contains(&format!("{resource} since "));
            (is_counted && is_in_health && is_said).then_some(())
        })?;
    }
    Ok(())
}

/// An agent that starts while the server is unreachable keeps the state of its predecessor, reports that it is not
/// ready, and continues once the server is back.
#[test]
fn no_question_is_lost_when_an_agent_starts_without_an_api_server() -> Result<()> {
    let (mut cluster, web) = start()?;
    let mut agent = cluster.rig_mut().take_agent(0)?;
    {
        let (control_plane, rig) = cluster.split();
        let traffic = Traffic::start(rig, &web)?;
        control_plane.stop_api_server();
        agent.kill9()?;
        agent.spawn_again(&[])?;
        wait_until(NOTICE, "the agent asks in vain", || {
            failed_requests(&agent).is_ok_and(|failed| failed > 3.0).then_some(())
        })?;
        let (status, _) = agent.health("/readyz")?;
        ensure!(status == 503, "/readyz without an API server: {status}");
        control_plane.restart_api_server()?;
        agent.wait_ready()?;
        traffic.finish()?;
    }
    cluster.rig_mut().give_agent(agent);
    change_arrives(&cluster, &web)?;
    cluster.give_back()
}

/// A restored store also takes the agents back: changes since the snapshot are undone.
#[test]
fn no_question_is_lost_while_etcd_is_restored_from_an_older_snapshot() -> Result<()> {
    let (mut cluster, web) = start()?;
    let other = cluster.publish("other", false)?;
    cluster.endpoints(&other, &[cluster.rig().pod(1, 1)?])?;
    cluster.until_answered_by(&other, &["pod-b2"])?;
    cluster.split().0.save_store()?;
    cluster.endpoints(&other, &[cluster.rig().pod(0, 1)?])?;
    cluster.until_answered_by(&other, &["pod-a2"])?;
    {
        let (control_plane, rig) = cluster.split();
        // A server that has just started writes as well. With enough later writes, its resource versions stay below the
        // ones that the agents have seen.
        control_plane.apply(&(0..CHANGES).map(config_map).collect::<String>())?;
        let [near, far] = [rig.pod(0, 1)?, rig.pod(1, 1)?];
        control_plane.apply(&slices_of(&other, &[near, far]))?;
        until_answered_by(
            rig.pod(0, 0)?,
            Ask::tcp(other.cluster_ip(Family::V4)),
            &["pod-a2", "pod-b2"],
        )?;
        let traffic = Traffic::start(rig, &web)?;
        control_plane.restore_store()?;
        wait_until(BACK, "both agents report that the state went back", || {
            (0..2)
                .all(|index| {
                    rig.agent(index).is_ok_and(|agent| agent.log_end(1_000).contains(PAST))
                })
                .then_some(())
        })?;
        traffic.finish()?;
    }
    cluster.until_answered_by(&other, &["pod-b2"])?;
    // The test does not give the cluster back, because its store went back in time.
    change_arrives(&cluster, &web)
}

fn config_map(number: u32) -> String {
    format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: change-{number}}}\n")
}

/// The number of requests of an agent that got no answer at all.
fn failed_requests(agent: &Agent) -> Result<f64> {
    agent.metric(&["rest_client_requests_total{", "code=\"<error>\""])
}

/// Checks that packets of all clients follow a change that is made now.
fn change_arrives(cluster: &Cluster, web: &Published) -> Result<()> {
    for backend in backends(cluster.rig())? {
        cluster.endpoints(web, &[backend])?;
        cluster.until_answered_by(web, &[backend.name()])?;
    }
    Ok(())
}
