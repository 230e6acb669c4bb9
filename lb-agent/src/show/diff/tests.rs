//! Wanted entries compared with those in the maps.

use super::*;
use crate::plan::{
    EndpointPlan, Family, FrontendKind, FrontendPlan, PortKey, PortPlan, ServiceName,
};
use lb_common::addr::{Port, Protocol};

const LIMITS: Limits = Limits { services: 100, backends: 100, lines: 1000, sources: 10 };

fn asked(name: &str, hosts: &[u8]) -> Change {
    let service = ServiceName { namespace: "default".into(), name: name.into() };
    let ip = if name == "web" { [10, 96, 0, 1] } else { [10, 96, 0, 2] };
    let frontend = FrontendPlan {
        kind: FrontendKind::ClusterIp,
        ip: ip.into(),
        port: 80,
        local_policy: false,
        checks_sources: false,
    };
    let endpoint = |host: &u8| EndpointPlan {
        ip: [10, 244, 0, *host].into(),
        port: 8080,
        on_this_node: *host == 2,
        cluster: true,
        local: *host == 2,
    };
    let key = PortKey {
        service: service.clone(),
        port: "http".into(),
        protocol: Protocol::TCP,
        family: Family::V4,
    };
    let port = PortPlan {
        key,
        age: (0, name.into()),
        frontends: vec![frontend],
        affinity: Some(60),
        sources: Vec::new(),
        endpoints: hosts.iter().map(endpoint).collect(),
        anywhere: true,
    };
    Change { service, ports: vec![port] }
}

/// Returns the content that an agent with these plans leaves in the maps, with other services before it.
fn held(before: Vec<Change>, changes: Vec<Change>) -> Actual {
    let mut reconciler = Reconciler::new(LIMITS);
    let mut image = Image::default();
    for changes in [before, changes] {
        reconciler.plan(Duration::ZERO, changes).iter().for_each(|op| image.apply(op));
    }
    image.actual()
}

#[test]
fn position_in_the_maps_is_no_difference() {
    let actual = held(vec![asked("other", &[9])], vec![asked("web", &[2, 3])]);
    let wanted = vec![asked("web", &[2, 3]), asked("other", &[9])];
    assert_eq!(compare(LIMITS, wanted, &actual, &StateFile::default()), []);
}

#[test]
fn every_kind_of_difference_is_reported() {
    let mut actual = held(Vec::new(), vec![asked("web", &[2, 4]), asked("other", &[9])]);
    for (_, service) in &mut actual.services {
        service.affinity = 30;
    }
    actual.services.retain(|(frontend, _)| frontend.ip.v4_octets()[3] == 1);
    let stray = Frontend::new(lb_common::addr::Ip::v4([10, 96, 0, 9]), Port::new(1), Protocol::UDP);
    actual.services.push((stray, Service { id: 9, ..Service::default() }));
    let wanted = vec![asked("web", &[2, 3]), asked("other", &[9])];
    let all = compare(LIMITS, wanted, &actual, &StateFile::default());
    insta::assert_snapshot!(print::print(&all, print::PLAIN).unwrap());
}

#[test]
fn a_damaged_selection_table_is_a_difference() {
    let mut actual = held(Vec::new(), vec![asked("web", &[2, 3])]);
    for line in &mut actual.lines {
        line[63] ^= 1;
    }
    let all = compare(LIMITS, vec![asked("web", &[2, 3])], &actual, &StateFile::default());
    assert!(all.iter().any(|it| it.what.contains("damaged")), "{all:?}");
}
