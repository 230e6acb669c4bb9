//! Contract 1.5: the fields that are read from a slice, and those that are ignored.

use serde_json::{Value, json};

use super::*;
use crate::snapshot::object::{HEADLESS_LABEL, SERVICE_NAME_LABEL, TRIGGER_TIME};

fn slice(object: Value) -> SliceSpec {
    let object = serde_json::from_value(object).expect("an EndpointSlice");
    SliceSpec::of(&object, &mut Interner::default()).expect("a name")
}

fn with_endpoints(endpoints: impl Into<Value>) -> SliceSpec {
    slice(json!({
        "metadata": { "namespace": "default", "name": "web-1" },
        "addressType": "IPv4",
        "endpoints": endpoints.into(),
    }))
}

#[test]
fn the_owning_service_is_a_label() {
    let owned = slice(json!({
        "metadata": { "namespace": "d", "name": "x", "labels": { SERVICE_NAME_LABEL: "web" } },
        "addressType": "IPv6",
    }));
    assert_eq!(owned.service.as_deref(), Some("web"));
    assert_eq!(owned.family, Some(Family::V6));
    let headless = json!({ SERVICE_NAME_LABEL: "web", HEADLESS_LABEL: "" });
    for labels in [json!({}), json!({ SERVICE_NAME_LABEL: "" }), headless] {
        let orphan = slice(json!({
            "metadata": { "namespace": "d", "name": "x", "labels": labels },
            "addressType": "IPv4",
        }));
        assert_eq!(orphan.service, None);
    }
}

#[test]
fn missing_conditions_have_the_defaults() {
    let slice = with_endpoints(json!([
        { "addresses": ["10.1.0.1"] },
        { "addresses": ["10.1.0.2"], "conditions": {} },
        { "addresses": ["10.1.0.3"], "conditions": { "ready": false, "terminating": true } },
    ]));
    let conditions: Vec<_> =
        slice.endpoints.iter().map(|e| (e.ready, e.serving, e.terminating)).collect();
    assert_eq!(conditions, [(true, true, false), (true, true, false), (false, true, true)]);
}

#[test]
fn only_the_first_address_counts_and_leading_zeros_are_decimal() {
    let slice = with_endpoints(json!([
        { "addresses": ["10.1.0.010", "10.1.0.2"] },
        { "addresses": [] },
    ]));
    assert_eq!(slice.endpoints.len(), 1);
    assert_eq!(slice.endpoints[0].ip.to_string(), "10.1.0.10");
    assert!(slice.problems.is_empty());
}

#[test]
fn an_endpoint_of_no_use_is_named_and_the_others_stay() {
    let slice = with_endpoints(json!([
        { "addresses": ["10.1.0.1"] },
        { "addresses": ["fd00::1"] },
        { "addresses": ["pod"] },
        { "addresses": ["127.0.0.1"] },
        { "addresses": ["169.254.0.1"] },
        { "addresses": ["0.0.0.0"] },
        { "addresses": ["224.0.0.1"] },
    ]));
    assert_eq!(slice.endpoints.len(), 1);
    let fields: Vec<_> = slice.problems.iter().map(|finding| finding.field.as_str()).collect();
    assert_eq!(
        fields,
        (1..7).map(|at| format!("endpoints[{at}].addresses[0]")).collect::<Vec<_>>()
    );
}

#[test]
fn fqdn_slices_have_no_endpoints_and_no_problems() {
    let slice = slice(json!({
        "metadata": { "namespace": "d", "name": "x" },
        "addressType": "FQDN",
        "endpoints": [{ "addresses": ["example.org"] }],
    }));
    assert_eq!((slice.family, slice.endpoints.len(), slice.problems.len()), (None, 0, 0));
}

#[test]
fn ports_without_name_or_number_are_ignored_and_wrong_ones_named() {
    let slice = slice(json!({
        "metadata": { "namespace": "d", "name": "x" },
        "addressType": "IPv4",
        "ports": [
            { "name": "", "port": 80 },
            { "name": "dns", "port": 53, "protocol": "UDP" },
            { "port": 81 },
            { "name": "all" },
            { "name": "zero", "port": 0 },
            { "name": "big", "port": 65536 },
            { "name": "negative", "port": -1 },
            { "name": "quic", "port": 443, "protocol": "QUIC" },
        ],
    }));
    let ports: Vec<_> = slice.ports.iter().map(|p| (&*p.name, p.protocol, p.port)).collect();
    assert_eq!(ports, [("", Protocol::TCP, 80), ("dns", Protocol::UDP, 53)]);
    let fields: Vec<_> = slice.problems.iter().map(|finding| finding.field.as_str()).collect();
    assert_eq!(fields, ["ports[5].port", "ports[6].port", "ports[7].protocol"]);
}

#[test]
fn hints_and_node_names_are_kept() {
    let slice = with_endpoints(json!([
        {
            "addresses": ["10.1.0.1"],
            "nodeName": "a",
            "hints": { "forZones": [{ "name": "z1" }], "forNodes": [{ "name": "a" }] },
        },
        { "addresses": ["10.1.0.2"], "nodeName": "", "hints": { "forZones": [] } },
    ]));
    let [first, second] = &*slice.endpoints else { panic!("{slice:?}") };
    let hints = first.hints.as_ref().expect("hints");
    assert_eq!((&*hints.zones[0], &*hints.nodes[0]), ("z1", "a"));
    assert_eq!(first.node.as_deref(), Some("a"));
    assert_eq!((&second.node, &second.hints), (&None, &None));
}

#[test]
fn the_trigger_time_is_read() {
    let stamped = |stamp: &str| {
        slice(json!({
            "metadata": { "namespace": "d", "name": "x", "annotations": { TRIGGER_TIME: stamp } },
            "addressType": "IPv4",
        }))
        .triggered
    };
    assert_eq!(
        stamped("2026-11-21T10:00:00.5Z").map(Timestamp::as_millisecond),
        Some(1_795_255_200_500)
    );
    assert_eq!(stamped("yesterday"), None);
}
