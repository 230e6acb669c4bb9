//! The changes that the tracker returns, and when.

mod histories;

use std::sync::Arc;

use lb_common::addr::Protocol;
use serde_json::json;

use super::*;
use crate::plan::TrafficPolicy;
use crate::snapshot::fixtures::{named, port, slice, slice_name, web_with_vips};
use crate::snapshot::{ServiceSpec, SliceSpec, address};
use crate::translate::Translated;

/// Makes a tracker on node `here` whose lists are complete and empty.
pub(super) fn synced() -> Tracker {
    let mut tracker = Tracker::new(NodeContext::named("here"));
    for kind in [ObjectKind::Service, ObjectKind::Slice, ObjectKind::Node] {
        tracker.apply(Event::ListBegan(kind));
        tracker.apply(Event::Synced(kind));
    }
    tracker
}

pub(super) fn cluster(name: &str) -> ServiceSpec {
    named(name, json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }), json!({}))
}

pub(super) fn service(spec: ServiceSpec) -> Event {
    Event::ServiceApplied(Box::new(spec))
}

pub(super) fn slice_of(service: &str, slice: SliceSpec) -> Event {
    Event::SliceApplied(Box::new(SliceSpec { service: Some(Arc::from(service)), ..slice }))
}

fn name(name: &str) -> ServiceName {
    ServiceName { namespace: "default".to_owned(), name: name.to_owned() }
}

fn apply(tracker: &mut Tracker, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
    events.into_iter().map(|event| tracker.apply(event)).collect()
}

/// Returns the names of the taken Services, with the number of endpoints of the first port, or `gone`.
fn taken(tracker: &mut Tracker) -> Vec<String> {
    let words = |(name, translated): (ServiceName, Option<Translated>)| match translated {
        Some(t) => format!("{} {}", name.name, t.ports.first().map_or(0, |p| p.endpoints.len())),
        None => format!("{} gone", name.name),
    };
    tracker.take().into_iter().map(words).collect()
}

#[test]
fn nothing_is_given_out_before_the_lists_are_complete() {
    let mut tracker = Tracker::new(NodeContext::named("here"));
    let events = [
        Event::ListBegan(ObjectKind::Service),
        service(cluster("web")),
        Event::ListBegan(ObjectKind::Slice),
        slice_of("web", slice("web-1", &["10.1.0.1"])),
        Event::ListBegan(ObjectKind::Node),
        Event::Synced(ObjectKind::Node),
        Event::Synced(ObjectKind::Service),
    ];
    drop(apply(&mut tracker, events));
    assert!(!tracker.is_synced());
    assert_eq!(tracker.dirty_since(), None, "no change waits for the agent");
    assert_eq!(taken(&mut tracker), Vec::<String>::new());
    let complete = Instant::now();
    assert_eq!(tracker.apply(Event::Synced(ObjectKind::Slice)), Effect::Services);
    assert!(tracker.dirty_since().is_some_and(|since| since >= complete), "it does from now on");
    assert_eq!(taken(&mut tracker), ["web 1"]);
    assert_eq!(tracker.dirty_since(), None);
}

#[test]
fn only_changed_services_are_returned() {
    let mut tracker = synced();
    drop(apply(&mut tracker, [service(cluster("a")), service(cluster("b"))]));
    assert_eq!(taken(&mut tracker), ["a 0", "b 0"]);
    assert_eq!(taken(&mut tracker), Vec::<String>::new());
    drop(apply(&mut tracker, [slice_of("b", slice("b-1", &["10.1.0.1"]))]));
    assert_eq!(taken(&mut tracker), ["b 1"]);
    assert_eq!(tracker.apply(Event::ServiceDeleted(name("a"))), Effect::Services);
    assert_eq!(taken(&mut tracker), ["a gone"]);
}

#[test]
fn the_same_object_again_is_nothing() {
    let mut tracker = synced();
    let events = || [service(cluster("web")), slice_of("web", slice("web-1", &["10.1.0.1"]))];
    drop(apply(&mut tracker, events()));
    drop(tracker.take());
    assert_eq!(apply(&mut tracker, events()), [Effect::Nothing; 2]);
    assert_eq!(tracker.dirty_since(), None);
    assert_eq!(taken(&mut tracker), Vec::<String>::new());
}

#[test]
fn a_change_that_is_taken_back_vanishes() {
    let mut tracker = synced();
    let one = || slice_of("web", slice("web-1", &["10.1.0.1"]));
    drop(apply(&mut tracker, [service(cluster("web")), one()]));
    drop(tracker.take());
    drop(apply(&mut tracker, [slice_of("web", slice("web-1", &["10.1.0.2"])), one()]));
    assert!(tracker.dirty_since().is_some());
    assert_eq!(taken(&mut tracker), Vec::<String>::new());
    drop(apply(&mut tracker, [Event::ServiceDeleted(name("web")), service(cluster("web"))]));
    assert_eq!(taken(&mut tracker), Vec::<String>::new());
    assert_eq!(tracker.dirty_since(), None);
}

#[test]
fn a_change_that_does_not_matter_here_vanishes() {
    let mut tracker = synced();
    let located = |node: &str| slice_of("web", slice("web-1", &[&format!("10.1.0.1 @{node}")]));
    drop(apply(&mut tracker, [service(cluster("web")), located("a")]));
    drop(tracker.take());
    assert_eq!(apply(&mut tracker, [located("b")]), [Effect::Services]);
    assert_eq!(taken(&mut tracker), Vec::<String>::new());
}

#[test]
fn a_slice_may_come_before_its_service_and_stay_after_it() {
    let mut tracker = synced();
    drop(apply(&mut tracker, [slice_of("web", slice("web-1", &["10.1.0.1"]))]));
    assert_eq!(taken(&mut tracker), Vec::<String>::new());
    drop(apply(&mut tracker, [service(cluster("web"))]));
    assert_eq!(taken(&mut tracker), ["web 1"]);
    drop(apply(&mut tracker, [Event::ServiceDeleted(name("web"))]));
    assert_eq!(taken(&mut tracker), ["web gone"]);
    assert_eq!(tracker.counts(), Counts { services: 0, slices: 1 });
    drop(apply(&mut tracker, [Event::SliceDeleted(slice_name("web-1"))]));
    assert_eq!(taken(&mut tracker), Vec::<String>::new());
    assert_eq!(tracker.counts(), Counts::default());
}

#[test]
fn a_slice_that_moves_changes_both_services() {
    let mut tracker = synced();
    let moved = |to| slice_of(to, slice("x", &["10.1.0.1"]));
    drop(apply(&mut tracker, [service(cluster("a")), service(cluster("b")), moved("a")]));
    assert_eq!(taken(&mut tracker), ["a 1", "b 0"]);
    drop(apply(&mut tracker, [moved("b")]));
    assert_eq!(taken(&mut tracker), ["a 0", "b 1"]);
    let orphan = SliceSpec { service: None, ..slice("x", &["10.1.0.1"]) };
    drop(apply(&mut tracker, [Event::SliceApplied(Box::new(orphan))]));
    assert_eq!(taken(&mut tracker), ["b 0"]);
    assert_eq!(tracker.counts().slices, 0);
}

#[test]
fn object_missing_from_a_new_list_is_removed() {
    let mut tracker = synced();
    let one = |name: &str| slice_of(name, slice(&format!("{name}-1"), &["10.1.0.1"]));
    drop(apply(&mut tracker, [service(cluster("a")), service(cluster("b")), one("a"), one("b")]));
    drop(tracker.take());
    drop(apply(&mut tracker, [Event::ListBegan(ObjectKind::Service), service(cluster("b"))]));
    assert_eq!(taken(&mut tracker), Vec::<String>::new(), "an unfinished list deletes nothing");
    drop(apply(&mut tracker, [Event::ListBegan(ObjectKind::Service), service(cluster("b"))]));
    assert_eq!(apply(&mut tracker, [Event::Synced(ObjectKind::Service)]), [Effect::Services]);
    assert_eq!(taken(&mut tracker), ["a gone"]);
    drop(apply(
        &mut tracker,
        [Event::ListBegan(ObjectKind::Slice), Event::Synced(ObjectKind::Slice)],
    ));
    assert_eq!(taken(&mut tracker), ["b 0"]);
}

#[test]
fn service_relabelled_for_a_different_proxy_is_removed() {
    let mut tracker = synced();
    drop(apply(&mut tracker, [service(cluster("web"))]));
    drop(tracker.take());
    let mut other = cluster("web");
    other.proxy_name = Some("other".into());
    drop(apply(&mut tracker, [service(other)]));
    assert_eq!(taken(&mut tracker), ["web gone"]);
    drop(apply(&mut tracker, [service(cluster("web"))]));
    assert_eq!(taken(&mut tracker), ["web 0"]);
}

fn node(zone: Option<&str>, ip: &str) -> Event {
    Event::NodeApplied(Box::new(NodeSpec {
        name: "here".into(),
        zone: zone.map(Arc::from),
        addresses: address(ip).into_iter().collect(),
        ..NodeSpec::default()
    }))
}

#[test]
fn the_zone_of_the_node_concerns_services_with_zone_hints_only() {
    let mut tracker = synced();
    let hinted = slice("b-1", &["10.1.0.1 zones=z1", "10.1.0.2 zones=z2"]);
    drop(apply(
        &mut tracker,
        [
            service(cluster("a")),
            service(cluster("b")),
            slice_of("a", slice("a-1", &["10.1.0.1"])),
            slice_of("b", hinted),
        ],
    ));
    drop(tracker.take());
    assert_eq!(apply(&mut tracker, [node(Some("z1"), "192.168.0.1")]), [Effect::Node]);
    assert_eq!(tracker.dirty.len(), 1);
    assert_eq!(taken(&mut tracker), ["b 2"]);
    assert_eq!(tracker.context().zone.as_deref(), Some("z1"));
    assert_eq!(apply(&mut tracker, [node(Some("z1"), "192.168.0.1")]), [Effect::Nothing]);
    // A Node that is missing for a moment must not move traffic to other zones.
    assert_eq!(apply(&mut tracker, [Event::NodeDeleted("here".into())]), [Effect::Node]);
    assert_eq!(taken(&mut tracker), [""; 0]);
    assert_eq!(tracker.node(), None);
    assert_eq!(tracker.context().zone.as_deref(), Some("z1"));
    assert_eq!(apply(&mut tracker, [node(None, "192.168.0.1")]), [Effect::Node]);
    assert_eq!(taken(&mut tracker), ["b 2"]);
}

#[test]
fn the_address_of_the_node_concerns_services_with_source_ranges_only() {
    let mut tracker = synced();
    let restricted = web_with_vips(
        json!({
            "type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }],
            "loadBalancerSourceRanges": ["192.168.0.0/24"],
        }),
        &["192.0.2.1"],
    );
    drop(apply(&mut tracker, [service(cluster("a")), service(restricted)]));
    drop(tracker.take());
    drop(apply(&mut tracker, [node(None, "192.168.0.1")]));
    assert_eq!(taken(&mut tracker), ["web 0"]);
    drop(apply(&mut tracker, [node(None, "192.168.0.2")]));
    assert_eq!(taken(&mut tracker), Vec::<String>::new(), "still in the range");
    drop(apply(&mut tracker, [node(None, "no address")]));
    assert_eq!(taken(&mut tracker), Vec::<String>::new(), "the node keeps its address");
}

#[test]
fn events_of_other_nodes_are_ignored() {
    let mut tracker = synced();
    let other = NodeSpec { name: "there".into(), ..NodeSpec::default() };
    let events = [Event::NodeApplied(Box::new(other)), Event::NodeDeleted("there".into())];
    assert_eq!(apply(&mut tracker, events), [Effect::Nothing; 2]);
    assert_eq!(tracker.node(), None);
}

#[test]
fn findings_stay_until_their_object_is_corrected_or_gone() {
    let mut tracker = synced();
    let wrong = named("web", json!({ "ports": [{ "port": 80 }] }), json!({}));
    drop(apply(&mut tracker, [service(wrong.clone())]));
    assert_eq!(taken(&mut tracker), ["web 0"]);
    assert_eq!(tracker.findings().next().expect("one").field, "spec.clusterIP");
    drop(apply(&mut tracker, [service(cluster("web"))]));
    drop(tracker.take());
    assert_eq!(tracker.findings().count(), 0);
    drop(apply(&mut tracker, [service(wrong), Event::ServiceDeleted(name("web"))]));
    drop(tracker.take());
    assert_eq!(tracker.findings().count(), 0);
}

#[test]
fn service_ports_without_local_endpoint_are_counted() {
    let mut tracker = synced();
    let mut local = cluster("web");
    local.internal_local = true;
    let count = |tracker: &mut Tracker| {
        drop(tracker.take());
        tracker.no_local().get(Family::V4, TrafficPolicy::Internal)
    };
    let at = |node: &str| slice_of("web", slice("web-1", &[&format!("10.1.0.1 @{node}")]));
    drop(apply(&mut tracker, [service(local), at("there")]));
    assert_eq!(count(&mut tracker), 1);
    drop(apply(&mut tracker, [at("here")]));
    assert_eq!(count(&mut tracker), 0);
    drop(apply(&mut tracker, [at("there")]));
    assert_eq!(count(&mut tracker), 1);
    drop(apply(&mut tracker, [Event::ServiceDeleted(name("web"))]));
    assert_eq!(count(&mut tracker), 0);
}

#[test]
fn changes_and_trigger_times_are_counted_once() {
    let mut tracker = synced();
    let stamped = |ip: &str, after: i64| {
        let time = tracker_start() + jiff::SignedDuration::from_secs(after);
        slice_of("web", SliceSpec { triggered: Some(time), ..slice("web-1", &[ip]) })
    };
    drop(apply(
        &mut tracker,
        [service(cluster("web")), stamped("10.1.0.1", -60), stamped("10.1.0.2", 60)],
    ));
    assert_eq!(tracker.pending(), Changes { services: 1, slices: 2 });
    assert_eq!(tracker.triggers().len(), 0, "not taken yet");
    drop(tracker.take());
    assert_eq!(tracker.pending(), Changes::default());
    assert_eq!(tracker.triggers().len(), 1, "the one before the start is not measured");
    assert_eq!(tracker.triggers().len(), 0);
    drop(apply(&mut tracker, [stamped("10.1.0.3", 90), Event::SliceDeleted(slice_name("web-1"))]));
    drop(tracker.take());
    assert_eq!(tracker.triggers().len(), 0, "a deletion forgets what was pending");
    assert_eq!(tracker.totals(), Changes { services: 1, slices: 4 });
}

fn tracker_start() -> Timestamp {
    Timestamp::now()
}

#[test]
fn service_cidrs_are_a_set() {
    let mut tracker = synced();
    let cidr = |text: &str| text.parse().expect("a prefix");
    let (a, b) = (cidr("10.96.0.0/12"), cidr("fd00::/108"));
    assert_eq!(tracker.apply(Event::ServiceCidrs(vec![a, b])), Effect::ServiceCidrs);
    assert_eq!(tracker.apply(Event::ServiceCidrs(vec![b, a, b])), Effect::Nothing);
    assert_eq!(tracker.service_cidrs(), [a, b]);
}

/// Another proxy translates packets to the other addresses, after the programs.
#[test]
fn service_cidrs_are_not_those_of_an_agent_with_a_proxy_name() {
    let name = Some("mine".into());
    let mut tracker =
        Tracker::new(NodeContext { service_proxy_name: name, ..NodeContext::named("here") });
    let cidr = "10.96.0.0/12".parse().expect("a prefix");
    tracker.apply(Event::ServiceCidrs(vec![cidr]));
    assert_eq!(tracker.service_cidrs(), []);
}

#[test]
fn slice_ports_with_a_different_name_do_not_serve() {
    let mut tracker = synced();
    let mut other = slice("web-1", &["10.1.0.1"]);
    other.ports = Box::new([port("http", Protocol::TCP, 8080)]);
    drop(apply(&mut tracker, [service(cluster("web")), slice_of("web", other)]));
    assert_eq!(taken(&mut tracker), ["web 0"]);
}

/// The object became unreadable: its last readable version is served, also after a whole list.
#[test]
fn unreadable_object_stays_while_the_list_has_it() {
    let mut tracker = synced();
    tracker.apply(service(cluster("web")));
    tracker.apply(slice_of("web", slice("web-1", &["10.0.0.5"])));
    assert_eq!(tracker.take().len(), 1);
    let list = |tracker: &mut Tracker, kept: bool| {
        for kind in [ObjectKind::Service, ObjectKind::Slice] {
            tracker.apply(Event::ListBegan(kind));
        }
        if kept {
            tracker.apply(Event::ServiceKept(name("web")));
            tracker.apply(Event::SliceKept(slice_name("web-1")));
            tracker.apply(Event::ServiceKept(name("never-read")));
        }
        for kind in [ObjectKind::Service, ObjectKind::Slice] {
            tracker.apply(Event::Synced(kind));
        }
        (tracker.counts(), tracker.take())
    };
    assert_eq!(list(&mut tracker, true), (Counts { services: 1, slices: 1 }, Vec::new()));
    assert_eq!(list(&mut tracker, false).0, Counts { services: 0, slices: 0 });
}

#[test]
fn a_list_that_was_read_in_part_removes_nothing() {
    let mut tracker = synced();
    tracker.apply(service(cluster("web")));
    tracker.apply(Event::ListBegan(ObjectKind::Service));
    assert_eq!(tracker.apply(Event::SyncedInPart(ObjectKind::Service)), Effect::Nothing);
    assert_eq!(tracker.counts().services, 1);
}
