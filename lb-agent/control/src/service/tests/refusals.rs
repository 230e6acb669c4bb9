//! Statements 14 to 39: what is refused, and with which message.

use super::*;

fn refused(spec: &Value) -> String {
    refusal(Cluster::dual().create(spec))
}

fn refused_with(more: Value) -> String {
    refused(&web_with(more))
}

fn with_ports(ports: &Value) -> String {
    refused(&json!({"ports": ports}))
}

const RANGE: &str = "must be between 1 and 65535, inclusive";

#[test]
fn statement_14_ports_are_required() {
    assert_eq!(refused(&json!({})), "spec.ports: Required value");
}

#[test]
fn statement_15_several_ports_have_names() {
    assert_eq!(
        with_ports(&json!([{"port": 1}, {"port": 2}])),
        "[spec.ports[0].name: Required value, spec.ports[1].name: Required value]"
    );
    assert_eq!(
        with_ports(&json!([{"port": 1, "name": "a"}, {"port": 2, "name": "a"}])),
        r#"spec.ports[1].name: Duplicate value: "a""#
    );
    assert!(with_ports(&json!([{"port": 1, "name": "A"}])).contains("RFC 1123 label"));
}

#[test]
fn statement_16_a_port_of_zero_is_two_faults() {
    let one = |field: &str| format!("spec.ports[0].{field}: Invalid value: 0: {RANGE}");
    assert_eq!(
        with_ports(&json!([{"port": 0}])),
        format!("[{}, {}]", one("port"), one("targetPort"))
    );
}

#[test]
fn statement_17_ports_and_node_ports_are_unique_by_protocol() {
    assert_eq!(
        with_ports(&json!([{"port": 1, "name": "a"}, {"port": 1, "name": "b"}])),
        r#"spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":1,"TargetPort":0,"NodePort":0}"#
    );
    let ports = json!([{"port": 1, "name": "a"}, {"port": 1, "name": "b", "protocol": "UDP"}]);
    assert!(Cluster::dual().create(&json!({"ports": ports})).is_ok());
}

#[test]
fn duplicates_are_found_among_many_ports() {
    // An ExternalName may have any node port.
    let port = |it: usize| json!({"name": format!("p{it}"), "port": it, "nodePort": it});
    let mut ports: Vec<Value> = (1..=40_000).map(port).collect();
    ports.push(port(1));
    let alias = json!({"type": "ExternalName", "externalName": "a.example", "ports": ports});
    assert_eq!(
        refused(&alias),
        r#"[spec.ports[40000].name: Duplicate value: "p1", spec.ports[40000].nodePort: Duplicate value: 1, spec.ports[40000]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":1,"TargetPort":0,"NodePort":0}]"#
    );
}

#[test]
fn statement_18_protocols() {
    assert_eq!(
        with_ports(&json!([{"port": 1, "protocol": "ICMP"}])),
        r#"spec.ports[0].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP""#
    );
}

#[test]
fn statement_20_types() {
    assert_eq!(
        refused_with(json!({"type": "Foo"})),
        r#"spec.type: Unsupported value: "Foo": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort""#
    );
}

#[test]
fn statement_21_node_ports_are_not_headless() {
    let text = refused_with(json!({"type": "NodePort", "clusterIP": "None"}));
    assert_eq!(
        text,
        "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services"
    );
}

#[test]
fn statement_22_external_names() {
    assert_eq!(refused(&json!({"type": "ExternalName"})), "spec.externalName: Required value");
    let more = json!({"type": "ExternalName", "externalName": "a.example.", "clusterIP": "10.96.0.9",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"});
    let text = refused(&more);
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let line = format!("spec.{field}: Forbidden: may not be set for ExternalName services");
        assert!(text.contains(&line), "{text}");
    }
    assert!(!text.contains("spec.externalName"), "a trailing dot is allowed: {text}");
}

#[test]
fn statement_23_no_node_port_without_the_type() {
    assert_eq!(
        with_ports(&json!([{"port": 1, "nodePort": 30_000}])),
        "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"
    );
}

#[test]
fn statement_25_cluster_addresses() {
    let text = refused_with(json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.8"]}));
    assert!(text.ends_with("first value must match `clusterIP`"), "{text}");
    let text = refused_with(json!({"clusterIP": "None", "clusterIPs": ["None", "10.96.0.8"]}));
    assert!(text.contains("'None' must be the first and only value"), "{text}");
    let two = json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "10.96.0.8"]});
    assert!(refused_with(two).contains("may specify no more than one IP for each IP family"));
    let other = json!({"clusterIP": "10.96.0.9", "ipFamilies": ["IPv6"]});
    assert!(refused_with(other).contains("expected an IPv6 value as indicated by `ipFamilies[0]`"));
}

#[test]
fn statement_26_families_are_two_and_unique() {
    let text = refused_with(json!({"ipFamilies": ["IPv4", "IPv4"]}));
    assert_eq!(text, r#"spec.ipFamilies[1]: Duplicate value: "IPv4""#);
    assert!(
        refused_with(json!({"ipFamilies": ["IPv5"]}))
            .contains(r#"supported values: "IPv4", "IPv6""#)
    );
}

#[test]
fn statement_27_two_of_anything_are_not_single() {
    let text =
        refused_with(json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "SingleStack"}));
    assert_eq!(
        text,
        "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
    );
}

#[test]
fn statement_28_families_that_the_cluster_lacks() {
    let refused = |more: Value| refusal(Cluster::single().create(&web_with(more)));
    assert_eq!(
        refused(json!({"ipFamilyPolicy": "RequireDualStack"})),
        "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services"
    );
    assert_eq!(
        refused(json!({"ipFamilies": ["IPv6"]})),
        "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"
    );
    assert!(
        refused(json!({"clusterIP": "fd00::1"})).contains("IPv6 is not configured on this cluster")
    );
}

#[test]
fn statement_29_external_addresses_are_no_special_ones() {
    assert_eq!(
        refused_with(json!({"externalIPs": ["127.0.0.1"]})),
        "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)"
    );
}

#[test]
fn statement_30_affinity_lasts_a_day_at_most() {
    let sticky = |seconds: i32| json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}});
    assert_eq!(
        refused_with(sticky(86_401)),
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400"
    );
    assert!(Cluster::dual().create(&web_with(sticky(86_400))).is_ok());
    assert!(refused_with(json!({"sessionAffinity": "Foo"})).contains(r#""ClientIP", "None""#));
}

#[test]
fn statements_31_32_external_policy_and_health_check() {
    assert_eq!(
        refused_with(json!({"externalTrafficPolicy": "Local"})),
        "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services"
    );
    assert_eq!(
        refused_with(json!({"healthCheckNodePort": 30_000})),
        "spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
    );
}

#[test]
fn statements_33_34_35_only_load_balancers() {
    let only = "Forbidden: may only be used when `type` is 'LoadBalancer'";
    let cases = [
        (json!({"loadBalancerClass": "a"}), "spec.loadBalancerClass"),
        (json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), "spec.LoadBalancerSourceRanges"),
        (json!({"allocateLoadBalancerNodePorts": true}), "spec.allocateLoadBalancerNodePorts"),
    ];
    for (more, field) in cases {
        assert_eq!(refused_with(more), format!("{field}: {only}"));
    }
    let padded = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [" 10.0.0.0/8 "]});
    assert!(Cluster::dual().create(&web_with(padded)).is_ok());
    let wrong = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["x"]});
    assert!(refused_with(wrong).starts_with("spec.LoadBalancerSourceRanges[0]: Invalid value"));
    let key = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let mut service = named(&web_with(json!({"type": "LoadBalancer"})));
    drop(service.metadata.annotations.insert(key.into(), "10.0.0.0/8,y".into()));
    let cluster = Cluster::dual();
    let made =
        create(service, &cluster.ranges, &cluster.books, &mut |_| 0, false).map(|it| it.service);
    assert!(refusal(made).contains("must be a valid CIDR value"));
}

#[test]
fn statement_36_distributions() {
    assert!(
        refused_with(json!({"trafficDistribution": "Far"}))
            .contains(r#"supported values: "PreferClose", "PreferSameZone", "PreferSameNode""#)
    );
}

#[test]
fn statement_37_names() {
    let mut service = named(&web());
    service.metadata.name = "9-a".into();
    let cluster = Cluster::dual();
    assert!(create(service.clone(), &cluster.ranges, &cluster.books, &mut |_| 0, false).is_ok());
    service.metadata.name = "a.b".into();
    let made =
        create(service, &cluster.ranges, &cluster.books, &mut |_| 0, false).map(|it| it.service);
    assert_eq!(refusal(made), "metadata.name: Invalid value: \"a.b\": must not contain dots");
}

#[test]
fn statement_39_status() {
    let mut cluster = Cluster::dual();
    let plain = cluster.create(&web()).unwrap();
    let balanced = cluster.create(&web_with(json!({"type": "LoadBalancer"}))).unwrap();
    let with = |old: &Service, ingress: Value| {
        let mut new = old.clone();
        new.status.load_balancer.ingress = serde_json::from_value(ingress).unwrap();
        update_status(new, old).map_err(|it| sentence(&it))
    };
    assert_eq!(
        with(&plain, json!([{"ip": "192.0.2.1"}])).unwrap_err(),
        "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"
    );
    let given = with(&balanced, json!([{"ip": "192.0.2.1"}])).unwrap();
    assert_eq!(given.status.load_balancer.ingress[0].ip_mode.as_deref(), Some("VIP"));
    let text = with(&balanced, json!([{"hostname": "192.0.2.1"}])).unwrap_err();
    assert!(text.contains("must be a DNS name, not an IP address"), "{text}");
    let text = with(&balanced, json!([{"hostname": "a.example", "ipMode": "VIP"}])).unwrap_err();
    assert!(text.contains("may not be specified when `ip` is not set"), "{text}");
    let text = with(&balanced, json!([{"ip": "192.0.2.1", "ipMode": "Foo"}])).unwrap_err();
    assert!(text.contains(r#"supported values: "Proxy", "VIP""#), "{text}");
}

#[test]
fn all_causes_are_reported_at_once() {
    let all = causes(Cluster::dual().create(&json!({
        "type": "Foo", "sessionAffinity": "Bar", "ports": [{"port": 0, "protocol": "X"}],
        "trafficDistribution": "Far",
    })));
    assert_eq!(all.len(), 6, "{all:?}");
}
