//! Kubernetes Events as `kubectl describe` shows them, written by an agent that has only the role of
//! `deploy/daemonset.yaml`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::Maps;
use lb_agent::reconcile::Op;
use lb_common::addr::{Ip, Port, Protocol};
use lb_common::service::{Frontend, Service as Entry};
use lb_tests::agent::{Agent, Source};
use lb_tests::cluster::Cluster;
use lb_tests::control_plane::ServiceAccount;
use lb_tests::topology::{Family, Node, Shape};
use lb_tests::wait::{wait_until, wait_until_ok};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_mins(1);
const HEALTH_PORT: u16 = 31_999;
/// Maps that fill up early in this test. They are small from the first start on, because maps of desired state do not
/// shrink.
const SMALL: [&str; 4] = ["--map-size", "BACKENDS=16", "--map-size", "SERVICES=64"];

#[test]
fn problems_are_reported_once_on_the_object_concerned() -> Result<()> {
    let mut cluster = Cluster::without_agents(Shape::Routed)?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/daemonset.yaml");
    let manifests =
        fs::read_to_string(&file).with_context(|| format!("manifests {}", file.display()))?;
    cluster.control_plane().apply(&manifests)?;
    let account = cluster.control_plane().service_account("kube-system", "lb-agent")?;
    listeners_that_must_be_had_end_the_agent(&cluster, &account)?;
    let taken = cluster.rig().node(0)?.addresses().socket(Family::V4, HEALTH_PORT);
    let listener = listen(cluster.rig().node(0)?, taken)?;
    cluster.rig_mut().start_agents_from(Source::InPod(&account), &SMALL)?;
    younger_service_gets_an_event_that_names_the_older_one(&cluster)?;
    a_taken_health_check_port_is_reported_by_its_node(&cluster)?;
    drop(listener);
    an_address_that_cannot_be_served_is_named(&cluster)?;
    a_refused_service_has_an_event_that_names_the_full_map(&cluster)?;
    an_entry_that_a_map_refuses_is_reported(&cluster)
}

/// `bindAddressHardFail`, as in kube-proxy: an Event about the node, and then the agent ends.
fn listeners_that_must_be_had_end_the_agent(
    cluster: &Cluster,
    account: &ServiceAccount,
) -> Result<()> {
    let node = cluster.rig().node(0)?;
    for (port, reason) in
        [(10_256, "FailedToStartProxierHealthcheck"), (10_249, "FailedToStartMetricServer")]
    {
        let taken = SocketAddr::from(([127, 0, 0, 1], port));
        let listener = listen(node, taken)?;
        let flags = [&["--bind-address-hard-fail=true"][..], &SMALL].concat();
        let mut agent = Agent::spawn(node, Source::InPod(account), &flags)?;
        agent.refuses_to_run(&["cannot listen on", &taken.to_string(), "bindAddressHardFail"])?;
        let [event] = until_reported(cluster, "Node", "node-a", reason)?;
        ensure!(event["regarding"]["uid"] == "node-a", "as the kubelet names nodes: {event}");
        is_as_it_should_be(&event, "StartKubeProxy", "node-a")?;
        drop(listener);
    }
    Ok(())
}

fn younger_service_gets_an_event_that_names_the_older_one(cluster: &Cluster) -> Result<()> {
    let service = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"ports": [{"port": 80}], "externalIPs": ["203.0.113.7"]},
        })
    };
    let control_plane = cluster.control_plane();
    control_plane.apply(&service("a-first").to_string())?;
    let second = || SystemTime::UNIX_EPOCH.elapsed().map(|since| since.as_secs());
    let made = second()?;
    // API servers report creation times in whole seconds, and the older Service wins.
    wait_until(SOON, "another second", || second().is_ok_and(|now| now > made).then_some(()))?;
    control_plane.apply(&service("b-second").to_string())?;
    let events: [Value; 2] = until_reported(cluster, "Service", "b-second", "FrontendTaken")?;
    let uid =
        control_plane.kubectl(&["get", "service", "b-second", "-o", "jsonpath={.metadata.uid}"])?;
    for event in &events {
        let node =
            event["reportingInstance"].as_str().context("an Event without reporting instance")?;
        is_as_it_should_be(event, "Program", node)?;
        let about = &event["regarding"];
        ensure!(about["uid"] == uid && about["namespace"] == "default", "{about}, not {uid}");
        ensure!(about["apiVersion"] == "v1", "{about}");
        let note = event["note"].as_str().unwrap_or_default();
        ensure!(note.contains("default/a-first") && note.contains("80"), "{note}");
    }
    // Changes of the Service do not repeat the Event. A third Service serves as a marker: its Event comes after all
    // earlier ones.
    for number in 0..3 {
        let label = format!("touched={number}");
        drop(control_plane.kubectl(&["label", "--overwrite", "service", "b-second", &label])?);
    }
    control_plane.apply(&service("c-third").to_string())?;
    drop::<[Value; 2]>(until_reported(cluster, "Service", "c-third", "FrontendTaken")?);
    drop::<[Value; 2]>(until_reported(cluster, "Service", "b-second", "FrontendTaken")?);
    Ok(())
}

fn a_taken_health_check_port_is_reported_by_its_node(cluster: &Cluster) -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "balanced"},
        "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": HEALTH_PORT, "ports": [{"port": 80}],
        },
    });
    cluster.control_plane().apply(&service.to_string())?;
    let reason = "FailedToStartServiceHealthcheck";
    let [event] = until_reported(cluster, "Service", "balanced", reason)?;
    is_as_it_should_be(&event, "Listen", "node-a")?;
    let note = event["note"].as_str().unwrap_or_default();
    ensure!(note.contains(&HEALTH_PORT.to_string()), "{note}");
    Ok(())
}

/// The API server accepts any load balancer address. The agent also counts the parts of a Service that it does not
/// serve.
fn an_address_that_cannot_be_served_is_named(cluster: &Cluster) -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "looped"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    });
    let control_plane = cluster.control_plane();
    control_plane.apply(&service.to_string())?;
    let status = r#"{"status": {"loadBalancer": {"ingress": [{"ip": "127.0.0.7"}]}}}"#;
    let patch =
        ["patch", "service", "looped", "--subresource=status", "--type=merge", "-p", status];
    drop(control_plane.kubectl(&patch)?);
    let events: [Value; 2] = until_reported(cluster, "Service", "looped", "ServiceNotFullyServed")?;
    for note in notes(&events, "Translate")? {
        ensure!(
            note.contains("status.loadBalancer.ingress[0].ip") && note.contains("127.0.0.7"),
            "{note}"
        );
    }
    let agent = cluster.rig().agent(0)?;
    let found = |expected: f64| {
        wait_until_ok(SOON, "unusable fields are counted", || {
            let counted = agent.metric(&["lb_findings"])?;
            ensure!((counted - expected).abs() < 0.5, "{counted}, not {expected}");
            Ok(())
        })
    };
    found(1.0)?;
    let get = ["get", "service", "looped", "-o", "jsonpath={.spec.clusterIP}"];
    let address: Ipv4Addr = control_plane.kubectl(&get)?.trim().parse()?;
    let address = Ip::v4(address.octets());
    drop(control_plane.kubectl(&["delete", "service", "looped"])?);
    found(0.0)?;
    // Its entries stay while flows may use them. Later in this test they would leave room that must not exist.
    let maps = Maps::open(&cluster.rig().node(0)?.bpf().join(LAYOUT).join("maps"))?;
    wait_until(SOON, "its entries are gone", || {
        let entries = maps.services().ok()?;
        entries.iter().all(|(frontend, _)| frontend.ip != address).then_some(())
    })
}

fn a_refused_service_has_an_event_that_names_the_full_map(cluster: &Cluster) -> Result<()> {
    let endpoints: Vec<Value> =
        (1..=40).map(|last| json!({"addresses": [format!("10.244.9.{last}")]})).collect();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "large"},
        "spec": {"ports": [{"port": 80}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "large", "labels": {"kubernetes.io/service-name": "large"}},
        "ports": [{"name": "", "port": 80}], "endpoints": endpoints,
    });
    cluster.control_plane().apply(&format!("{service}\n---\n{slice}"))?;
    let events: [Value; 2] = until_reported(cluster, "Service", "large", "ServiceRefused")?;
    for note in notes(&events, "Program")? {
        ensure!(
            note.contains("BACKENDS is full") && note.contains("--map-size BACKENDS"),
            "{note}"
        );
    }
    Ok(())
}

/// Another process fills a map of one node.
fn an_entry_that_a_map_refuses_is_reported(cluster: &Cluster) -> Result<()> {
    let maps = cluster.rig().node(0)?.bpf().join(LAYOUT).join("maps");
    let mut maps = Maps::open(&maps)?;
    let taken = (1..=u8::MAX).take_while(|number| {
        let ip = Ip::v4([203, 0, 113, *number]);
        let frontend = Frontend::new(ip, Port::new(9), Protocol::UDP);
        maps.apply(&Op::PutService { frontend, service: Entry::default() }).is_ok()
    });
    ensure!(taken.count() < 64, "the map has no limit");
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "unwritten"},
        "spec": {"ports": [{"port": 80}]},
    });
    cluster.control_plane().apply(&service.to_string())?;
    let [event] = until_reported(cluster, "Service", "unwritten", "ServiceNotWritten")?;
    is_as_it_should_be(&event, "Program", "node-a")?;
    let note = event["note"].as_str().unwrap_or_default();
    ensure!(note.contains("SERVICES") && note.contains("IPv4"), "{note}");
    Ok(())
}

/// Occupies a port of a node.
fn listen(node: &Node, at: SocketAddr) -> Result<TcpListener> {
    node.netns().run_in(|| TcpListener::bind(at))?.with_context(|| format!("listen on {at}"))
}

/// Waits until an object has exactly `N` Events of a reason, and returns them.
fn until_reported<const N: usize>(
    cluster: &Cluster,
    kind: &str,
    name: &str,
    reason: &str,
) -> Result<[Value; N]> {
    let what = format!("{N} of {reason} about {kind} {name}");
    wait_until_ok(SOON, &what, || {
        let about = format!("regarding.kind={kind},regarding.name={name},reason={reason}");
        let get = ["get", "events.events.k8s.io", "-A", "-o", "json", "--field-selector", &about];
        let said = cluster.control_plane().kubectl(&get)?;
        let mut list: Value = serde_json::from_str(&said).context("kubectl printed no JSON")?;
        let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let found = items.len();
        items.try_into().ok().with_context(|| format!("{found} Events exist"))
    })
}

/// The notes of the Events of an action, from all nodes.
fn notes<'e>(events: &'e [Value], action: &str) -> Result<Vec<&'e str>> {
    let note = |event: &'e Value| {
        let node =
            event["reportingInstance"].as_str().context("an Event without reporting instance")?;
        is_as_it_should_be(event, action, node)?;
        event["note"].as_str().context("an Event without note")
    };
    events.iter().map(note).collect()
}

fn is_as_it_should_be(event: &Value, action: &str, node: &str) -> Result<()> {
    ensure!(event["type"] == "Warning" && event["action"] == action, "{event}");
    ensure!(event["reportingController"] == "lb-agent", "{event}");
    ensure!(event["reportingInstance"] == node, "{event}");
    ensure!(event["eventTime"].is_string(), "{event}");
    Ok(())
}
