//! The mirror compared with maps in memory, case by case; `histories` does it at random.

mod affinity;
mod capacity;
mod histories;
mod maps;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use lb_common::addr::{Ip, Port, Protocol};
use lb_common::config::{NodeSettings, Prefix};
use lb_common::service::{Flags, Frontend};

use super::{Change, FullMap, GRACE, Limits, Op, Reconciler};
use crate::plan::{
    EndpointPlan, Family, FrontendKind, FrontendPlan, PortKey, PortPlan, ServiceName,
};
use world::World;

const LIMITS: Limits = Limits { services: 200, backends: 200, lines: 2000, sources: 50 };

fn service(number: u8) -> ServiceName {
    ServiceName { namespace: "default".into(), name: format!("s{number}") }
}

/// Makes a plan of service `number`: a `ClusterIP` of its own, and more frontends and endpoints by these bits.
fn plan(number: u8, protocol: Protocol, more: u8, backends: &[(u8, u8)]) -> PortPlan {
    let address = |ip: [u8; 4]| IpAddr::V4(Ipv4Addr::from(ip));
    let frontend = |kind, ip, port| FrontendPlan {
        kind,
        ip,
        port,
        local_policy: false,
        checks_sources: false,
    };
    let mut frontends = vec![frontend(FrontendKind::ClusterIp, address([10, 96, 0, number]), 80)];
    let shared = [
        frontend(FrontendKind::NodePort, address([0; 4]), 30_000),
        frontend(FrontendKind::NodePort, address([0; 4]), 30_001),
        frontend(FrontendKind::ExternalIp, address([192, 0, 2, 1]), 80),
        FrontendPlan {
            checks_sources: true,
            ..frontend(FrontendKind::LoadBalancer, address([192, 0, 2, 2]), 80)
        },
    ];
    let chosen = shared.into_iter().enumerate().filter(|(bit, _)| more & 1 << bit != 0);
    frontends.extend(chosen.map(|(_, frontend)| frontend));
    let backends: BTreeMap<u8, u8> = backends.iter().copied().collect();
    let endpoint = |(host, flags): (u8, u8)| EndpointPlan {
        ip: address([10, 0, 0, host]),
        port: 8080,
        on_this_node: flags & 1 != 0,
        cluster: flags & 2 != 0,
        local: flags & 4 != 0,
    };
    PortPlan {
        key: PortKey { service: service(number), port: "p".into(), protocol, family: Family::V4 },
        age: (i64::from(number % 3), format!("uid{number}")),
        frontends,
        affinity: (more & 16 != 0).then_some(60),
        sources: if more & 8 != 0 { vec!["198.51.100.0/24".parse().unwrap()] } else { vec![] },
        endpoints: backends.into_iter().map(endpoint).collect(),
        anywhere: true,
    }
}

fn change(number: u8, plan: Option<PortPlan>) -> Change {
    Change { service: service(number), ports: plan.into_iter().collect() }
}

#[test]
fn epochs_survive_a_restart_and_mark_removed_endpoints() {
    let mut world = World::new(LIMITS);
    world.plan(vec![change(1, Some(plan(1, Protocol::UDP, 0, &[(1, 2), (2, 2)])))]);
    let before = world.maps.backends.clone();
    world.restart(LIMITS);
    assert_eq!(world.maps.backends, before);
    world.plan(vec![change(1, Some(plan(1, Protocol::UDP, 0, &[(2, 2)])))]);
    let moved: Vec<usize> = (0..before.len())
        .filter(|row| world.maps.backends[*row].epoch != before[*row].epoch)
        .collect();
    assert_eq!(moved.len(), 1, "only the row of the endpoint that left");
    let epoch = world.maps.backends[moved[0]].epoch;
    world.pass(GRACE);
    world.restart(LIMITS);
    world.plan(vec![change(2, Some(plan(2, Protocol::UDP, 0, &[(9, 2)])))]);
    assert!(world.maps.backends[moved[0]].epoch > epoch, "a reused row is not the old one");
}

/// An address with its own frontend hides the `NodePort` there.
#[test]
fn frontend_that_hides_a_node_port_moves_its_flows() {
    let mut world = World::new(LIMITS);
    let mut hidden = plan(1, Protocol::UDP, 1, &[(1, 2)]);
    world.plan(vec![change(1, Some(hidden.clone()))]);
    let epoch = |world: &World| world.maps.settings.services.frontends_epoch;
    let before = epoch(&world);
    world.plan(vec![change(2, Some(plan(2, Protocol::UDP, 4, &[(2, 2)])))]);
    assert_eq!(epoch(&world), before, "another port");
    let at_the_port = FrontendPlan { port: 30_000, ..hidden.frontends.remove(0) };
    let mut hides = plan(3, Protocol::UDP, 0, &[(3, 2)]);
    let mut empty = plan(3, Protocol::UDP, 0, &[]);
    (hides.frontends, empty.frontends) = (vec![at_the_port.clone()], vec![at_the_port]);
    empty.anywhere = false;
    world.plan(vec![change(3, Some(empty))]);
    let before_endpoints = epoch(&world);
    assert_ne!(before_endpoints, before);
    world.plan(vec![change(3, Some(hides.clone()))]);
    let hidden = epoch(&world);
    assert_ne!(hidden, before_endpoints, "without endpoints it did not hide the port");
    hides.affinity = Some(60);
    world.plan(vec![change(3, Some(hides))]);
    assert_eq!(epoch(&world), hidden, "still hidden");
}

#[test]
fn draining_frontends_stay_while_connections_and_associations_do() {
    for protocol in [Protocol::TCP, Protocol::SCTP] {
        draining_frontends_stay_while_flows_do(protocol);
    }
}

fn draining_frontends_stay_while_flows_do(protocol: Protocol) {
    let mut world = World::new(LIMITS);
    world.plan(vec![
        change(1, Some(plan(1, protocol, 1, &[(1, 2)]))),
        change(2, Some(plan(2, Protocol::UDP, 0, &[(1, 2)]))),
    ]);
    world.plan(vec![change(1, None), change(2, None)]);
    let left: Vec<Frontend> = world.maps.services.keys().copied().collect();
    assert_eq!(left.len(), 2, "ClusterIP and NodePort of the first service");
    assert_eq!(world.reconciler.draining(), left.iter().copied().collect());
    let wildcard = left.iter().find(|frontend| frontend.port.get() == 30_000).unwrap();
    let live = BTreeSet::from([*wildcard]);
    let early = world.reconciler.remove_drained(world.now, world.now, &BTreeSet::new());
    assert_eq!(early, [], "too young to judge");
    let began = world.now + GRACE;
    let ops = world.reconciler.remove_drained(world.now, began, &live);
    world.apply(&ops);
    assert_eq!(world.maps.services.keys().collect::<Vec<_>>(), [wildcard]);
    let ops = world.reconciler.remove_drained(world.now, began, &BTreeSet::new());
    world.apply(&ops);
    assert!(world.maps.services.is_empty());
}

#[test]
fn the_oldest_has_a_frontend_and_the_next_takes_over() {
    let mut world = World::new(LIMITS);
    // Ages are 0 for service 3, 1 for service 1, 2 for service 2.
    for number in [2, 1, 3] {
        world.plan(vec![change(number, Some(plan(number, Protocol::TCP, 1, &[(number, 2)])))]);
    }
    let conflicts = world.reconciler.conflicts();
    let names =
        |keys: &[PortKey]| keys.iter().map(|key| key.service.name.clone()).collect::<Vec<_>>();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].winner.service, service(3));
    assert_eq!(names(&conflicts[0].losers), ["s1", "s2"]);
    world.plan(vec![change(3, None)]);
    world.check();
    assert_eq!(world.reconciler.conflicts()[0].winner.service, service(1));
}

/// Whoever may write Services may name any address as an external IP (CVE-2020-8554).
#[test]
fn cluster_ip_stays_with_its_service_whoever_names_it_as_an_external_ip() {
    let mut world = World::new(LIMITS);
    let own = |backends: &[(u8, u8)]| plan(1, Protocol::TCP, 0, backends);
    // Service 3 is older than service 1.
    let mut older = plan(3, Protocol::TCP, 0, &[(3, 2)]);
    let external = |plan: FrontendPlan| FrontendPlan { kind: FrontendKind::ExternalIp, ..plan };
    older.frontends.extend(own(&[]).frontends.into_iter().map(external));
    world.plan(vec![change(3, Some(older))]);
    world.check();
    let at = Frontend::new(Ip::v4([10, 96, 0, 1]), Port::new(80), Protocol::TCP);
    assert!(world.maps.services[&at].flags.has(Flags::EXTERNAL), "nobody else has the address");
    for (anywhere, backends) in [(true, &[(1, 2)][..]), (false, &[])] {
        world.plan(vec![change(1, Some(PortPlan { anywhere, ..own(backends) }))]);
        world.check();
        assert!(!world.maps.services[&at].flags.has(Flags::EXTERNAL));
        let conflicts = world.reconciler.conflicts();
        assert_eq!((conflicts.len(), conflicts[0].frontend), (1, at));
        assert_eq!(conflicts[0].winner.service, service(1));
    }
}

/// As kube-proxy: packets that no Service translates are refused, so a Service without endpoints hides no other one.
#[test]
fn service_without_endpoints_leaves_its_frontend_to_a_younger_one() {
    let mut world = World::new(LIMITS);
    let older = |anywhere, backends: &[(u8, u8)]| {
        change(3, Some(PortPlan { anywhere, ..plan(3, Protocol::TCP, 4, backends) }))
    };
    let younger = change(1, Some(plan(1, Protocol::TCP, 4, &[(1, 2)])));
    world.plan(vec![older(true, &[(3, 2)]), younger]);
    let winner = |world: &World| world.reconciler.conflicts()[0].winner.service.clone();
    assert_eq!(winner(&world), service(3));
    for (anywhere, backends, number) in [(false, &[][..], 1), (true, &[(3, 2)], 3)] {
        world.plan(vec![older(anywhere, backends)]);
        world.check();
        assert_eq!(winner(&world), service(number));
        let external = world.maps.services.iter().find(|(it, _)| it.ip == Ip::v4([192, 0, 2, 1]));
        let cluster_ip = Ip::v4([10, 96, 0, number]);
        let own = world
            .maps
            .services
            .iter()
            .find(|(it, entry)| it.ip == cluster_ip && !entry.flags.has(Flags::ADDRESS));
        assert_eq!(external.map(|(_, entry)| entry.id), own.map(|(_, entry)| entry.id));
    }
}

#[test]
fn refused_port_is_named_and_served_later() {
    let limits = Limits { backends: 4, ..LIMITS };
    let mut world = World::new(limits);
    world.plan(vec![change(1, Some(plan(1, Protocol::TCP, 0, &[(1, 2), (2, 2)])))]);
    world.plan(vec![change(2, Some(plan(2, Protocol::TCP, 0, &[(1, 2), (2, 2)])))]);
    let refused: Vec<_> =
        world.reconciler.refused().map(|(key, why)| (key.service.clone(), why)).collect();
    assert_eq!(refused, [(service(2), FullMap::Backends)]);
    world.plan(vec![change(1, None)]);
    world.pass(GRACE);
    assert_eq!(world.reconciler.refused().count(), 0);
    world.check();
}

#[test]
fn change_writes_only_changed_entries() {
    let mut world = World::new(LIMITS);
    world.plan(vec![change(1, Some(plan(1, Protocol::TCP, 1, &[(1, 2), (2, 2)])))]);
    let more = plan(1, Protocol::TCP, 1, &[(1, 2), (2, 2), (3, 2)]);
    let ops = world.reconciler.plan(world.now, vec![change(1, Some(more))]);
    let kinds = |wanted: fn(&Op) -> bool| ops.iter().filter(|op| wanted(op)).count();
    assert_eq!(kinds(|op| matches!(op, Op::PutBackend { .. })), 1);
    assert_eq!(kinds(|op| matches!(op, Op::WriteLines { .. })), 1);
    assert_eq!(kinds(|op| matches!(op, Op::PutService { .. })), 2, "one per frontend");
    assert_eq!(ops.len(), 4);
}

#[test]
fn settings_of_the_node_are_written_and_those_of_services_stay() {
    let mut reconciler = Reconciler::new(LIMITS);
    let node =
        NodeSettings { secret: 7, netns_cookie: 9, socket_mode: 2, ..NodeSettings::default() };
    let services = reconciler.settings.services;
    let ops = reconciler.set_node(&node);
    let [Op::PutSettings(written)] = ops.as_slice() else { panic!("{ops:?}") };
    assert_eq!((written.node, written.services), (node, services));
    assert!(reconciler.set_node(&node).is_empty());
}

#[test]
fn cluster_ip_of_a_listener_is_marked_until_it_is_gone() {
    let mut world = World::new(LIMITS);
    let plans =
        [1, 2].map(|number| change(number, Some(plan(number, Protocol::TCP, 7, &[(1, 3)]))));
    drop(world.reconciler.plan(world.now, plans.into()));
    let at = |number| Ip::v4([10, 96, 0, number]);
    let asked = world.reconciler.cluster_frontends(&[at(1), at(9), Ip::v4([192, 0, 2, 1])].into());
    assert_eq!(asked, [Frontend::new(at(1), Port::new(80), Protocol::TCP)].into());
    let marked = |ops: &[Op]| -> Vec<bool> {
        let mut marked = Vec::new();
        for op in ops {
            if let Op::PutService { service, .. } = op {
                marked.push(service.flags.has(Flags::HOST));
            }
        }
        marked
    };
    assert_eq!(marked(&world.reconciler.keep(world.now, asked.clone())), [true, true]);
    assert!(world.reconciler.keep(world.now, asked.clone()).is_empty());
    let again = change(1, Some(plan(1, Protocol::TCP, 7, &[(1, 3), (2, 3)])));
    let ops = world.reconciler.plan(world.now, vec![again]);
    assert!(marked(&ops).contains(&true), "a change of the Service keeps the mark: {ops:?}");
    assert_eq!(world.reconciler.cluster_frontends(&[at(1)].into()), asked);
    assert_eq!(marked(&world.reconciler.keep(world.now, BTreeSet::new())), [false, false]);
}

#[test]
fn range_of_pods_counts_once_endpoints_confirm_it() {
    let mut world = World::new(LIMITS);
    let mask = Ip::v6((u128::MAX << 8).to_be_bytes());
    let pods = Prefix { ip: Ip::v4([10, 0, 0, 0]), mask };
    let others = Prefix { ip: Ip::v4([10, 0, 1, 0]), mask };
    let given = |world: &mut World, range: Prefix, own: &[u8]| {
        let mut node = NodeSettings { pods: [range, Prefix::default()], ..NodeSettings::default() };
        for host in own {
            node.own.add(&Ip::v4([10, 0, 0, *host]));
        }
        drop(world.reconciler.set_node(&node));
        world.reconciler.settings.node.pods == [range, Prefix::default()]
    };
    assert!(!given(&mut world, pods, &[]), "there is no endpoint");
    let web = plan(1, Protocol::TCP, 0, &[(1, 3), (2, 2)]);
    drop(world.reconciler.plan(world.now, vec![change(1, Some(web))]));
    assert!(given(&mut world, pods, &[]));
    assert!(!given(&mut world, others, &[]), "a pod of this node is elsewhere");
    assert!(
        !given(&mut world, others, &[1]),
        "that one is the node itself, and no endpoint is there"
    );
}
