//! Statements 1 to 12: the form of a Service after its creation.

use super::*;

fn made(spec: &Value) -> Spec {
    Cluster::dual().create(spec).unwrap().spec
}

#[test]
fn statement_1_type_and_affinity() {
    let spec = made(&web());
    assert_eq!((spec.kind.as_str(), spec.session_affinity.as_str()), ("ClusterIP", "None"));
    let config = json!({"clientIP": {"timeoutSeconds": 5}});
    let dropped = made(&web_with(json!({"sessionAffinityConfig": config})));
    assert_eq!(dropped.session_affinity_config, None);
    let sticky = made(&web_with(json!({"sessionAffinity": "ClientIP"})));
    let client = sticky.session_affinity_config.and_then(|it| it.client_ip);
    assert_eq!(client.and_then(|it| it.timeout_seconds), Some(10_800));
}

#[test]
fn statement_2_protocol_and_target_port() {
    for target in [json!(null), json!(0), json!("")] {
        let mut port = json!({"port": 81});
        if !target.is_null() {
            port["targetPort"] = target.clone();
        }
        let spec = made(&json!({"ports": [port]}));
        assert_eq!(spec.ports[0].protocol, "TCP");
        assert_eq!(spec.ports[0].target_port, Target::Number(81), "{target}");
    }
}

#[test]
fn statement_3_external_policy_where_it_means_something() {
    let policy = |more: Value| made(&web_with(more)).external_traffic_policy;
    assert_eq!(policy(json!({})), "");
    assert_eq!(policy(json!({"type": "NodePort"})), "Cluster");
    assert_eq!(policy(json!({"type": "LoadBalancer"})), "Cluster");
    assert_eq!(policy(json!({"externalIPs": ["192.0.2.1"]})), "Cluster");
}

#[test]
fn statement_4_internal_policy_but_for_external_names() {
    assert_eq!(made(&web()).internal_traffic_policy.as_deref(), Some("Cluster"));
    let name = json!({"type": "ExternalName", "externalName": "a.example", "internalTrafficPolicy": "Local"});
    assert_eq!(made(&name).internal_traffic_policy, None);
}

#[test]
fn statement_5_load_balancers() {
    let spec = made(&web_with(json!({"type": "LoadBalancer"})));
    assert_eq!(spec.allocate_load_balancer_node_ports, Some(true));
    assert_ne!(spec.ports[0].node_port, 0);
}

#[test]
fn statement_6_status_of_a_client_is_dropped() {
    let mut service = named(&web_with(json!({"type": "LoadBalancer"})));
    service.status.load_balancer.ingress = vec![Ingress::default()];
    let cluster = Cluster::dual();
    let kept = create(service, &cluster.ranges, &cluster.books, &mut |_| 0, false).unwrap().service;
    assert_eq!(kept.status, Status::default());
}

#[test]
fn statement_7_one_address_fills_the_list_and_not_the_other_way() {
    let spec = made(&web_with(json!({"clusterIP": "10.96.0.9"})));
    assert_eq!(spec.cluster_ips, ["10.96.0.9"]);
    let refused = Cluster::dual().create(&web_with(json!({"clusterIPs": ["10.96.0.9"]})));
    assert_eq!(
        refusal(refused),
        "spec.clusterIPs: Invalid value: [\"10.96.0.9\"]: must be empty when `clusterIP` is not specified"
    );
}

#[test]
fn statement_8_policy() {
    let policy = |spec: &Value| made(spec).ip_family_policy.unwrap();
    assert_eq!(policy(&web()), "SingleStack");
    assert_eq!(policy(&json!({"clusterIP": "None"})), "RequireDualStack");
    assert_eq!(policy(&web_with(json!({"clusterIP": "None"}))), "SingleStack");
}

#[test]
fn statement_9_families() {
    let families = |more: Value| made(&web_with(more)).ip_families;
    assert_eq!(families(json!({})), ["IPv4"]);
    assert_eq!(families(json!({"clusterIP": "fd00:10:96::9"})), ["IPv6"]);
    assert_eq!(families(json!({"ipFamilyPolicy": "PreferDualStack"})), ["IPv4", "IPv6"]);
    let turned = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]});
    assert_eq!(families(turned), ["IPv6", "IPv4"]);
}

#[test]
fn statement_10_headless_without_selector_has_both_families() {
    let spec = Cluster::single().create(&json!({"clusterIP": "None"})).unwrap().spec;
    assert_eq!(spec.ip_families, ["IPv4", "IPv6"]);
    assert_eq!(spec.cluster_ips, ["None"]);
}

#[test]
fn statement_11_preferring_two_families_is_not_extended_by_other_changes() {
    let spec = web_with(json!({"ipFamilyPolicy": "PreferDualStack"}));
    let old = Cluster::single().create(&spec).unwrap();
    assert_eq!(old.spec.cluster_ips.len(), 1);
    let mut dual = Cluster::dual();
    dual.books.extend(old.spec.cluster_ips.iter().map(|it| Booking::Address(it.parse().unwrap())));
    let mut same = serde_json::to_value(&old.spec).unwrap();
    same["selector"] = json!({"app": "other"});
    assert_eq!(dual.update(&old, &same).unwrap().spec.cluster_ips.len(), 1);
}

#[test]
fn statement_12_headless_may_have_no_ports() {
    assert_eq!(made(&json!({"clusterIP": "None", "selector": {"a": "b"}})).ports, []);
}

#[test]
fn statement_41_warnings() {
    let of = |spec: &Value| warnings(&Cluster::dual().create(spec).unwrap());
    assert_eq!(of(&web()), Vec::<String>::new());
    assert_eq!(
        of(&web_with(json!({"externalIPs": ["192.0.2.1"]}))),
        ["spec.externalIPs is deprecated and may no longer be implemented in some clusters"]
    );
    let headless =
        json!({"clusterIP": "None", "sessionAffinity": "ClientIP", "loadBalancerIP": "192.0.2.1"});
    assert_eq!(
        of(&headless),
        [
            "spec.loadBalancerIP is ignored for headless services",
            "spec.SessionAffinity is ignored for headless services"
        ]
    );
    assert_eq!(
        of(&web_with(json!({"trafficDistribution": "PreferClose"}))),
        [r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#]
    );
}
