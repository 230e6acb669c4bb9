//! Services of a real API server, served by eBPF: two nodes whose agents watch the server, real controllers, real
//! sockets, both families, TCP and UDP.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::cluster::{Cluster, Published, until};
use lb_tests::rig::{ask, matrix, refused};
use lb_tests::topology::{Pod, Shape};
use lb_tests::traffic::{Ask, Failure};
use lb_tests::wait::wait_until_ok;
use serde_json::json;

/// The deadline for a change to reach packets from kubectl.
const SOON: Duration = Duration::from_mins(1);

/// The Service has no explicit addresses, port numbers or selector; the test writes its slices.
#[test]
fn service_without_selector_is_answered_by_the_endpoints_of_its_slices() -> Result<()> {
    let cluster = Cluster::start(Shape::Routed)?;
    let rig = cluster.rig();
    let web = cluster.publish("web", false)?;
    for backend in [rig.pod(0, 1)?, rig.pod(1, 1)?] {
        cluster.endpoints(&web, &[backend])?;
        cluster.until_answered_by(&web, &[backend.name()])?;
        shows_the_right_addresses(&cluster, &web, backend)?;
    }
    let both = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    cluster.endpoints(&web, &both)?;
    cluster.until_answered_by(&web, &both.map(|pod| pod.name()))?;
    Ok(())
}

/// Checks the addresses: the client's peer is the frontend. The backend sees the client, or the node if a node forwards
/// to a backend on another node.
fn shows_the_right_addresses(cluster: &Cluster, web: &Published, backend: &Pod) -> Result<()> {
    let rig = cluster.rig();
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.cluster_ip(family));
        let pod = ask(rig.pod(0, 0)?, question)?;
        ensure!(pod.peer == question.to && pod.client == pod.local, "a pod asks: {pod:?}");
        let host = ask(rig.node(0)?, question)?;
        ensure!(host.peer == question.to, "a host process asks: {host:?}");
        for node in rig.topology().nodes() {
            let to = web.node_port(node, family, protocol)?;
            let outside = ask(rig.client(), Ask::new(protocol, to))?;
            ensure!(outside.peer == to, "the client outside asks: {outside:?}");
            let seen = if backend.node() == node.name() { rig.client() } else { node.host() };
            ensure!(
                outside.client.ip() == seen.ip(family),
                "the backend saw another client: {outside:?}"
            );
        }
    }
    Ok(())
}

/// The real controller writes the slices from Pod objects: pods are added, fail their probe, and are deleted.
#[test]
fn service_with_selector_follows_its_pods() -> Result<()> {
    let cluster = Cluster::shared(Shape::Bridged)?;
    let rig = cluster.rig();
    let (a2, b1, b2) = (rig.pod(0, 1)?, rig.pod(1, 0)?, rig.pod(1, 1)?);
    let web = cluster.publish("web", true)?;
    is_refused(&cluster, &web)?;

    cluster.pod_object("web", a2, true)?;
    cluster.pod_object("web", b2, true)?;
    cluster.until_answered_by(&web, &["pod-a2", "pod-b2"])?;
    cluster.pod_object("web", b1, true)?;
    cluster.until_answered_by(&web, &["pod-a2", "pod-b1", "pod-b2"])?;
    cluster.pod_object("web", a2, false)?;
    cluster.until_answered_by(&web, &["pod-b1", "pod-b2"])?;
    cluster.control_plane().remove_pod("default", "pod-b1")?;
    cluster.until_answered_by(&web, &["pod-b2"])?;

    cluster.control_plane().remove_pod("default", "pod-b2")?;
    is_refused(&cluster, &web)?;
    cluster.pod_object("web", a2, true)?;
    cluster.until_answered_by(&web, &["pod-a2"])?;
    cluster.give_back()
}

#[test]
fn deleted_service_is_no_longer_answered_and_another_is() -> Result<()> {
    let cluster = Cluster::shared(Shape::Bridged)?;
    let rig = cluster.rig();
    let (web, other) = (cluster.publish("web", false)?, cluster.publish("other", false)?);
    for service in [&web, &other] {
        cluster.endpoints(service, &[rig.pod(1, 1)?])?;
        cluster.until_answered_by(service, &["pod-b2"])?;
    }
    drop(cluster.control_plane().kubectl(&["delete", "service", "web"])?);
    for (from, question) in cluster.askers(&web)? {
        until(from, question, Result::is_err)?;
    }
    for (family, protocol) in matrix() {
        // The port belongs to no Service any more, so the node itself refuses.
        let question = Ask::new(protocol, web.node_port(rig.node(0)?, family, protocol)?);
        until(rig.client(), question, |outcome| *outcome == Err(Failure::Refused))?;
        refused(rig.client(), question)?;
    }
    cluster.until_answered_by(&other, &["pod-b2"])?;
    addresses_of_a_range_are_dropped_while_it_is_there(&cluster)?;
    cluster.give_back()
}

/// A range of Services is added to a running cluster and removed: packets to an address in it that no Service has are
/// dropped with a named reason, and are otherwise routed like any other packet.
fn addresses_of_a_range_are_dropped_while_it_is_there(cluster: &Cluster) -> Result<()> {
    let (rig, control_plane) = (cluster.rig(), cluster.control_plane());
    let ranges = ["10.111.0.0/24", "fd00:111::/112"];
    let drops = || rig.agent(0)?.metric(&["lb_drops_total", "unallocated_address"]);
    let asked = || -> Result<f64> {
        let before = drops()?;
        for to in ["10.111.0.7:80", "[fd00:111::7]:80"] {
            drop(rig.pod(0, 0)?.peer().ask(Ask::udp(to.parse()?).within(100)));
        }
        Ok(drops()? - before)
    };
    let until_dropped = |expected: f64| {
        wait_until_ok(SOON, "addresses that no Service has", || {
            let dropped = asked()?;
            ensure!((dropped - expected).abs() < 0.5, "{dropped} packets, not {expected}");
            Ok(())
        })
    };
    until_dropped(0.0)?;
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "more"}, "spec": {"cidrs": ranges},
    });
    control_plane.apply(&object.to_string())?;
    until_dropped(2.0)?;
    drop(control_plane.kubectl(&["delete", "servicecidr", "more", "--wait=false"])?);
    // Without its finalizer the object is deleted at once; its controller would take ten seconds.
    let let_go = r#"{"metadata": {"finalizers": null}}"#;
    drop(control_plane.kubectl(&["patch", "servicecidr", "more", "--type=merge", "-p", let_go]));
    until_dropped(0.0)
}

/// Checks that all clients are refused at once.
fn is_refused(cluster: &Cluster, service: &Published) -> Result<()> {
    for (from, question) in cluster.askers(service)? {
        until(from, question, |outcome| *outcome == Err(Failure::Refused))?;
        refused(from, question)?;
    }
    Ok(())
}
