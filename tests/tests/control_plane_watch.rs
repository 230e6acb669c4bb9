//! Watches of the real API server that break in unusual ways: an expired resourceVersion, a token that is no longer
//! valid, and updates of objects that change nothing.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_agent::reconcile::GRACE;
use lb_tests::agent::{Agent, Source};
use lb_tests::cluster::{Cluster, Traffic, slices_of};
use lb_tests::topology::Shape;
use lb_tests::wait::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The deadline for an agent to notice that it receives no changes.
const NOTICE: Duration = Duration::from_mins(2);
/// The deadline for watches to work again: credential files are read every second, pauses grow to three seconds.
const BACK: Duration = Duration::from_secs(20);
/// The metric with the time since which changes do not arrive.
const STALE: &str = "lb_source_stale_since_seconds";
/// A Service of type ExternalName and a slice for it: agents receive both and serve neither.
const UNSERVED: &str = r#"
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "alias"},
 "spec": {"type": "ExternalName", "externalName": "elsewhere.test"}}
---
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
 "metadata": {"name": "alias-ipv4", "labels": {"kubernetes.io/service-name": "alias"}},
 "ports": [{"port": 80}], "endpoints": [{"addresses": ["192.0.2.1"]}]}
"#;

fn until_stale(agent: &Agent, is_stale: bool, within: Duration) -> Result<()> {
    wait_until(within, &format!("the view is stale: {is_stale}"), || {
        ((agent.metric(&[STALE]).ok()? > 0.0) == is_stale).then_some(())
    })
}

/// The agent is stopped (SIGSTOP) while objects change and the server restarts with a fresh watch cache. The server
/// does not know the changes since the agent's resource version, and answers with 410.
#[test]
fn a_place_that_the_server_has_forgotten_is_left_for_a_new_list() -> Result<()> {
    let mut cluster = Cluster::shared(Shape::Routed)?;
    let [web, other] = cluster.publish_pair()?;
    {
        let (control_plane, rig) = cluster.split();
        let (agent, traffic) = (rig.agent(0)?, Traffic::start(rig, &web)?);
        let process = Pid::from_raw(agent.id().cast_signed());
        control_plane.stop_api_server();
        kill(process, Signal::SIGSTOP)?;
        control_plane.restart_api_server()?;
        control_plane.apply(&slices_of(&other, &[rig.pod(1, 1)?]))?;
        control_plane.restart_api_server()?;
        kill(process, Signal::SIGCONT)?;
        wait_until(NOTICE, "the agent gets a 410 for its resource version", || {
            agent.log_end(usize::MAX).contains("(410)").then_some(())
        })?;
        until_stale(agent, false, BACK)?;
        traffic.finish()?;
    }
    cluster.until_answered_by(&other, &["pod-b2"])?;
    cluster.give_back()
}

/// Tokens of pods are renewed in their file; the old one is refused from some time on.
#[test]
fn a_token_is_read_again_when_the_one_before_is_refused() -> Result<()> {
    // The test does not give the cluster back, because it adds an account and its rights.
    let mut cluster = Cluster::shared_without_agents(Shape::Routed)?;
    let control_plane = cluster.control_plane();
    let account = "--serviceaccount=default:agent";
    drop(control_plane.kubectl(&["create", "serviceaccount", "agent"])?);
    let binding = ["create", "clusterrolebinding", "agent", "--clusterrole=cluster-admin", account];
    drop(control_plane.kubectl(&binding)?);
    let directory = cluster.rig().topology().directory("token")?;
    let file = directory.join("token");
    // A token is valid as long as the Secret that it is bound to exists.
    let token = |cluster: &Cluster, secret: &str| -> Result<String> {
        let control_plane = cluster.control_plane();
        drop(control_plane.kubectl(&["create", "secret", "generic", secret])?);
        let bound = ["--bound-object-kind=Secret", &format!("--bound-object-name={secret}")];
        let create = ["create", "token", "agent"];
        // With a trailing newline, as editors write it.
        Ok(control_plane.kubectl(&[&create[..], &bound].concat())?.trim().to_owned() + "\n")
    };
    fs::write(&file, token(&cluster, "first")?)?;
    let kubeconfig = with_token_file(cluster.control_plane().kubeconfig().as_path(), &file)?;
    cluster.rig_mut().start_agents_from(Source::Kubeconfig(&kubeconfig), &[])?;
    let [web, other] = cluster.publish_pair()?;
    let second = token(&cluster, "second")?;
    drop(cluster.control_plane().kubectl(&["delete", "secret", "first"])?);
    {
        let (control_plane, rig) = cluster.split();
        let traffic = Traffic::start(rig, &web)?;
        // A running server keeps accepting a token from its cache.
        control_plane.restart_api_server()?;
        control_plane.apply(&slices_of(&other, &[rig.pod(1, 1)?]))?;
        let refused = ["rest_client_requests_total{", "code=\"401\""];
        wait_until(NOTICE, "the token is refused", || {
            (rig.agent(0).ok()?.metric(&refused).ok()? > 0.0).then_some(())
        })?;
        fs::write(&file, second)?;
        until_stale(rig.agent(0)?, false, BACK)?;
        traffic.finish()?;
    }
    cluster.until_answered_by(&other, &["pod-b2"])
}

/// The same kubeconfig with the path of a token file in place of the token.
fn with_token_file(kubeconfig: &Path, file: &Path) -> Result<std::path::PathBuf> {
    let text = fs::read_to_string(kubeconfig)?;
    let line = text.lines().find(|line| line.trim().starts_with("token:"));
    let line = line.map(str::trim).unwrap_or_default();
    ensure!(!line.is_empty(), "no token in {text}");
    let text = text.replace(line, &format!("tokenFile: {}", file.display()));
    let path = kubeconfig.with_file_name("kubeconfig-file.yaml");
    fs::write(&path, text)?;
    Ok(path)
}

/// Frequent changes of labels and annotations must not write any map.
#[test]
fn writes_of_objects_that_change_nothing_reach_no_map() -> Result<()> {
    let cluster = Cluster::shared(Shape::Routed)?;
    let [web, _] = cluster.publish_pair()?;
    let (agent, control_plane) = (cluster.rig().agent(0)?, cluster.control_plane());
    let changes = || -> Result<[f64; 2]> {
        let of =
            |kind| agent.metric(&[&format!("kubeproxy_sync_proxy_rules_{kind}_changes_total")]);
        Ok([of("service")?, of("endpoint")?])
    };
    let (writes, before) = (stable_writes(agent)?, changes()?);
    for object in ["service/web", "endpointslice/web-ipv4", "endpointslice/web-ipv6"] {
        for verb in ["annotate", "label"] {
            let said = control_plane.kubectl(&[verb, object, "note=nothing"])?;
            ensure!(said.contains(object.split('/').next_back().unwrap_or_default()), "{said}");
        }
    }
    // Watch events are ordered: once these objects are seen, all earlier changes have been seen. They are not
    // programmed either.
    control_plane.apply(UNSERVED)?;
    let seen = before.map(|count| count + 1.0);
    wait_until(NOTICE, "the alias and its slice are seen", || {
        changes().ok()?.iter().zip(seen).all(|(now, seen)| *now > seen - 0.5).then_some(())
    })?;
    let (writes_after, after) = (stable_writes(agent)?, changes()?);
    let is_seen = after.iter().zip(seen).all(|(after, seen)| (after - seen).abs() < 0.5);
    ensure!(is_seen, "{before:?} changes before, {after:?} after");
    ensure!((writes_after - writes).abs() < 0.5, "{writes} writes before, {writes_after} after");
    cluster.until_answered_by(&web, &["pod-a2", "pod-b2"])?;
    cluster.give_back()
}

/// The number of map writes, once no write came for several grace periods: some writes of a change come after its
/// switch.
fn stable_writes(agent: &Agent) -> Result<f64> {
    let mut last = (f64::NAN, Instant::now());
    wait_until(NOTICE, "nothing is written any more", || {
        let now = agent.metric(&["lb_map_operations"]).ok()?;
        if last.0.is_nan() || (now - last.0).abs() > 0.5 {
            last = (now, Instant::now());
        }
        (last.1.elapsed() > 4 * GRACE).then_some(now)
    })
}
