//! Contract 1 and 2 as tables, with one test per row.

mod many;
mod order;
mod sets;

use lb_common::addr::Protocol;
use serde_json::json;

use super::*;
use crate::plan::{FrontendKind, TrafficPolicy};
use crate::snapshot::fixtures::{here, port, slice, web, web_with_vips};

/// Returns `ip:port` of the endpoints of a plan, each with its sets.
pub(super) fn endpoints(plan: &PortPlan) -> Vec<String> {
    let words = |endpoint: &crate::plan::EndpointPlan| {
        let mut line = format!("{}:{}", endpoint.ip, endpoint.port);
        for (set, name) in [(endpoint.cluster, " cluster"), (endpoint.local, " local")] {
            if set {
                line.push_str(name);
            }
        }
        line
    };
    plan.endpoints.iter().map(words).collect()
}

/// Returns `kind ip:port` of the frontends of a plan, with `local` and `sources`.
fn frontends(plan: &PortPlan) -> Vec<String> {
    let words = |f: &crate::plan::FrontendPlan| {
        let kind = match f.kind {
            FrontendKind::ClusterIp => "cluster",
            FrontendKind::ExternalIp => "external",
            FrontendKind::LoadBalancer => "vip",
            FrontendKind::NodePort => "node",
        };
        let local = if f.local_policy { " local" } else { "" };
        let sources = if f.checks_sources { " sources" } else { "" };
        format!("{kind} {}:{}{local}{sources}", f.ip, f.port)
    };
    plan.frontends.iter().map(words).collect()
}

fn alone(spec: &ServiceSpec) -> Translated {
    service(spec, &[], &here())
}

fn fields(translated: &Translated) -> Vec<&str> {
    translated.findings.iter().map(|finding| finding.field.as_str()).collect()
}

#[test]
fn cluster_ip_service_has_one_frontend_at_its_cluster_ip() {
    let spec = web(json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }));
    let translated = service(&spec, &[&slice("web-1", &["10.1.0.1 @here"])], &here());
    let [plan] = &*translated.ports else { panic!("one plan") };
    assert_eq!(plan.key.service.to_string(), "default/web");
    assert_eq!(
        (&*plan.key.port, plan.key.protocol, plan.key.family),
        ("", Protocol::TCP, Family::V4)
    );
    assert_eq!(plan.age, (0, "uid-of-web".to_owned()));
    assert_eq!(frontends(plan), ["cluster 10.0.0.1:80"]);
    assert_eq!(endpoints(plan), ["10.1.0.1:8080 cluster"]);
    assert!(plan.endpoints[0].on_this_node && plan.anywhere);
    assert_eq!((translated.health, translated.findings.len()), (None, 0));
}

#[test]
fn headless_external_name_and_services_without_cluster_ip_are_ignored() {
    for spec in [
        json!({ "clusterIP": "None", "ports": [{ "port": 80, "nodePort": 30080 }] }),
        json!({ "type": "ExternalName", "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }),
    ] {
        assert_eq!(alone(&web(spec)), Translated::default());
    }
    let translated = alone(&web(json!({
        "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30080 }],
        "externalIPs": ["198.51.100.1"],
    })));
    assert_eq!(translated.ports, []);
    assert_eq!(fields(&translated), ["spec.clusterIP"]);
}

#[test]
fn proxy_name_label_selects_the_services_of_the_agent() {
    let mut spec = web(json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }));
    let adopted = NodeContext { service_proxy_name: Some("mine".into()), ..here() };
    for (label, ordinary, named) in [
        (None, true, false),
        (Some(""), false, false),
        (Some("other"), false, false),
        (Some("mine"), false, true),
    ] {
        spec.proxy_name = label.map(Into::into);
        assert_eq!(is_ours(&spec, &here()), ordinary, "{label:?}");
        assert_eq!(is_ours(&spec, &adopted), named, "{label:?}");
        assert_eq!(alone(&spec).ports.len(), usize::from(ordinary));
    }
}

#[test]
fn a_dual_stack_service_has_a_plan_in_each_family() {
    let spec = web_with_vips(
        json!({
            "type": "LoadBalancer", "clusterIPs": ["fd00::1", "10.0.0.1"],
            "ipFamilies": ["IPv6", "IPv4"], "externalIPs": ["2001:db8::7", "198.51.100.7"],
            "ports": [{ "port": 80, "nodePort": 30080 }],
        }),
        &["192.0.2.1", "2001:db8::1"],
    );
    let (v4, v6) = (slice("web-4", &["10.1.0.1"]), slice("web-6", &["fd00:1::1"]));
    let translated = service(&spec, &[&v6, &v4], &here());
    let [four, six] = &*translated.ports else { panic!("two plans") };
    assert_eq!(
        frontends(four),
        [
            "cluster 10.0.0.1:80",
            "external 198.51.100.7:80",
            "vip 192.0.2.1:80",
            "node 0.0.0.0:30080"
        ]
    );
    assert_eq!(
        frontends(six),
        ["cluster fd00::1:80", "external 2001:db8::7:80", "vip 2001:db8::1:80", "node :::30080"]
    );
    assert_eq!(endpoints(four), ["10.1.0.1:8080 cluster"]);
    assert_eq!(endpoints(six), ["fd00:1::1:8080 cluster"]);
}

#[test]
fn a_single_stack_service_has_nothing_in_the_other_family() {
    let spec = web(json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "externalIPs": ["2001:db8::7"],
        "ports": [{ "port": 80, "nodePort": 30080 }],
    }));
    let translated = service(&spec, &[&slice("web-6", &["fd00:1::1"])], &here());
    let [plan] = &*translated.ports else { panic!("one plan") };
    assert_eq!(frontends(plan), ["cluster 10.0.0.1:80", "node 0.0.0.0:30080"]);
    assert_eq!(plan.endpoints, []);
}

#[test]
fn endpoints_match_by_port_name_and_protocol() {
    let spec = web(json!({ "clusterIP": "10.0.0.1", "ports": [
        { "name": "dns", "port": 53, "protocol": "UDP" },
        { "name": "dns-tcp", "port": 53 },
        { "name": "metrics", "port": 9153 },
    ]}));
    let mut slice = slice("web-1", &["10.1.0.1"]);
    slice.ports = Box::new([
        port("dns", Protocol::UDP, 5353),
        port("dns-tcp", Protocol::TCP, 5354),
        port("dns-tcp", Protocol::UDP, 1),
        port("metrics", Protocol::SCTP, 2),
        port("", Protocol::TCP, 3),
    ]);
    let translated = service(&spec, &[&slice], &here());
    let found: Vec<_> =
        translated.ports.iter().map(|plan| (&*plan.key.port, endpoints(plan))).collect();
    assert_eq!(
        found,
        [
            ("dns", vec!["10.1.0.1:5353 cluster".to_owned()]),
            ("dns-tcp", vec!["10.1.0.1:5354 cluster".to_owned()]),
            ("metrics", vec![]),
        ]
    );
}

#[test]
fn one_service_port_may_lead_to_different_numbers() {
    let spec = web(json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }));
    let mut other = slice("web-2", &["10.1.0.2"]);
    other.ports = Box::new([port("", Protocol::TCP, 9090)]);
    let translated = service(&spec, &[&slice("web-1", &["10.1.0.1"]), &other], &here());
    assert_eq!(endpoints(&translated.ports[0]), ["10.1.0.1:8080 cluster", "10.1.0.2:9090 cluster"]);
}

#[test]
fn duplicate_addresses_are_one_frontend_each() {
    let spec = web_with_vips(
        json!({
            "type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }],
            "externalIPs": ["192.0.2.1", "198.51.100.1", "198.51.100.1", "10.0.0.1"],
            "loadBalancerSourceRanges": ["203.0.113.0/24"],
        }),
        &["192.0.2.1", "192.0.2.1"],
    );
    assert_eq!(
        frontends(&alone(&spec).ports[0]),
        ["cluster 10.0.0.1:80", "external 198.51.100.1:80", "vip 192.0.2.1:80 sources"]
    );
}

#[test]
fn the_external_policy_counts_only_where_the_type_reaches_outside() {
    let policy = |spec: serde_json::Value| external_policy_is_local(&web(spec));
    let local = "Local";
    assert!(policy(json!({ "type": "LoadBalancer", "externalTrafficPolicy": local })));
    assert!(policy(json!({ "type": "NodePort", "externalTrafficPolicy": local })));
    assert!(policy(json!({ "externalIPs": ["192.0.2.1"], "externalTrafficPolicy": local })));
    assert!(!policy(json!({ "externalTrafficPolicy": local })));
    assert!(!policy(json!({ "type": "NodePort", "externalTrafficPolicy": "Cluster" })));
}

#[test]
fn each_policy_governs_its_own_frontends() {
    let ports = json!([{ "port": 80, "nodePort": 30080 }]);
    let internal = web(json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "ports": ports,
        "internalTrafficPolicy": "Local",
    }));
    assert_eq!(
        frontends(&alone(&internal).ports[0]),
        ["cluster 10.0.0.1:80 local", "node 0.0.0.0:30080"]
    );
    let external = web(json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "ports": ports,
        "externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.1"],
    }));
    assert_eq!(
        frontends(&alone(&external).ports[0]),
        ["cluster 10.0.0.1:80", "external 192.0.2.1:80 local", "node 0.0.0.0:30080 local"]
    );
}

#[test]
fn affinity_is_the_same_in_every_port() {
    let spec = web(json!({
        "clusterIPs": ["10.0.0.1", "fd00::1"], "sessionAffinity": "ClientIP",
        "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }],
    }));
    let translated = alone(&spec);
    assert_eq!(translated.ports.len(), 4);
    assert!(translated.ports.iter().all(|plan| plan.affinity == Some(10_800)));
}

fn restricted(ranges: &[&str]) -> Translated {
    restricted_on(&here(), ranges)
}

fn restricted_on(node: &NodeContext, ranges: &[&str]) -> Translated {
    let spec = web_with_vips(
        json!({
            "type": "LoadBalancer", "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ports": [{ "port": 80, "nodePort": 30080 }], "externalIPs": ["198.51.100.1"],
            "loadBalancerSourceRanges": ranges,
        }),
        &["192.0.2.1", "2001:db8::1"],
    );
    service(&spec, &[], node)
}

fn sources(plan: &PortPlan) -> Vec<String> {
    plan.sources.iter().map(ToString::to_string).collect()
}

#[test]
fn source_ranges_restrict_the_vips_and_nothing_else() {
    let translated = restricted(&["203.0.113.0/24", "10.0.0.0/8", "203.0.113.000/024"]);
    assert_eq!(
        frontends(&translated.ports[0]),
        [
            "cluster 10.0.0.1:80",
            "external 198.51.100.1:80",
            "vip 192.0.2.1:80 sources",
            "node 0.0.0.0:30080"
        ]
    );
    assert_eq!(sources(&translated.ports[0]), ["10.0.0.0/8", "203.0.113.0/24"]);
}

#[test]
fn ranges_of_the_other_family_alone_restrict_nothing() {
    let translated = restricted(&["203.0.113.0/24"]);
    assert_eq!(frontends(&translated.ports[1])[1], "vip 2001:db8::1:80");
    assert_eq!(sources(&translated.ports[1]), Vec::<String>::new());
}

#[test]
fn a_range_with_the_node_in_it_admits_the_vips_themselves() {
    let translated = restricted(&["192.168.0.0/24", "fd00:192::/32"]);
    assert_eq!(sources(&translated.ports[0]), ["192.0.2.1/32", "192.168.0.0/24"]);
    assert_eq!(sources(&translated.ports[1]), ["2001:db8::1/128", "fd00:192::/32"]);
}

/// Contract 8.3: `bindAddress` overrides the node IP of its family, even if it is a loopback address.
#[test]
fn a_bind_address_counts_as_the_node_in_source_ranges() {
    for (bound, expected) in [
        ("203.0.113.7", ["192.0.2.1/32 203.0.113.0/24", "2001:db8::1/128 fd00:192::/32"]),
        ("127.0.0.1", ["203.0.113.0/24", "2001:db8::1/128 fd00:192::/32"]),
        ("fd00:193::1", ["203.0.113.0/24", "fd00:192::/32"]),
    ] {
        let node = NodeContext { bound: bound.parse().ok(), ..here() };
        let translated = restricted_on(&node, &["203.0.113.0/24", "fd00:192::/32"]);
        let found = [0, 1].map(|family| sources(&translated.ports[family]).join(" "));
        assert_eq!(found, expected, "{bound}");
    }
    let node = NodeContext { bound: "127.0.0.1".parse().ok(), ..here() };
    let translated = restricted_on(&node, &["192.168.0.0/24"]);
    assert_eq!(sources(&translated.ports[0]), ["192.168.0.0/24"], "not the Node object's address");
}

#[test]
fn vips_of_a_family_with_only_invalid_ranges_are_not_served() {
    let translated = restricted(&["203.0.113.0/24", "2001:db8::/129"]);
    assert_eq!(frontends(&translated.ports[0])[2], "vip 192.0.2.1:80 sources");
    assert_eq!(frontends(&translated.ports[1]), ["cluster fd00::1:80", "node :::30080"]);
    assert_eq!(
        fields(&translated),
        ["spec.loadBalancerSourceRanges[1]", "spec.loadBalancerSourceRanges"]
    );
}

#[test]
fn only_load_balancers_with_policy_local_have_health_checks() {
    let health = |kind: &str, policy: &str, port: u16| {
        let spec = web(json!({
            "type": kind, "clusterIP": "10.0.0.1", "ports": [{ "port": 80, "nodePort": 30080 }],
            "externalTrafficPolicy": policy, "healthCheckNodePort": port,
        }));
        let translated = alone(&spec);
        (translated.health.map(|health| health.port), translated.findings.len())
    };
    assert_eq!(health("LoadBalancer", "Local", 32000), (Some(32000), 0));
    assert_eq!(health("LoadBalancer", "Local", 0), (None, 1));
    assert_eq!(health("LoadBalancer", "Cluster", 32000), (None, 0));
    assert_eq!(health("NodePort", "Local", 32000), (None, 0));
}

#[test]
fn health_counts_distinct_ready_addresses_on_this_node() {
    let spec = |ips: &[&str]| {
        web(json!({
            "type": "LoadBalancer", "clusterIPs": ips,
            "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }],
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
        }))
    };
    let mut v4 = slice(
        "web-4",
        &[
            "10.1.0.1 @here",
            "10.1.0.2 @here",
            "10.1.0.3 @here draining",
            "10.1.0.4 @there",
            "10.1.0.5",
            // A later endpoint with the same address counts instead.
            "10.1.0.6 @here",
            "10.1.0.6 @here unready",
        ],
    );
    v4.ports = Box::new([port("a", Protocol::TCP, 1), port("b", Protocol::TCP, 2)]);
    let mut copy = v4.clone();
    copy.name = crate::snapshot::fixtures::slice_name("web-5");
    let v6 = slice("web-6", &["fd00:1::1 @here"]);
    let health = |ips: &[&str]| service(&spec(ips), &[&v4, &copy, &v6], &here()).health;
    let expected = |v4, v6| Some(HealthCheck { port: 32000, local_ready: LocalReady { v4, v6 } });
    assert_eq!(health(&["10.0.0.1", "fd00::1"]), expected(2, 1), "each family has its own");
    assert_eq!(health(&["fd00::1", "10.0.0.1"]), expected(2, 1));
    assert_eq!(health(&["10.0.0.1"]), expected(2, 2), "as in the other family");
    assert_eq!(health(&["fd00::1"]), expected(1, 1));
}

#[test]
fn problems_of_slices_are_found_with_the_service() {
    let spec = web(json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }));
    let mut slice = slice("web-1", &["10.1.0.1"]);
    let mut findings = Findings::of("EndpointSlice", "default", "web-1");
    findings.wrong("endpoints[1].addresses[0]", "is no address", "remove it");
    slice.problems = findings.into_list().into();
    let translated = service(&spec, &[&slice], &here());
    assert_eq!(fields(&translated), ["endpoints[1].addresses[0]"]);
    assert_eq!(endpoints(&translated.ports[0]), ["10.1.0.1:8080 cluster"]);
}

#[test]
fn a_policy_local_without_local_endpoint_is_counted() {
    let spec = web(json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "internalTrafficPolicy": "Local",
        "externalTrafficPolicy": "Cluster", "ports": [{ "port": 80, "nodePort": 30080 }],
    }));
    let lacks = |endpoints: &[&str]| {
        let plan = service(&spec, &[&slice("web-1", endpoints)], &here()).ports.remove(0);
        (plan.lacks_local(TrafficPolicy::Internal), plan.lacks_local(TrafficPolicy::External))
    };
    assert_eq!(lacks(&["10.1.0.1 @there"]), (true, false));
    assert_eq!(lacks(&["10.1.0.1 @here"]), (false, false));
    assert_eq!(lacks(&["10.1.0.1 unready"]), (false, false));
}
