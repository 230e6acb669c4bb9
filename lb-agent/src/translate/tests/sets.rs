//! Contract 2: the sets, row by row.

use serde_json::{Value, json};

use super::endpoints;
use crate::plan::PortPlan;
use crate::snapshot::fixtures::{here, slice, web};
use crate::snapshot::{NodeContext, ServiceSpec};
use crate::translate::service;

fn cluster() -> ServiceSpec {
    web(json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }))
}

fn internal_local() -> ServiceSpec {
    web(json!({
        "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }], "internalTrafficPolicy": "Local",
    }))
}

fn external_local() -> ServiceSpec {
    web(json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "externalTrafficPolicy": "Local",
        "ports": [{ "port": 80, "nodePort": 30080 }],
    }))
}

fn plan_on(spec: &ServiceSpec, list: &[&str], node: &NodeContext) -> PortPlan {
    service(spec, &[&slice("web-1", list)], node).ports.remove(0)
}

/// Returns the last part of each address with its sets, and "anywhere".
fn chosen(spec: &ServiceSpec, list: &[&str]) -> (String, bool) {
    let plan = plan_on(spec, list, &here());
    let short: Vec<_> = endpoints(&plan)
        .iter()
        .map(|line| line.trim_start_matches("10.1.0.").replace(":8080", ""))
        .collect();
    (short.join(", "), plan.anywhere)
}

fn table(spec: &ServiceSpec, rows: &[(&[&str], &str, bool)]) {
    for (list, sets, anywhere) in rows {
        assert_eq!(chosen(spec, list), ((*sets).to_owned(), *anywhere), "{list:?}");
    }
}

/// `pkg/proxy/endpointslicecache.go`, `addEndpoints`.
#[test]
fn last_of_equal_endpoints_that_does_not_terminate_counts() {
    table(
        &cluster(),
        &[
            (&["10.1.0.1 unready", "10.1.0.1"], "1 cluster", true),
            (&["10.1.0.1", "10.1.0.1 unready"], "", false),
            (&["10.1.0.1", "10.1.0.1 draining"], "1 cluster", true),
            (&["10.1.0.1 draining", "10.1.0.1 unready"], "", false),
            (&["10.1.0.1 draining", "10.1.0.1 gone"], "1 cluster", true),
        ],
    );
    let moved = ["10.1.0.1 @there", "10.1.0.1 @here"];
    assert_eq!(chosen(&internal_local(), &moved), ("1 local".to_owned(), true));
}

#[test]
fn policy_cluster_uses_all_ready_endpoints() {
    table(
        &cluster(),
        &[
            (
                &["10.1.0.1 @here", "10.1.0.2 @there", "10.1.0.3"],
                "1 cluster, 2 cluster, 3 cluster",
                true,
            ),
            (&["10.1.0.1", "10.1.0.2 unready"], "1 cluster", true),
            (&["10.1.0.1", "10.1.0.2 draining"], "1 cluster, 2", true),
            (&[], "", false),
        ],
    );
}

#[test]
fn without_ready_endpoints_the_draining_ones_serve() {
    table(
        &cluster(),
        &[
            (&["10.1.0.1 draining", "10.1.0.2 unready"], "1 cluster", true),
            (&["10.1.0.1 gone", "10.1.0.2 draining"], "2 cluster", true),
            (&["10.1.0.1 gone", "10.1.0.2 unready"], "", false),
        ],
    );
}

#[test]
fn an_endpoint_that_is_starting_is_never_used() {
    table(
        &cluster(),
        &[
            (&["10.1.0.1 starting"], "1", false),
            (&["10.1.0.1 starting", "10.1.0.2"], "1, 2 cluster", true),
        ],
    );
    table(&internal_local(), &[(&["10.1.0.1 starting @here"], "1", false)]);
}

#[test]
fn policy_local_uses_ready_endpoints_of_this_node() {
    table(
        &internal_local(),
        &[
            (&["10.1.0.1 @here", "10.1.0.2 @there"], "1 local, 2", true),
            (&["10.1.0.1 @here", "10.1.0.2 @here draining"], "1 local, 2", true),
            (&["10.1.0.1 @here draining", "10.1.0.2 @there"], "1 local, 2", true),
            (&["10.1.0.1 @there"], "1", true),
            (&["10.1.0.1 @there draining"], "1", true),
            (&["10.1.0.1 @there unready"], "", false),
            (&[], "", false),
        ],
    );
}

#[test]
fn an_endpoint_without_node_name_is_never_local() {
    table(&internal_local(), &[(&["10.1.0.1"], "1", true)]);
    let nameless = NodeContext::named("");
    assert!(!plan_on(&internal_local(), &["10.1.0.1"], &nameless).endpoints[0].on_this_node);
}

#[test]
fn the_external_policy_local_keeps_the_cluster_set_for_short_circuits() {
    table(
        &external_local(),
        &[
            (&["10.1.0.1 @here", "10.1.0.2 @there"], "1 cluster local, 2 cluster", true),
            (&["10.1.0.2 @there"], "2 cluster", true),
            (&["10.1.0.1 @here draining", "10.1.0.2 @there"], "1 local, 2 cluster", true),
            (
                &["10.1.0.1 @here draining", "10.1.0.2 @there draining"],
                "1 cluster local, 2 cluster",
                true,
            ),
            (&["10.1.0.1 unready"], "", false),
        ],
    );
}

#[test]
fn an_internal_policy_local_needs_the_cluster_set_where_it_is_reachable_from_outside() {
    let spec = web(json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "internalTrafficPolicy": "Local",
        "ports": [{ "port": 80, "nodePort": 30080 }],
    }));
    table(&spec, &[(&["10.1.0.1 @here", "10.1.0.2 @there"], "1 cluster local, 2 cluster", true)]);
}

#[test]
fn complete_zone_hints_keep_traffic_in_the_zone() {
    table(
        &cluster(),
        &[
            (&["10.1.0.1 zones=z1", "10.1.0.2 zones=z2"], "1 cluster, 2", true),
            (&["10.1.0.1 zones=z2,z1", "10.1.0.2 zones=z2"], "1 cluster, 2", true),
            (&["10.1.0.1 zones=z1", "10.1.0.2"], "1 cluster, 2 cluster", true),
            (&["10.1.0.1 zones=z2", "10.1.0.2 zones=z3"], "1 cluster, 2 cluster", true),
        ],
    );
}

#[test]
fn only_ready_endpoints_decide_about_hints() {
    table(
        &cluster(),
        &[
            (
                &["10.1.0.1 zones=z1", "10.1.0.2 zones=z2", "10.1.0.3 draining"],
                "1 cluster, 2, 3",
                true,
            ),
            (
                &["10.1.0.1 zones=z1 draining", "10.1.0.2 zones=z2 draining"],
                "1 cluster, 2 cluster",
                true,
            ),
            (&["10.1.0.1 zones=z1 unready", "10.1.0.2 zones=z2"], "2 cluster", true),
        ],
    );
}

#[test]
fn a_node_without_zone_ignores_zone_hints() {
    let list = ["10.1.0.1 zones=z1", "10.1.0.2 zones=z2"];
    let plan = plan_on(&cluster(), &list, &NodeContext::named("here"));
    assert!(plan.endpoints.iter().all(|endpoint| endpoint.cluster));
}

#[test]
fn complete_node_hints_come_before_zone_hints() {
    table(
        &cluster(),
        &[
            (&["10.1.0.1 nodes=here", "10.1.0.2 nodes=there"], "1 cluster, 2", true),
            (
                &["10.1.0.1 nodes=here zones=z1", "10.1.0.2 nodes=there zones=z1"],
                "1 cluster, 2",
                true,
            ),
            (
                &["10.1.0.1 nodes=there zones=z1", "10.1.0.2 nodes=there zones=z2"],
                "1 cluster, 2",
                true,
            ),
            (&["10.1.0.1 nodes=here", "10.1.0.2"], "1 cluster, 2 cluster", true),
            (&["10.1.0.1 nodes=here zones=z1", "10.1.0.2 zones=z2"], "1 cluster, 2", true),
        ],
    );
}

#[test]
fn hints_never_apply_to_the_local_set() {
    table(
        &external_local(),
        &[(&["10.1.0.1 @here zones=z2", "10.1.0.2 @there zones=z1"], "1 local, 2 cluster", true)],
    );
}

#[test]
fn of_equal_endpoints_the_last_slice_wins_unless_it_is_terminating() {
    let spec = cluster();
    let found = |first: &str, second: &str| {
        let (a, b) = (slice("web-a", &[first]), slice("web-b", &[second]));
        let plan = service(&spec, &[&b, &a], &here()).ports.remove(0);
        plan.endpoints.iter().map(|e| (e.on_this_node, e.cluster)).collect::<Vec<_>>()
    };
    assert_eq!(found("10.1.0.1 @here", "10.1.0.1 @there"), [(false, true)]);
    assert_eq!(found("10.1.0.1 @here draining", "10.1.0.1 @there"), [(false, true)]);
    assert_eq!(found("10.1.0.1 @here", "10.1.0.1 @there draining"), [(true, true)]);
    assert_eq!(found("10.1.0.1 @here draining", "10.1.0.1 @there draining"), [(true, true)]);
}

#[test]
fn endpoints_are_sorted_by_address_and_port() {
    let (sets, _) = chosen(&cluster(), &["10.1.0.10", "10.1.0.9", "10.1.0.1"]);
    assert_eq!(sets, "1 cluster, 9 cluster, 10 cluster");
}

#[test]
fn ready_but_not_serving_is_used_as_ready() {
    let mut slice = slice("web-1", &["10.1.0.1"]);
    slice.endpoints[0].serving = false;
    let plan = service(&cluster(), &[&slice], &here()).ports.remove(0);
    assert_eq!(endpoints(&plan), ["10.1.0.1:8080 cluster"]);
}

#[test]
fn a_service_in_no_object_but_the_spec_rejects() {
    let spec: Value = json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] });
    let plan = service(&web(spec), &[], &here()).ports.remove(0);
    assert!(plan.endpoints.is_empty() && !plan.anywhere);
}
