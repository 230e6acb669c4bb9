//! Contract 1.2 and 1.4: the fields that are read from a Service; one bad field affects no other.

use serde_json::{Value, json};

use super::*;
use crate::plan::Family;
use crate::snapshot::{PROXY_NAME_LABEL, address};

fn service(spec: impl Into<Value>) -> ServiceSpec {
    object(json!({ "metadata": { "namespace": "default", "name": "web" }, "spec": spec.into() }))
}

fn object(object: Value) -> ServiceSpec {
    ServiceSpec::of(&serde_json::from_value(object).expect("a Service")).expect("a name")
}

fn fields(spec: &ServiceSpec) -> Vec<&str> {
    spec.problems.iter().map(|finding| finding.field.as_str()).collect()
}

fn shown(ips: &[IpAddr]) -> Vec<String> {
    ips.iter().map(ToString::to_string).collect()
}

#[test]
fn ip_families_assign_the_cluster_ips() {
    let spec = service(json!({
        "clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "10.0.0.1"],
        "ipFamilies": ["IPv6", "IPv4"],
    }));
    assert_eq!(spec.cluster.get(Family::V4), address("10.0.0.1"));
    assert_eq!(spec.cluster.get(Family::V6), address("fd00::1"));
    assert!(spec.problems.is_empty());
}

#[test]
fn a_service_without_ip_families_has_the_family_of_its_cluster_ip() {
    let spec = service(json!({ "clusterIP": "10.0.0.1" }));
    assert_eq!((spec.cluster.v4, spec.cluster.v6), (address("10.0.0.1"), None));
}

#[test]
fn cluster_ip_of_the_wrong_family_is_not_served() {
    let spec =
        service(json!({ "clusterIPs": ["10.0.0.1", "10.0.0.2"], "ipFamilies": ["IPv4", "IPv6"] }));
    assert_eq!((spec.cluster.v4, spec.cluster.v6), (address("10.0.0.1"), None));
    assert_eq!(fields(&spec), ["spec.clusterIPs[1]"]);
}

#[test]
fn headless_and_external_name_need_no_cluster_ip() {
    let spec = service(json!({ "clusterIP": "None" }));
    assert!(spec.cluster.headless && spec.problems.is_empty());
    let spec = service(json!({ "type": "ExternalName", "externalName": "example.org" }));
    assert!(spec.kind == ServiceKind::ExternalName && spec.problems.is_empty());
    let spec = service(json!({ "type": "ExternalName", "clusterIP": "10.0.0.1" }));
    assert_eq!(spec.cluster.v4, None);
}

#[test]
fn a_missing_cluster_ip_is_named_with_its_remedy() {
    for spec in [json!({}), json!({ "clusterIP": "" })] {
        let spec = service(spec);
        assert_eq!(
            spec.problems[0].to_string(),
            "Service default/web: spec.clusterIP: is missing; the Service is not served; \
             write its address out, or None for a headless Service"
        );
    }
}

#[test]
fn a_node_port_service_without_node_port_is_named() {
    let spec = service(json!({
        "type": "NodePort", "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }],
    }));
    assert_eq!(fields(&spec), ["spec.ports[0].nodePort"]);
    assert_eq!(spec.ports.len(), 1);
}

#[test]
fn a_load_balancer_may_do_without_node_ports() {
    let spec = service(json!({
        "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
        "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }],
    }));
    assert!(spec.problems.is_empty());
    assert_eq!(spec.ports[0].node_port, 0);
}

#[test]
fn each_bad_port_is_named_and_the_good_ones_stay() {
    let spec = service(json!({
        "clusterIP": "10.0.0.1",
        "ports": [
            { "name": "a", "port": 53 },
            { "name": "a", "port": 53, "protocol": "UDP", "nodePort": 30053 },
            { "name": "zero", "port": 0 },
            { "name": "big", "port": 70000 },
            { "name": "odd", "port": 81, "protocol": "tcp" },
            { "name": "a", "port": 82 },
            { "name": "same", "port": 53 },
            { "name": "node", "port": 54, "protocol": "UDP", "nodePort": 30053 },
            { "name": "far", "port": 55, "nodePort": -7 },
        ],
    }));
    let ports: Vec<_> =
        spec.ports.iter().map(|p| (&*p.name, p.protocol, p.port, p.node_port)).collect();
    assert_eq!(
        ports,
        [
            ("a", Protocol::TCP, 53, 0),
            ("a", Protocol::UDP, 53, 30053),
            ("node", Protocol::UDP, 54, 0),
            ("far", Protocol::TCP, 55, 0),
        ]
    );
    assert_eq!(
        fields(&spec),
        [
            "spec.ports[2].port",
            "spec.ports[3].port",
            "spec.ports[4].protocol",
            "spec.ports[5].name",
            "spec.ports[6].port",
            "spec.ports[7].nodePort",
            "spec.ports[8].nodePort",
        ]
    );
}

#[test]
fn unusable_external_ips_are_left_out() {
    let spec = service(json!({
        "clusterIP": "10.0.0.1",
        "externalIPs": ["198.51.100.01", "host", "0.0.0.0", "::", "127.0.0.1", "fe80::1", "2001:db8::1"],
    }));
    assert_eq!(shown(&spec.external_ips), ["198.51.100.1", "2001:db8::1"]);
    assert_eq!(spec.problems.len(), 5);
}

#[test]
fn addresses_that_are_too_many_for_the_ports_are_left_out() {
    let of = |ports: u16, addresses: u8| {
        let ips: Vec<String> = (1..=addresses).map(|last| format!("198.51.100.{last}")).collect();
        let ingress: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        let named = |number| json!({ "name": format!("p{number}"), "port": number });
        let ports: Vec<Value> = (1..=ports).map(named).collect();
        object(json!({
            "metadata": { "namespace": "default", "name": "web" },
            "spec": { "clusterIP": "10.0.0.1", "externalIPs": ips, "ports": ports },
            "status": { "loadBalancer": { "ingress": ingress } },
        }))
    };
    let most = of(512, 128);
    assert_eq!((most.external_ips.len(), most.vips.len(), most.problems.len()), (128, 128, 0));
    let more = of(513, 128);
    assert_eq!((more.external_ips.len(), more.vips.len(), more.ports.len()), (0, 0, 513));
    assert_eq!(fields(&more), ["spec.externalIPs", "status.loadBalancer.ingress"]);
    assert_eq!(
        more.problems[0].to_string(),
        "Service default/web: spec.externalIPs: has 128 addresses for 513 ports; none of them is \
         served; divide the Service: addresses times ports may be 65536 at most"
    );
}

#[test]
fn only_ingress_addresses_in_mode_vip_are_served() {
    let spec = object(json!({
        "metadata": { "namespace": "default", "name": "web" },
        "spec": { "type": "LoadBalancer", "clusterIP": "10.0.0.1" },
        "status": { "loadBalancer": { "ingress": [
            { "ip": "192.0.2.1" },
            { "ip": "192.0.2.2", "ipMode": "VIP" },
            { "ip": "192.0.2.3", "ipMode": "Proxy" },
            { "hostname": "lb.example.org" },
            { "ip": "", "hostname": "lb.example.org" },
            { "ip": "lb" },
            { "ip": "192.0.2.4", "ipMode": "Magic" },
        ]}},
    }));
    assert_eq!(shown(&spec.vips), ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(
        fields(&spec),
        ["status.loadBalancer.ingress[5].ip", "status.loadBalancer.ingress[6].ipMode"]
    );
}

#[test]
fn source_ranges_are_trimmed_and_broken_ones_remembered() {
    let spec = service(json!({
        "clusterIP": "10.0.0.1",
        "loadBalancerSourceRanges": [" 203.0.113.000/025 ", "2001:db8::/32", "10.0.0.1"],
    }));
    let ranges: Vec<_> = spec.source_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(ranges, ["203.0.113.0/25", "2001:db8::/32"]);
    assert!(spec.broken_ranges);
    assert_eq!(fields(&spec), ["spec.loadBalancerSourceRanges[2]"]);
}

#[test]
fn affinity_has_its_default_and_its_range() {
    let affinity = |spec| {
        let spec = service(spec);
        (spec.affinity, spec.problems.len())
    };
    let with = |seconds: i32| {
        json!({
            "clusterIP": "10.0.0.1", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": seconds } },
        })
    };
    assert_eq!(affinity(json!({ "clusterIP": "10.0.0.1" })), (None, 0));
    assert_eq!(affinity(json!({ "clusterIP": "10.0.0.1", "sessionAffinity": "None" })), (None, 0));
    assert_eq!(
        affinity(json!({ "clusterIP": "10.0.0.1", "sessionAffinity": "ClientIP" })),
        (Some(10_800), 0)
    );
    assert_eq!(affinity(with(1)), (Some(1), 0));
    assert_eq!(affinity(with(86_400)), (Some(86_400), 0));
    for wrong in [0, -1, 86_401] {
        assert_eq!(affinity(with(wrong)), (Some(10_800), 1));
    }
    let odd = json!({ "clusterIP": "10.0.0.1", "sessionAffinity": "Cookie" });
    assert_eq!(affinity(odd), (None, 1));
}

#[test]
fn unknown_words_are_named_and_have_the_default() {
    let spec = service(json!({
        "clusterIP": "10.0.0.1", "type": "Magic", "internalTrafficPolicy": "Near",
        "externalTrafficPolicy": "local", "healthCheckNodePort": 99999,
    }));
    assert_eq!(spec.kind, ServiceKind::ClusterIp);
    assert!(!spec.internal_local && !spec.external_local);
    assert_eq!(
        fields(&spec),
        [
            "spec.type",
            "spec.internalTrafficPolicy",
            "spec.externalTrafficPolicy",
            "spec.healthCheckNodePort"
        ]
    );
}

#[test]
fn age_and_labels_are_kept() {
    let spec = object(json!({
        "metadata": {
            "namespace": "default", "name": "web", "uid": "u-1",
            "creationTimestamp": "1970-01-01T00:01:00Z",
            "labels": { PROXY_NAME_LABEL: "" },
        },
    }));
    assert_eq!((spec.created, &*spec.uid, spec.proxy_name.as_deref()), (60, "u-1", Some("")));
    let bare = object(json!({ "metadata": { "namespace": "default", "name": "web" } }));
    assert_eq!((bare.created, &*bare.uid), (0, "default/web"));
}
