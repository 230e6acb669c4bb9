//! Services with very many ports. A cost that grows with the square of their number exceeds the time limit of a test.

use lb_common::addr::Protocol;
use serde_json::{Value, json};

use crate::snapshot::fixtures::{here, port, slice, web};
use crate::translate::{HealthCheck, LocalReady, Translated, service};

const PORTS: u16 = 60_000;

fn name(number: u16) -> String {
    format!("p{number:05}")
}

#[test]
fn each_of_many_ports_has_the_endpoints_of_its_name() {
    let listed = (1..=PORTS).map(|number| json!({ "name": name(number), "port": number }));
    let listed: Vec<Value> = listed.collect();
    let spec = web(json!({
        "type": "LoadBalancer", "clusterIP": "10.0.0.1", "ports": listed,
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
    }));
    let mut slice = slice("web-1", &["10.1.0.1 @here"]);
    let offered = (1..=PORTS).rev().map(|number| port(&name(number), Protocol::TCP, number));
    slice.ports = offered.collect();
    let Translated { ports, health, findings } = service(&spec, &[&slice], &here());
    assert!(findings.is_empty(), "{findings:?}");
    let found = ports.iter().map(|plan| match &*plan.endpoints {
        [endpoint] => (plan.frontends[0].port, endpoint.port),
        other => panic!("{other:?}"),
    });
    assert!(found.eq((1..=PORTS).map(|number| (number, number))));
    let local_ready = LocalReady { v4: 1, v6: 1 };
    assert_eq!(health, Some(HealthCheck { port: 32000, local_ready }));
}
