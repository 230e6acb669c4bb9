//! Statements 57 to 75: what is allocated, and what is refused because it is in use.

use super::*;

#[test]
fn statements_57_60_addresses_by_name() {
    let mut cluster = Cluster::dual();
    let with = |address: &str| web_with(json!({"clusterIP": address}));
    assert!(cluster.create(&with("10.96.136.8")).is_ok());
    assert_eq!(
        refusal(cluster.create(&with("10.96.136.8"))),
        "spec.clusterIPs: Invalid value: [\"10.96.136.8\"]: failed to allocate IP 10.96.136.8: provided IP is already allocated"
    );
    for reserved in ["10.96.0.0", "10.96.255.255", "192.0.2.1"] {
        let text = refusal(cluster.create(&with(reserved)));
        let end = format!(
            "failed to allocate IP {reserved}: the provided network does not match the current range"
        );
        assert!(text.ends_with(&end), "{text}");
    }
}

#[test]
fn statement_61_a_full_range_is_an_internal_error() {
    let mut cluster = Cluster::new(&["10.0.0.0/29"]);
    for _ in 0..6 {
        assert!(cluster.create(&web()).is_ok());
    }
    let full = "failed to allocate a serviceIP for Service \"x\": range is full";
    assert_eq!(cluster.create(&web()), Err(Refusal::Internal(full.into())));
}

#[test]
fn statement_62_both_families_or_neither() {
    let mut cluster = Cluster::new(&["10.96.0.0/16", "fd00::/125"]);
    let both = web_with(json!({"ipFamilyPolicy": "RequireDualStack"}));
    for _ in 0..7 {
        assert!(cluster.create(&both).is_ok());
    }
    let before = cluster.books.clone();
    assert!(cluster.create(&both).is_err());
    assert_eq!(cluster.books, before, "the address of the first family is free again");
}

#[test]
fn statement_63_a_dry_run_books_nothing() {
    let mut cluster = Cluster::dual();
    let dry = cluster.dry(&web_with(json!({"type": "NodePort"}))).unwrap();
    assert_eq!(dry.spec.cluster_ip, "10.96.0.0");
    assert_eq!(dry.spec.ports[0].node_port, 32_769);
    let named = web_with(json!({"clusterIP": "10.96.0.9"}));
    assert!(cluster.create(&named).is_ok());
    assert!(refusal(cluster.dry(&named)).ends_with("provided IP is already allocated"));
}

#[test]
fn statement_68_node_ports_by_name() {
    let mut cluster = Cluster::dual();
    let with = |port: i32| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    assert!(cluster.create(&with(30_001)).is_ok());
    assert_eq!(
        refusal(cluster.create(&with(30_001))),
        "spec.ports[0].nodePort: Invalid value: 30001: provided port is already allocated"
    );
    assert_eq!(
        refusal(cluster.create(&with(29_999))),
        "spec.ports[0].nodePort: Invalid value: 29999: provided port is not in the valid range. The range of valid ports is 30000-32767"
    );
}

#[test]
fn statement_70_one_number_serves_both_protocols() {
    let ports = json!([{"port": 53, "name": "a", "protocol": "UDP"}, {"port": 53, "name": "b"}]);
    let spec = json!({"type": "NodePort", "ports": ports});
    let made = Cluster::dual().create(&spec).unwrap().spec.ports;
    assert_ne!(made[0].node_port, 0);
    assert_eq!(made[0].node_port, made[1].node_port);
}

#[test]
fn statement_71_one_number_requested_twice() {
    let ports = json!([{"port": 1, "name": "a", "nodePort": 30_001}, {"port": 2, "name": "b", "nodePort": 30_001}]);
    let text = refusal(Cluster::dual().create(&json!({"type": "NodePort", "ports": ports})));
    assert_eq!(
        text,
        "spec.ports[1].nodePort: Invalid value: 30001: provided port is already allocated"
    );
}

#[test]
fn statement_72_node_ports_can_be_declined() {
    let balanced = |port: Value| json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [port]});
    let none = Cluster::dual().create(&balanced(json!({"port": 80}))).unwrap();
    assert_eq!(none.spec.ports[0].node_port, 0);
    let named = Cluster::dual().create(&balanced(json!({"port": 80, "nodePort": 30_001}))).unwrap();
    assert_eq!(named.spec.ports[0].node_port, 30_001);
}

#[test]
fn an_external_name_books_no_node_port() {
    let mut cluster = Cluster::dual();
    let port = json!([{"port": 80, "nodePort": 30_080}]);
    let of = |kind: &str| json!({"type": kind, "ports": port});
    let mut named = of("ExternalName");
    named["externalName"] = json!("db.example.org");
    let alias = cluster.create(&named).unwrap();
    assert_eq!(cluster.books, BTreeSet::new());
    let owner = cluster.create(&of("NodePort")).unwrap();
    let taken = "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
    assert_eq!(refusal(cluster.update(&alias, &of("NodePort"))), taken);
    assert_eq!(bookings(&alias), BTreeSet::new(), "its deletion frees no port of another");
    // Given up by its owner, the port is free for the Service that is no alias any more.
    drop(cluster.update(&owner, &json!({"type": "ClusterIP", "ports": [{"port": 80}]})).unwrap());
    let turned = cluster.update(&alias, &of("NodePort")).unwrap();
    assert!(cluster.books.contains(&Booking::Port(30_080)));
    drop(cluster.update(&turned, &named).unwrap());
    assert!(!cluster.books.contains(&Booking::Port(30_080)));
}

#[test]
fn statement_74_health_check_ports() {
    let local = |more: Value| {
        let mut spec = web_with(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}));
        spec["healthCheckNodePort"] = more;
        spec
    };
    let mut cluster = Cluster::dual();
    let chosen = cluster.create(&local(json!(0))).unwrap().spec;
    assert!(cluster.ranges.ports.contains(chosen.health_check_node_port));
    assert_ne!(chosen.health_check_node_port, chosen.ports[0].node_port);
    assert_eq!(cluster.create(&local(json!(30_009))).unwrap().spec.health_check_node_port, 30_009);
    assert_eq!(
        refusal(cluster.create(&local(json!(30_009)))),
        "spec.healthCheckNodePort: Invalid value: 30009: provided port is already allocated",
        "upstream: an internal error"
    );
}

#[test]
fn statement_75_no_port_left() {
    let mut cluster = Cluster::dual();
    cluster.ranges.ports = "30000-30001".parse().unwrap();
    let spec = web_with(json!({"type": "NodePort"}));
    assert!(cluster.create(&spec).is_ok() && cluster.create(&spec).is_ok());
    let full = "failed to allocate a nodePort: range is full";
    assert_eq!(cluster.create(&spec), Err(Refusal::Internal(full.into())));
}
