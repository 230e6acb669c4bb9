//! Scenarios with a scripted server: the requests, and the events that follow.

mod odd;
mod pages;
mod restore;
mod server;

use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use self::server::{Answer, Script};
use super::*;
use crate::snapshot::ObjectKind;

const QUICK: Pace = Pace {
    first: Duration::from_millis(1),
    most: Duration::from_millis(20),
    relist: Duration::from_millis(20),
    lasting: Duration::from_millis(100),
    silence: Duration::from_mins(1),
    list_silence: Duration::from_mins(1),
    stream_silence: Duration::from_mins(1),
    avoided: Duration::from_mins(1),
    absent: Duration::from_mins(1),
    refused: Duration::from_mins(1),
};

struct Run {
    script: Script,
    view: ViewHealth,
    events: mpsc::Receiver<Event>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Follows the server of this script on node `here`.
fn run(script: Script, service_proxy_name: Option<&str>, list: ListMode) -> Run {
    run_at(script, service_proxy_name, list, QUICK)
}

fn run_at(script: Script, service_proxy_name: Option<&str>, list: ListMode, pace: Pace) -> Run {
    let view = ViewHealth::default();
    let (sender, events) = mpsc::channel(100);
    let watch = Watch {
        node: "here".to_owned(),
        service_proxy_name: service_proxy_name.map(str::to_owned),
        list,
    };
    let client = script.client();
    let task = tokio::spawn(watch.run_at(client, view.clone(), sender, pace));
    Run { script, view, events, task }
}

impl Run {
    /// Returns the next events of a kind as text.
    async fn events(&mut self, kind: ObjectKind, count: usize) -> Vec<String> {
        let mut found = Vec::new();
        while found.len() < count {
            let event = timeout(Duration::from_mins(1), self.events.recv());
            let event = event.await.expect("an event in time").expect("a sender");
            found.extend(Some(words(&event)).filter(|(of, _)| *of == kind).map(|(_, words)| words));
        }
        found
    }

    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let check = async {
            while !is(self) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_mins(1), check).await.expect(what);
    }
}

fn words(event: &Event) -> (ObjectKind, String) {
    match event {
        Event::ServiceApplied(spec) => (ObjectKind::Service, format!("+{}", spec.name.name)),
        Event::ServiceDeleted(name) => (ObjectKind::Service, format!("-{}", name.name)),
        Event::ServiceKept(name) => (ObjectKind::Service, format!("={}", name.name)),
        Event::SliceKept(name) => (ObjectKind::Slice, format!("={}", name.name)),
        Event::NodeKept(name) => (ObjectKind::Node, format!("={name}")),
        Event::SliceApplied(slice) => (ObjectKind::Slice, format!("+{}", slice.name.name)),
        Event::SliceDeleted(name) => (ObjectKind::Slice, format!("-{}", name.name)),
        Event::NodeApplied(node) => (ObjectKind::Node, format!("+{}", node.name)),
        Event::NodeDeleted(name) => (ObjectKind::Node, format!("-{name}")),
        Event::ServiceCidrs(cidrs) => (ObjectKind::ServiceCidr, format!("{} cidrs", cidrs.len())),
        Event::ListBegan(kind) => (*kind, "list".to_owned()),
        Event::Synced(kind) => (*kind, "synced".to_owned()),
        Event::SyncedInPart(kind) => (*kind, "in part".to_owned()),
    }
}

#[tokio::test]
async fn a_streamed_list_becomes_events() {
    let script = Script::new(|asked| match (asked.resource(), asked.streams()) {
        ("services", true) => Answer::stream(&[
            ("ADDED", "Service", "a", 1),
            ("ADDED", "Service", "b", 2),
            ("END", "Service", "", 3),
            ("MODIFIED", "Service", "a", 4),
            ("DELETED", "Service", "b", 5),
        ]),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Streaming);
    let events = run.events(ObjectKind::Service, 6).await;
    assert_eq!(events, ["list", "+a", "+b", "synced", "+a", "-b"]);
    assert!(run.view.kinds()[&ObjectKind::Service].synced);
}

#[tokio::test]
async fn requests_select_only_needed_objects() {
    let run = run(Script::new(|_| Answer::Hang), None, ListMode::Paged);
    run.until("four requests", |run| run.script.asked().len() == 4).await;
    let mut asked = run.script.asked();
    asked.sort();
    assert_eq!(
        asked,
        [
            "/api/v1/nodes?fieldSelector=metadata.name=here&limit=500&resourceVersion=0&resourceVersionMatch=NotOlderThan",
            "/api/v1/services?fieldSelector=spec.clusterIP!=None\
             &labelSelector=!service.kubernetes.io/service-proxy-name\
             &limit=500&resourceVersion=0&resourceVersionMatch=NotOlderThan",
            "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=!service.kubernetes.io/headless\
             &limit=500&resourceVersion=0&resourceVersionMatch=NotOlderThan",
            "/apis/networking.k8s.io/v1/servicecidrs?limit=500&resourceVersion=0&resourceVersionMatch=NotOlderThan",
        ]
    );
}

#[tokio::test]
async fn adopted_proxy_name_is_in_the_label_selector() {
    let run = run(Script::new(|_| Answer::Hang), Some("mine"), ListMode::Paged);
    let wanted = "labelSelector=service.kubernetes.io/service-proxy-name=mine&";
    run.until("the label", |run| run.script.asked().iter().any(|a| a.contains(wanted))).await;
}

#[tokio::test]
async fn requests_do_without_streams_and_filters_if_refused() {
    let script = Script::new(|asked| match asked.resource() {
        "services" if asked.streams() => Answer::status(422, "Invalid", "sendInitialEvents"),
        "services" if asked.has("fieldSelector") => Answer::status(400, "BadRequest", "field"),
        "services" if asked.watches() => Answer::Hang,
        "services" => Answer::list("Service", &["a"], 7),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Streaming);
    // A list in pages begins before its request, so the refused one begins, too.
    assert_eq!(run.events(ObjectKind::Service, 4).await, ["list", "list", "+a", "synced"]);
    assert_eq!(run.view.oldest(), None);
}

#[tokio::test]
async fn a_streamed_list_that_never_ends_is_read_at_once() {
    let script = Script::new(|asked| match asked.resource() {
        "services" if asked.streams() => Answer::stream(&[("ADDED", "Service", "a", 1)]),
        "services" if asked.watches() => Answer::Hang,
        "services" => Answer::list("Service", &["a"], 7),
        _ => Answer::Hang,
    });
    let pace = Pace { stream_silence: Duration::from_millis(500), ..QUICK };
    let mut run = run_at(script, None, ListMode::Streaming, pace);
    let events = run.events(ObjectKind::Service, 5).await;
    assert_eq!(events, ["list", "+a", "list", "+a", "synced"]);
}

#[tokio::test]
async fn a_forgotten_place_is_a_new_list() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("endpointslices", 0) => Answer::list("EndpointSlice", &["x", "y"], 5),
        ("endpointslices", 1) => Answer::stream(&[("GONE", "EndpointSlice", "", 0)]),
        ("endpointslices", 2) => Answer::list("EndpointSlice", &["y"], 9),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    let events = run.events(ObjectKind::Slice, 7).await;
    assert_eq!(events, ["list", "+x", "+y", "synced", "list", "+y", "synced"]);
}

/// The client reads every JSON that is no event as a failure without code or message.
#[tokio::test]
async fn an_event_that_cannot_be_read_may_have_been_a_change_and_is_a_new_list() {
    for line in [r#"{"type":"BOOKMARK","object":{"metadata":{}}}"#, "[]"] {
        let script = Script::new(|asked| match (asked.resource(), asked.count()) {
            ("endpointslices", 0) => Answer::list("EndpointSlice", &["x", "y"], 5),
            ("endpointslices", 1) => Answer::Stream(vec![line.to_owned()]),
            ("endpointslices", 2) => Answer::list("EndpointSlice", &["y"], 9),
            _ => Answer::Hang,
        });
        let mut run = run(script, None, ListMode::Paged);
        assert_eq!(run.events(ObjectKind::Slice, 4).await, ["list", "+x", "+y", "synced"]);
        assert_eq!(run.events(ObjectKind::Slice, 3).await, ["list", "+y", "synced"], "{line}");
        run.until("fresh", |run| run.view.oldest().is_none()).await;
    }
}

#[tokio::test]
async fn a_place_that_is_refused_is_a_new_list() {
    for (code, message, version) in
        [(410, "too old", 9), (504, "Too large resource version: 9, current: 3", 3)]
    {
        let script = Script::new(move |asked| match (asked.resource(), asked.count()) {
            ("endpointslices", 0) => Answer::list("EndpointSlice", &["x"], 9),
            ("endpointslices", 1) => Answer::status(code, "Expired", message),
            ("endpointslices", 2) => Answer::list("EndpointSlice", &[], version),
            ("endpointslices", 3) => Answer::stream(&[]),
            _ => Answer::Hang,
        });
        let mut run = run(script, None, ListMode::Paged);
        let events = run.events(ObjectKind::Slice, 5).await;
        assert_eq!(events, ["list", "+x", "synced", "list", "synced"], "{code}");
        // Each request excludes older states than the known one, until the server reports that it has none as new.
        let bound = run.script.asked().iter().filter(|a| a.contains("slices")).nth(2).cloned();
        let is_bound = bound.is_some_and(|asked| asked.contains("resourceVersion=9&"));
        assert_eq!(is_bound, code == 410, "{:?}", run.script.asked());
        run.until("fresh", |run| run.view.oldest().is_none()).await;
    }
}

#[tokio::test]
async fn while_the_server_is_away_the_view_says_so_and_recovers() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("nodes", 0..3) => Answer::Broken,
        ("nodes", 3) => Answer::list("Node", &["here"], 5),
        ("nodes", 4..7) => Answer::status(503, "ServiceUnavailable", "later"),
        ("nodes", 7) => Answer::stream(&[("MODIFIED", "Node", "here", 6)]),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    let events = run.events(ObjectKind::Node, 7).await;
    assert_eq!(events, ["list", "list", "list", "list", "+here", "synced", "+here"]);
    assert!(!run.view.kinds().contains_key(&ObjectKind::Service), "the others are not concerned");
    run.until("fresh", |run| run.view.oldest().is_none()).await;
}

/// A token that expired before its successor was read: nothing known is withdrawn.
#[tokio::test]
async fn a_token_that_is_refused_for_a_while_costs_no_object() {
    let script = Script::new(|asked| match (asked.resource(), asked.count()) {
        ("services", 0) => Answer::list("Service", &["a", "b"], 5),
        ("services", 1..5) => Answer::status(401, "Unauthorized", "Unauthorized"),
        ("services", 5) => Answer::stream(&[("MODIFIED", "Service", "b", 6)]),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    let events = run.events(ObjectKind::Service, 5).await;
    assert_eq!(events, ["list", "+a", "+b", "synced", "+b"]);
    run.until("fresh", |run| run.view.oldest().is_none()).await;
}

/// A restarted server refuses all clients until it has read its rules: the reported Node still exists.
#[tokio::test]
async fn a_list_that_is_refused_later_takes_nothing_back() {
    for code in [401, 403] {
        let script = Script::new(move |asked| match (asked.resource(), asked.count()) {
            ("nodes", 0) => Answer::list("Node", &["here"], 5),
            ("nodes", 1) => Answer::status(410, "Expired", "too old"),
            ("nodes", 2..5) => Answer::status(code, "Refused", "not yet"),
            ("nodes", 5) => Answer::list("Node", &["here"], 9),
            _ => Answer::Hang,
        });
        let mut run = run(script, None, ListMode::Paged);
        let events = run.events(ObjectKind::Node, 9).await;
        let lists = ["list", "list", "list", "list", "+here", "synced"];
        assert_eq!(events, [&["list", "+here", "synced"], &lists[..]].concat(), "{code}");
        run.until("fresh", |run| run.view.oldest().is_none()).await;
    }
}

#[tokio::test]
async fn staleness_names_the_failure() {
    let script = Script::new(|asked| match asked.resource() {
        "services" => Answer::Broken,
        "endpointslices" => Answer::status(403, "Forbidden", "no"),
        "nodes" => Answer::Failure(502, "{}".to_owned()),
        _ => Answer::Hang,
    });
    let run = run(script, None, ListMode::Paged);
    run.until("three stale kinds", |run| {
        run.view.kinds().values().filter(|view| view.stale.is_some()).count() == 3
    })
    .await;
    let reason = |kind| run.view.kinds()[&kind].stale.as_ref().expect("stale").reason.clone();
    assert!(
        reason(ObjectKind::Service).ends_with("connection refused"),
        "{}",
        reason(ObjectKind::Service)
    );
    assert_eq!(
        reason(ObjectKind::Slice),
        "forbidden (403); grant get, list and watch on endpointslices"
    );
    assert_eq!(reason(ObjectKind::Node), "the server gives no reason (502)");
}

#[tokio::test]
async fn a_server_without_service_cidrs_is_served_without() {
    let script = Script::new(|asked| match asked.resource() {
        "servicecidrs" => Answer::status(404, "NotFound", "no such resource"),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    assert_eq!(run.events(ObjectKind::ServiceCidr, 2).await, ["list", "synced"]);
    assert_eq!(run.script.asked().iter().filter(|a| a.contains("servicecidrs")).count(), 1);
    assert_eq!(run.view.oldest(), None);
}

#[tokio::test]
async fn forbidden_node_does_not_delay_the_initial_sync() {
    let script = Script::new(|asked| match asked.resource() {
        "nodes" => Answer::status(403, "Forbidden", "no"),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    assert_eq!(run.events(ObjectKind::Node, 2).await, ["list", "synced"]);
}

#[tokio::test]
async fn service_cidrs_are_reported_as_a_whole() {
    let cidr = |name: &str, cidrs: &[&str], version: u32| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": { "name": name, "resourceVersion": version.to_string() },
            "spec": { "cidrs": cidrs },
        })
    };
    let list = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDRList",
        "metadata": { "resourceVersion": "5" },
        "items": [cidr("a", &["10.96.0.0/12"], 1), cidr("b", &["fd00::/108", "nonsense"], 2)],
    });
    let gone = json!({ "type": "DELETED", "object": cidr("a", &[], 6) });
    let script = Script::new(move |asked| match (asked.resource(), asked.count()) {
        ("servicecidrs", 0) => Answer::Whole(list.to_string()),
        ("servicecidrs", 1) => Answer::Stream(vec![gone.to_string()]),
        _ => Answer::Hang,
    });
    let mut run = run(script, None, ListMode::Paged);
    let events = run.events(ObjectKind::ServiceCidr, 4).await;
    assert_eq!(events, ["list", "2 cidrs", "synced", "1 cidrs"]);
}

#[tokio::test]
async fn watch_ends_when_its_receiver_is_closed() {
    let mut run = run(Script::new(|_| Answer::Hang), None, ListMode::Streaming);
    run.events.close();
    timeout(Duration::from_mins(1), &mut run.task).await.expect("an end").expect("no panic");
}
