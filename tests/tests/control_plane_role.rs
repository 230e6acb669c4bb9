//! The agent with the credentials of the pod of `deploy/daemonset.yaml`: it finds the API server from a pod's
//! environment, and has exactly the rights of its role, or fewer, with the real authorizer.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::{Agent, Source};
use lb_tests::cluster::{Cluster, until_answered_by};
use lb_tests::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use lb_tests::topology::{Family, Shape};
use lb_tests::traffic::{Ask, PAUSE, Protocol};
use lb_tests::wait::{try_wait_until, wait_until_ok};

/// Longer than twice the period of the test.
const PATIENCE: Duration = Duration::from_secs(6);
/// The deadline for a start without complete lists, for which the agent waits ten seconds first.
const LISTENING: Duration = Duration::from_secs(90);
/// The deadline for three more refused requests: pauses between them grow to fifteen seconds.
const REFUSALS: Duration = Duration::from_mins(3);
const ACCOUNT: &str = "--as=system:serviceaccount:kube-system:lb-agent";

#[test]
fn agent_works_with_the_role_of_the_daemon_set_and_nothing_else() -> Result<()> {
    let mut cluster = Cluster::without_agents(Shape::Routed)?;
    ensure!(!may(&cluster, "list", "services"), "the account has rights before the role exists");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/daemonset.yaml");
    let manifests =
        fs::read_to_string(&file).with_context(|| format!("manifests {}", file.display()))?;
    every_object_is_valid(&cluster, &manifests)?;
    cluster.control_plane().apply(&manifests)?;
    for (verb, resource) in [
        ("list", "secrets"),
        ("list", "configmaps"),
        ("list", "pods"),
        ("update", "services"),
        ("patch", "nodes/status"),
        ("delete", "events.events.k8s.io"),
    ] {
        ensure!(!may(&cluster, verb, resource), "the agent may {verb} {resource}");
    }

    let account = cluster.control_plane().service_account("kube-system", "lb-agent")?;
    cluster.rig_mut().start_agents_from(Source::InPod(&account), &[])?;
    let web = cluster.publish("web", false)?;
    cluster.endpoints(&web, &[cluster.rig().pod(1, 1)?])?;
    cluster.until_answered_by(&web, &["pod-b2"])?;
    for node in ["node-a", "node-b"] {
        its_start_is_reported(&cluster, node)?;
    }
    for index in [0, 1] {
        let agent = cluster.rig().agent(index)?;
        let refused = agent.metric(&["rest_client_requests_total{", "code=\"403\""])?;
        ensure!(refused < 0.5, "{refused} requests were forbidden");
    }
    Ok(())
}

/// A missing permission can be granted at any time. Until then the agent must stay alive, because a restart would not
/// help, and must not drop what kube-proxy serves.
#[test]
fn agent_with_incomplete_lists_stays_alive() -> Result<()> {
    let cluster = Cluster::without_agents(Shape::Routed)?;
    let control_plane = cluster.control_plane();
    let kubectl = |arguments: &[&str]| control_plane.kubectl(arguments).map(drop);
    // A change that could be programmed, were it not for the kinds that cannot be listed.
    let web = cluster.publish("web", false)?;
    cluster.endpoints(&web, &[cluster.rig().pod(1, 1)?])?;
    let role = |name: &str, resources: &str| -> Result<()> {
        let (resources, role) =
            (format!("--resource={resources}"), format!("--clusterrole={name}"));
        kubectl(&["create", "clusterrole", name, "--verb=list,watch,get", &resources])?;
        kubectl(&["create", "clusterrolebinding", name, &role, "--serviceaccount=default:agent"])
    };
    kubectl(&["create", "serviceaccount", "agent"])?;
    role("some", "services,nodes,servicecidrs.networking.k8s.io")?;
    let account = control_plane.service_account("default", "agent")?;
    let node = cluster.rig().node(0)?;
    let kubeconfig = control_plane.kubeconfig();
    let options = Options::new(node.netns().name(), Mode::Nftables, &kubeconfig, node.name());
    let kube_proxy = KubeProxy::start(&options)?;
    let asked: Vec<_> = cluster.askers(&web)?.into_iter().take(2).collect();
    // kube-proxy writes its table of IPv6 apart from that of IPv4, and must not end before.
    let v6 = Ask::new(Protocol::Tcp, web.cluster_ip(Family::V6));
    until_answered_by(cluster.rig().pod(0, 0)?, v6, &["pod-b2"])?;
    for (from, question) in &asked {
        until_answered_by(from, *question, &["pod-b2"])?;
    }
    // Its rules stay.
    drop(kube_proxy);
    // A change may wait for twice this period before the agent counts as hanging.
    let mut agent = Agent::spawn(node, Source::InPod(&account), &["--iptables-sync-period=2s"])?;
    let began = Instant::now();
    let status = |path| agent.health(path).map(|(status, _)| status);
    let refused = || agent.metric(&["rest_client_requests_total{", "code=\"403\""]);
    let before = wait_until_ok(LISTENING, "the agent listens", || {
        status("/livez")?;
        refused()
    })?;
    let mut loads = Vec::new();
    for (from, question) in &asked {
        loads.push(from.peer().load(*question, false, PAUSE)?);
    }
    try_wait_until(REFUSALS, "the agent is refused again and again", || {
        let statuses = (status("/livez")?, status("/healthz")?, status("/readyz")?);
        ensure!(statuses == (200, 200, 503), "{statuses:?}");
        Ok((refused()? > before + 2.5 && began.elapsed() > PATIENCE).then_some(()))
    })?;
    for load in loads {
        drop(load.finish_without_loss()?);
    }
    Mode::Nftables.remove_rules(node.netns())?;
    role("rest", "endpointslices.discovery.k8s.io")?;
    agent.wait_ready()?;
    for (from, question) in asked {
        until_answered_by(from, question, &["pod-b2"])?;
    }
    ensure!(agent.health("/livez")?.0 == 200, "the agent is not alive");
    agent.stop()
}

/// Validates all objects with the schemas and the admission of a real API server, which knows every field.
fn every_object_is_valid(cluster: &Cluster, manifests: &str) -> Result<()> {
    let said = cluster.control_plane().check(manifests)?;
    for kind in ["serviceaccount", "clusterrole", "clusterrolebinding", "configmap", "daemonset"] {
        let is_named = |line: &str| line.starts_with(kind) && line.contains("/lb-agent created");
        ensure!(said.lines().any(is_named), "no {kind} in:\n{said}");
    }
    ensure!(said.lines().count() == 5, "not exactly five objects:\n{said}");
    let misspelt = manifests.replace("hostNetwork:", "hostNetworks:");
    let refused =
        cluster.control_plane().check(&misspelt).err().context("an unknown field was accepted")?;
    ensure!(format!("{refused:#}").contains("hostNetworks"), "{refused:#}");
    Ok(())
}

fn may(cluster: &Cluster, verb: &str, resource: &str) -> bool {
    let question = ["auth", "can-i", verb, resource, "--all-namespaces", ACCOUNT];
    cluster.control_plane().kubectl(&question).is_ok()
}

fn its_start_is_reported(cluster: &Cluster, node: &str) -> Result<()> {
    wait_until_ok(Duration::from_mins(1), &format!("an Event about {node}"), || {
        let about = format!("regarding.kind=Node,regarding.name={node}");
        let arguments =
            ["get", "events.events.k8s.io", "--all-namespaces", "--field-selector", &about];
        let reasons = ["-o", "jsonpath={.items[*].reason} {.items[*].reportingController}"];
        let said = cluster.control_plane().kubectl(&[&arguments[..], &reasons].concat())?;
        ensure!(said.trim() == "Starting lb-agent", "{said}");
        Ok(())
    })
}
