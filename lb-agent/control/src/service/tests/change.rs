//! Statements 45 to 53: what an update keeps, changes, refuses and releases.

use super::*;

fn spec_of(service: &Service) -> Value {
    serde_json::to_value(&service.spec).unwrap()
}

fn balanced() -> Value {
    web_with(
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerClass": "a.example/b"}),
    )
}

#[test]
fn statement_45_the_same_yaml_keeps_allocated_values() {
    let mut cluster = Cluster::dual();
    let yaml = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ipFamilyPolicy": "RequireDualStack",
        "ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]});
    let old = cluster.create(&yaml).unwrap();
    assert_eq!(cluster.update(&old, &yaml).unwrap(), old);
    let mut turned = yaml;
    turned["ports"].as_array_mut().unwrap().reverse();
    let new = cluster.update(&old, &turned).unwrap();
    assert_eq!(new.spec.ports[0].node_port, old.spec.ports[1].node_port, "by name");
}

#[test]
fn statement_46_the_address_stays() {
    let mut cluster = Cluster::dual();
    let old = cluster.create(&web()).unwrap();
    let mut changed = spec_of(&old);
    changed["clusterIP"] = json!("10.96.0.77");
    changed["clusterIPs"] = json!(["10.96.0.77"]);
    let text = refusal(cluster.update(&old, &changed));
    assert_eq!(
        text,
        "spec.clusterIPs[0]: Invalid value: [\"10.96.0.77\"]: may not change once set"
    );
    let mut none = spec_of(&old);
    none["clusterIP"] = json!("None");
    assert!(refusal(cluster.update(&old, &none)).contains("may not change once set"));
}

#[test]
fn statement_47_the_second_family_comes_and_goes() {
    let mut cluster = Cluster::dual();
    let old = cluster.create(&web()).unwrap();
    let mut both = spec_of(&old);
    both["ipFamilyPolicy"] = json!("RequireDualStack");
    let dual = cluster.update(&old, &both).unwrap();
    assert_eq!((dual.spec.cluster_ips.len(), cluster.books.len()), (2, 2));
    assert_eq!(dual.spec.cluster_ips[0], old.spec.cluster_ip);
    let mut lost = spec_of(&dual);
    lost["clusterIPs"] = json!([dual.spec.cluster_ip]);
    assert!(
        refusal(cluster.update(&dual, &lost))
            .contains("must be 'SingleStack' to release the secondary cluster IP")
    );
    let mut single = spec_of(&dual);
    single["ipFamilyPolicy"] = json!("SingleStack");
    let single = cluster.update(&dual, &single).unwrap();
    assert_eq!((single.spec.cluster_ips.len(), cluster.books.len()), (1, 1));
    assert_eq!(single.spec.ip_families, ["IPv4"]);
}

#[test]
fn statement_48_the_first_family_stays() {
    let mut cluster = Cluster::dual();
    let old = cluster.create(&web_with(json!({"ipFamilyPolicy": "RequireDualStack"}))).unwrap();
    let mut turned = spec_of(&old);
    turned["ipFamilies"] = json!(["IPv6", "IPv4"]);
    turned["clusterIPs"] = json!([old.spec.cluster_ips[1], old.spec.cluster_ips[0]]);
    turned["clusterIP"] = json!(old.spec.cluster_ips[1]);
    let text = refusal(cluster.update(&old, &turned));
    assert!(text.contains("spec.ipFamilies[0]: Invalid value"), "{text}");
}

#[test]
fn statement_49_node_ports_go_with_the_type() {
    let mut cluster = Cluster::dual();
    let old = cluster.create(&web_with(json!({"type": "NodePort"}))).unwrap();
    assert_eq!(cluster.books.len(), 2);
    let mut plain = spec_of(&old);
    plain["type"] = json!("ClusterIP");
    let new = cluster.update(&old, &plain).unwrap();
    assert_eq!((new.spec.ports[0].node_port, cluster.books.len()), (0, 1));
    let mut other = plain;
    other["ports"][0]["nodePort"] = json!(30_333);
    let text = refusal(cluster.update(&old, &other));
    assert!(text.contains("may not be used when `type` is 'ClusterIP'"), "{text}");
}

#[test]
fn statement_50_external_names_have_no_addresses() {
    let mut cluster = Cluster::dual();
    let old = cluster.create(&web()).unwrap();
    let mut named = spec_of(&old);
    named["type"] = json!("ExternalName");
    named["externalName"] = json!("a.example");
    let name = cluster.update(&old, &named).unwrap();
    assert_eq!((name.spec.cluster_ips.len(), cluster.books.len()), (0, 0));
    assert_eq!((name.spec.ip_families.len(), name.spec.ip_family_policy.clone()), (0, None));
    let mut back = spec_of(&name);
    back["type"] = json!("ClusterIP");
    back["externalName"] = json!("");
    let back = cluster.update(&name, &back).unwrap();
    assert_eq!((back.spec.cluster_ips.len(), cluster.books.len()), (1, 1));
}

#[test]
fn statement_51_the_health_check_port_is_one_for_as_long_as_it_is_needed() {
    let mut cluster = Cluster::dual();
    let old = cluster.create(&balanced()).unwrap();
    assert_eq!(cluster.books.len(), 3);
    let mut moved = spec_of(&old);
    moved["healthCheckNodePort"] = json!(30_444);
    assert_eq!(
        refusal(cluster.update(&old, &moved)),
        "spec.healthCheckNodePort: Forbidden: field is immutable"
    );
    let mut cluster_wide = spec_of(&old);
    cluster_wide["externalTrafficPolicy"] = json!("Cluster");
    let new = cluster.update(&old, &cluster_wide).unwrap();
    assert_eq!((new.spec.health_check_node_port, cluster.books.len()), (0, 2));
}

#[test]
fn statements_33_52_change_of_type_clears_load_balancer_fields() {
    let mut cluster = Cluster::dual();
    let mut old = cluster.create(&balanced()).unwrap();
    old.status.load_balancer.ingress =
        vec![Ingress { ip: "192.0.2.1".into(), ..Ingress::default() }];
    let mut other = spec_of(&old);
    other["loadBalancerClass"] = json!("c.example/d");
    let text = refusal(cluster.update(&old, &other));
    assert!(
        text.contains(
            "spec.loadBalancerClass: Invalid value: \"c.example/d\": may not change once set"
        ),
        "{text}"
    );
    let mut plain = spec_of(&old);
    plain["type"] = json!("ClusterIP");
    let new = cluster.update(&old, &plain).unwrap();
    assert_eq!(new.status.load_balancer.ingress, []);
    assert_eq!(
        (new.spec.load_balancer_class, new.spec.allocate_load_balancer_node_ports),
        (None, None)
    );
    assert_eq!((new.spec.external_traffic_policy.as_str(), cluster.books.len()), ("", 1));
}

#[test]
fn statement_53_spec_updates_never_touch_status() {
    let mut cluster = Cluster::dual();
    let mut old = cluster.create(&balanced()).unwrap();
    old.status.load_balancer.ingress =
        vec![Ingress { ip: "192.0.2.1".into(), ..Ingress::default() }];
    let new = cluster.update(&old, &spec_of(&old)).unwrap();
    assert_eq!(new.status, old.status);
    let mut asked = old.clone();
    asked.spec.selector.clear();
    assert_eq!(update_status(asked, &old).unwrap().spec, old.spec);
}

#[test]
fn two_protocols_of_one_number_under_one_node_port_and_never_twice_under_one() {
    let mut cluster = Cluster::dual();
    let old = cluster.create(&web_with(json!({"type": "NodePort"}))).unwrap();
    let port = old.spec.ports[0].node_port;
    let mut twice = spec_of(&old);
    twice["ports"] = json!([{"name": "a", "port": 80, "nodePort": port}, {"name": "b", "port": 81, "nodePort": port}]);
    let text = refusal(cluster.update(&old, &twice));
    assert_eq!(
        text,
        format!("spec.ports[1].nodePort: Duplicate value: {port}"),
        "upstream: an internal error"
    );
    twice["ports"][1]["protocol"] = json!("UDP");
    assert!(cluster.update(&old, &twice).is_ok());
}
