//! Random histories against maps in memory: no packet sees a gap, nothing is forgotten over a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lb_common::addr::{Endpoint, Protocol};
use lb_common::config::Settings;
use lb_common::service::{Backend, Flags, Frontend, Line, NARROW, Service, Set, Source};
use proptest::prelude::*;

use super::frontends::key;
use super::{Actual, Change, GRACE, Limits, Op, Programmer, Refusal, selection};
use crate::plan::{
    EndpointPlan, Family, FrontendKind, FrontendPlan, PortKey, PortPlan, ServiceName,
};

const LIMITS: Limits = Limits { services: 200, backends: 200, lines: 2000, sources: 50 };

/// The maps, in memory.
#[derive(Clone, Debug)]
struct Maps {
    services: BTreeMap<Frontend, Service>,
    backends: Vec<Backend>,
    lines: Vec<Line>,
    sources: BTreeSet<(u32, Source)>,
    settings: Settings,
}

/// What a packet to a frontend meets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    flags: Flags,
    affinity: u32,
    cluster: Vec<Endpoint>,
    local: Vec<Endpoint>,
}

impl Maps {
    fn new(limits: Limits) -> Self {
        Self {
            services: BTreeMap::new(),
            backends: vec![Backend::default(); limits.backends as usize],
            lines: vec![[0; 64]; limits.lines as usize],
            sources: BTreeSet::new(),
            settings: Settings::default(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::PutSettings(settings) => self.settings = **settings,
            Op::PutBackend { id, row } => self.backends[*id as usize] = *row,
            Op::WriteLines { line, lines } => {
                self.lines[*line as usize..][..lines.len()].copy_from_slice(lines);
            }
            Op::PutSource { bits, source } => assert!(self.sources.insert((*bits, *source))),
            Op::RemoveSource { bits, source } => assert!(self.sources.remove(&(*bits, *source))),
            Op::PutService { frontend, service } => {
                let _: Option<Service> = self.services.insert(*frontend, *service);
            }
            Op::RemoveService { frontend } => assert!(self.services.remove(frontend).is_some()),
        }
    }

    fn members(&self, service: &Service, set: Set) -> Vec<Endpoint> {
        let lines = &self.lines[set.line as usize..];
        let ids = selection::members(set, lines);
        assert_eq!(ids.len() as u32, set.members);
        let slots = lines[set.member_lines() as usize..].as_flattened();
        for slot in 0..set.slots as usize {
            let member = match set.members {
                ..=NARROW => u32::from(slots[slot]),
                _ => u32::from(u16::from_ne_bytes([slots[2 * slot], slots[2 * slot + 1]])),
            };
            assert!(member < set.members, "slot of a member that is not there");
        }
        let row = |id: &u32| {
            let row = self.backends[*id as usize];
            assert_eq!(row.service, service.id, "row {id} is another's");
            assert_ne!(row.epoch, 0);
            Endpoint::new(row.ip, row.port)
        };
        ids.iter().map(row).collect()
    }

    fn see(&self, service: &Service) -> Seen {
        Seen {
            flags: service.flags,
            affinity: service.affinity,
            cluster: self.members(service, service.cluster),
            local: self.members(service, service.local),
        }
    }

    /// What a packet to a frontend meets; tombstones are not there for new packets.
    fn look_up(&self, frontend: &Frontend) -> Option<Seen> {
        let service = self.services.get(frontend)?;
        (!service.flags.has(Flags::LEAVING)).then(|| self.see(service))
    }

    fn check_settings(&self) {
        for (frontend, service) in &self.services {
            if service.flags.has(Flags::NODE_PORT) {
                let range = self.settings.node_port_low.get()..=self.settings.node_port_high.get();
                assert!(range.contains(&frontend.port.get()));
            } else if service.flags.has(Flags::EXTERNAL) {
                assert!(self.settings.has(Settings::OTHER_FRONTENDS));
            } else {
                assert!(self.settings.ranges.iter().any(|range| range.contains(&frontend.ip)));
            }
        }
    }

    fn actual(&self) -> Actual {
        let services: Vec<_> = self.services.iter().map(|(key, value)| (*key, *value)).collect();
        Actual {
            lines: self.lines[..Actual::lines_in_use(&services) as usize].to_vec(),
            services,
            backends: self.backends.clone(),
            sources: self.sources.iter().copied().collect(),
            settings: self.settings,
        }
    }
}

/// Maps, the book over them, and what should be in them.
struct World {
    maps: Maps,
    programmer: Programmer,
    wanted: BTreeMap<ServiceName, Vec<PortPlan>>,
    now: Duration,
    /// Entries that a packet may still have in hand, and what they led to.
    in_hand: Vec<(Duration, Service, Seen)>,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self {
            maps: Maps::new(limits),
            programmer: Programmer::new(limits),
            wanted: BTreeMap::new(),
            now: Duration::from_secs(100),
            in_hand: Vec::new(),
        }
    }

    /// Applies operations one by one; after each, every frontend leads to the old set or to the new one.
    fn apply(&mut self, ops: &[Op]) {
        let mut after = self.maps.clone();
        for op in ops {
            after.apply(op);
        }
        let before = self.maps.clone();
        let frontends: BTreeSet<Frontend> =
            before.services.keys().chain(after.services.keys()).copied().collect();
        for op in ops {
            for service in self.maps.services.values() {
                self.in_hand.push((self.now, *service, self.maps.see(service)));
            }
            self.maps.apply(op);
            self.maps.check_settings();
            for frontend in &frontends {
                let seen = self.maps.look_up(frontend);
                let fine = [before.look_up(frontend), after.look_up(frontend)].contains(&seen);
                assert!(fine, "{frontend:?} leads to neither set after {op:?}");
            }
        }
        self.in_hand.retain(|(since, _, _)| *since + GRACE > self.now);
        self.in_hand.dedup();
        for (_, service, seen) in &self.in_hand {
            assert_eq!(self.maps.see(service), *seen, "a packet under way lost its set");
        }
    }

    fn plan(&mut self, changes: Vec<Change>) {
        for Change { service, ports } in &changes {
            drop(self.wanted.insert(service.clone(), ports.clone()));
        }
        let ops = self.programmer.plan(self.now, changes.clone());
        self.apply(&ops);
        assert_eq!(self.programmer.plan(self.now, changes), [], "equal plans are no work");
    }

    fn everything(&self) -> Vec<Change> {
        let change = |(service, ports): (&ServiceName, &Vec<PortPlan>)| Change {
            service: service.clone(),
            ports: ports.clone(),
        };
        self.wanted.iter().map(change).collect()
    }

    /// A new agent over the same maps. It begins to write [`GRACE`] after the old one ended.
    fn restart(&mut self, limits: Limits) {
        self.now += GRACE;
        self.in_hand.clear();
        self.programmer = Programmer::adopt(limits, self.maps.actual(), self.now);
        let changes = self.everything();
        self.plan(changes);
        let ops = self.programmer.synced(self.now);
        self.apply(&ops);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let ops = self.programmer.tick(self.now);
        self.apply(&ops);
    }

    /// The maps say what the plans say: for each frontend the oldest plan that asks for it.
    fn check(&self) {
        let plans: Vec<&PortPlan> = self.wanted.values().flatten().collect();
        let mut expected: BTreeMap<Frontend, &PortPlan> = BTreeMap::new();
        for plan in &plans {
            for frontend in &plan.frontends {
                let place = expected.entry(key(frontend, plan.key.protocol)).or_insert(plan);
                *place = std::cmp::min_by_key(place, plan, |plan| (&plan.age, &plan.key));
            }
        }
        for (frontend, plan) in &expected {
            let seen = self.maps.look_up(frontend).expect("a frontend is served");
            assert_eq!(seen.cluster, endpoints(plan, |endpoint| endpoint.cluster));
            assert_eq!(seen.local, endpoints(plan, |endpoint| endpoint.local));
            assert_eq!(seen.affinity, plan.affinity.unwrap_or(0));
        }
        for (frontend, service) in &self.maps.services {
            let marks = [Flags::ADDRESS, Flags::LEAVING];
            let stands = marks.iter().any(|mark| service.flags.has(*mark));
            assert!(stands || expected.contains_key(frontend), "{frontend:?} is asked for");
        }
    }

    fn ids(&self) -> BTreeMap<PortKey, u32> {
        self.programmer.names().map(|(id, key)| (key.clone(), id)).collect()
    }
}

fn endpoints(plan: &PortPlan, is: fn(&EndpointPlan) -> bool) -> Vec<Endpoint> {
    let members = plan.endpoints.iter().filter(|endpoint| is(endpoint));
    let at = |endpoint: &EndpointPlan| {
        let port = lb_common::addr::Port::new(endpoint.port);
        Endpoint::new(super::wire(endpoint.ip), port)
    };
    members.map(at).collect::<BTreeSet<_>>().into_iter().collect()
}

fn service(number: u8) -> ServiceName {
    ServiceName { namespace: "default".into(), name: format!("s{number}") }
}

/// A plan of service `number`: a `ClusterIP` of its own, more frontends and endpoints by the bits given.
fn plan(number: u8, protocol: Protocol, more: u8, backends: &[(u8, u8)]) -> PortPlan {
    let address = |ip: [u8; 4]| IpAddr::V4(Ipv4Addr::from(ip));
    let frontend =
        |kind, ip, port| FrontendPlan { kind, ip, port, local_policy: false, sources: false };
    let mut frontends = vec![frontend(FrontendKind::ClusterIp, address([10, 96, 0, number]), 80)];
    let shared = [
        frontend(FrontendKind::NodePort, address([0; 4]), 30_000),
        frontend(FrontendKind::NodePort, address([0; 4]), 30_001),
        frontend(FrontendKind::ExternalIp, address([192, 0, 2, 1]), 80),
        FrontendPlan {
            sources: true,
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

#[derive(Clone, Debug)]
enum Step {
    Change(Vec<(u8, Option<PortPlan>)>),
    Pass(u16),
    Restart,
    /// The agent dies after so many operations of a change.
    Crash(u8, Option<PortPlan>, usize),
}

fn one() -> impl Strategy<Value = (u8, Option<PortPlan>)> {
    let backends = prop::collection::vec((1..9_u8, 0..8_u8), 0..6);
    let protocol = prop_oneof![3 => Just(Protocol::TCP), 1 => Just(Protocol::UDP)];
    (0..5_u8, protocol, 0..32_u8, backends, 0..5_u8).prop_map(
        |(number, protocol, more, backends, dies)| {
            let plan = plan(number, protocol, more, &backends);
            (number, (dies != 0).then_some(plan))
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(one(), 1..4).prop_map(Step::Change),
        2 => (0..1500_u16).prop_map(Step::Pass),
        1 => Just(Step::Restart),
        2 => (one(), 0..12_usize).prop_map(|((number, plan), ops)| Step::Crash(number, plan, ops)),
    ]
}

fn change(number: u8, plan: Option<PortPlan>) -> Change {
    Change { service: service(number), ports: plan.into_iter().collect() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_look_up_is_the_old_set_or_the_new_one(steps in prop::collection::vec(step(), 1..25)) {
        let mut world = World::new(LIMITS);
        for step in steps {
            match step {
                Step::Change(changes) => {
                    let changes: BTreeMap<u8, _> = changes.into_iter().collect();
                    let changes = changes.into_iter().map(|(number, plan)| change(number, plan));
                    world.plan(changes.collect());
                }
                Step::Pass(milliseconds) => world.pass(Duration::from_millis(milliseconds.into())),
                Step::Restart => {
                    let (ids, services) = (world.ids(), world.maps.services.clone());
                    world.restart(LIMITS);
                    prop_assert_eq!(world.ids(), ids, "identities survive");
                    prop_assert_eq!(&world.maps.services, &services, "nothing is rewritten");
                }
                Step::Crash(number, plan, count) => {
                    let change = change(number, plan);
                    drop(world.wanted.insert(change.service.clone(), change.ports.clone()));
                    let ops = world.programmer.plan(world.now, vec![change]);
                    let done = count.min(ops.len());
                    ops[..done].iter().for_each(|op| world.maps.apply(op));
                    world.restart(LIMITS);
                }
            }
            world.check();
        }
        let deleted: Vec<u8> = (0..5).collect();
        world.plan(deleted.into_iter().map(|number| change(number, None)).collect());
        world.pass(GRACE);
        let ops = world.programmer.bury(world.now, world.now + GRACE, &BTreeSet::new());
        world.apply(&ops);
        world.pass(GRACE);
        prop_assert!(world.maps.services.is_empty() && world.maps.sources.is_empty());
        prop_assert_eq!(world.programmer.usage(), super::Usage::default(), "all room is back");
        prop_assert!(world.maps.backends.iter().all(|row| row.service == 0));
    }
}

#[test]
fn epochs_survive_and_tell_who_left() {
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

#[test]
fn tombstones_stay_while_tcp_flows_do() {
    let mut world = World::new(LIMITS);
    world.plan(vec![
        change(1, Some(plan(1, Protocol::TCP, 1, &[(1, 2)]))),
        change(2, Some(plan(2, Protocol::UDP, 0, &[(1, 2)]))),
    ]);
    world.plan(vec![change(1, None), change(2, None)]);
    let left: Vec<Frontend> = world.maps.services.keys().copied().collect();
    assert_eq!(left.len(), 2, "ClusterIP and NodePort of the TCP service");
    let id = *world.programmer.leaving().first().unwrap();
    let wildcard = left.iter().find(|frontend| frontend.port.get() == 30_000).unwrap();
    let node = super::wire("192.0.2.9".parse().unwrap());
    let to_node = Frontend::new(node, wildcard.port, wildcard.protocol);
    let live = BTreeSet::from([(id, to_node)]);
    let early = world.programmer.bury(world.now, world.now, &BTreeSet::new());
    assert_eq!(early, [], "too young to judge");
    let began = world.now + GRACE;
    let ops = world.programmer.bury(world.now, began, &live);
    world.apply(&ops);
    assert_eq!(world.maps.services.keys().collect::<Vec<_>>(), [wildcard]);
    let ops = world.programmer.bury(world.now, began, &BTreeSet::new());
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
    let conflicts = world.programmer.conflicts();
    let names =
        |keys: &[PortKey]| keys.iter().map(|key| key.service.name.clone()).collect::<Vec<_>>();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].winner.service, service(3));
    assert_eq!(names(&conflicts[0].losers), ["s1", "s2"]);
    world.plan(vec![change(3, None)]);
    world.check();
    assert_eq!(world.programmer.conflicts()[0].winner.service, service(1));
}

#[test]
fn what_finds_no_room_is_named_and_served_later() {
    let limits = Limits { backends: 4, ..LIMITS };
    let mut world = World::new(limits);
    world.plan(vec![change(1, Some(plan(1, Protocol::TCP, 0, &[(1, 2), (2, 2)])))]);
    world.plan(vec![change(2, Some(plan(2, Protocol::TCP, 0, &[(1, 2), (2, 2)])))]);
    let refused: Vec<_> =
        world.programmer.refused().map(|(key, why)| (key.service.clone(), why)).collect();
    assert_eq!(refused, [(service(2), Refusal::Backends)]);
    world.plan(vec![change(1, None)]);
    world.pass(GRACE);
    assert_eq!(world.programmer.refused().count(), 0);
    world.check();
}

#[test]
fn a_change_costs_what_changed() {
    let mut world = World::new(LIMITS);
    world.plan(vec![change(1, Some(plan(1, Protocol::TCP, 1, &[(1, 2), (2, 2)])))]);
    let more = plan(1, Protocol::TCP, 1, &[(1, 2), (2, 2), (3, 2)]);
    let ops = world.programmer.plan(world.now, vec![change(1, Some(more))]);
    let kinds = |wanted: fn(&Op) -> bool| ops.iter().filter(|op| wanted(op)).count();
    assert_eq!(kinds(|op| matches!(op, Op::PutBackend { .. })), 1);
    assert_eq!(kinds(|op| matches!(op, Op::WriteLines { .. })), 1);
    assert_eq!(kinds(|op| matches!(op, Op::PutService { .. })), 2, "one per frontend");
    assert_eq!(ops.len(), 4);
}
