//! Full maps: which ports are served, which are reported, and that all of them return.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lb_common::addr::Protocol;
use proptest::prelude::*;

use super::super::{FullMap, GRACE, Limits, Usage, lines_of};
use super::histories::{Step, step};
use super::world::World;
use super::{LIMITS, change, plan, service};
use crate::plan::ServiceName;

fn refused(world: &World) -> BTreeSet<(ServiceName, FullMap)> {
    world.reconciler.refused().map(|(key, why)| (key.service.clone(), why)).collect()
}

/// Returns the Services that wait only for a grace period.
fn delayed(world: &World) -> Vec<ServiceName> {
    world.reconciler.delayed().map(|key| key.service.clone()).collect()
}

fn served(world: &World) -> BTreeSet<String> {
    world.reconciler.names().map(|(_, key)| key.service.name.clone()).collect()
}

fn tcp(number: u8, backends: &[(u8, u8)]) -> super::Change {
    change(number, Some(plan(number, Protocol::TCP, 0, backends)))
}

#[test]
fn the_newest_gives_way_to_the_change_of_an_older_one() {
    let mut world = World::new(Limits { backends: 5, ..LIMITS });
    world.plan(vec![tcp(1, &[(1, 2), (2, 2)])]);
    world.plan(vec![tcp(2, &[(1, 2), (2, 2)])]);
    world.plan(vec![tcp(1, &[(1, 2), (2, 2), (3, 2)])]);
    let newest = BTreeSet::from([(service(2), FullMap::Backends)]);
    assert_eq!((refused(&world), delayed(&world)), (newest.clone(), vec![service(1)]));
    world.pass(GRACE);
    assert_eq!((refused(&world), delayed(&world)), (newest, vec![]));
    assert_eq!(served(&world), BTreeSet::from(["s1".into()]));
    world.plan(vec![tcp(1, &[(3, 2)])]);
    world.pass(GRACE);
    assert_eq!(refused(&world), BTreeSet::new());
    world.check();
}

#[test]
fn a_newer_service_does_not_push_an_older_one_out() {
    let mut world = World::new(Limits { backends: 3, ..LIMITS });
    world.plan(vec![tcp(1, &[(1, 2), (2, 2)])]);
    world.plan(vec![tcp(2, &[(1, 2)])]);
    assert_eq!(refused(&world), BTreeSet::from([(service(2), FullMap::Backends)]));
    world.plan(vec![tcp(2, &[(1, 2), (3, 2)])]);
    assert_eq!(served(&world), BTreeSet::from(["s1".into()]));
}

#[test]
fn port_that_exceeds_the_map_displaces_no_other() {
    let mut world = World::new(Limits { backends: 4, ..LIMITS });
    world.plan(vec![tcp(2, &[(1, 2), (2, 2)])]);
    world.plan(vec![tcp(1, &[(1, 2), (2, 2), (3, 2), (4, 2)])]);
    assert_eq!(refused(&world), BTreeSet::from([(service(1), FullMap::Backends)]));
    assert_eq!(served(&world), BTreeSet::from(["s2".into()]));
}

#[test]
fn a_service_alone_in_a_full_map_still_changes() {
    let mut world = World::new(Limits { backends: 3, ..LIMITS });
    world.plan(vec![tcp(1, &[(1, 2), (2, 2)])]);
    world.plan(vec![tcp(1, &[(3, 2), (4, 2)])]);
    world.pass(GRACE);
    assert_eq!(refused(&world), BTreeSet::new());
    world.check();
}

/// Makes a TCP Service whose endpoints have these hosts.
fn hosts(number: u8, hosts: Range<u8>) -> super::Change {
    tcp(number, &hosts.map(|host| (host, 2)).collect::<Vec<_>>())
}

/// 63 rows, 4 of them in reserve. Service 3, with 20, is older than Service 1, with 40.
fn nearly_full() -> World {
    let mut world = World::new(Limits { backends: 64, ..LIMITS });
    world.plan(vec![hosts(3, 0..20)]);
    world.plan(vec![hosts(1, 100..130)]);
    world.plan(vec![hosts(1, 100..140)]);
    assert_eq!(refused(&world), BTreeSet::new(), "60 rows are taken");
    world
}

#[test]
fn service_that_made_room_for_its_own_change_needs_no_reserve() {
    let mut world = nearly_full();
    world.plan(vec![hosts(1, 110..150)]);
    assert_eq!((refused(&world), delayed(&world)), (BTreeSet::new(), vec![service(1)]));
    // Its plan changes again before its rows are free, and younger Services come.
    world.plan(vec![hosts(1, 111..151), hosts(4, 200..202)]);
    world.plan(vec![hosts(2, 210..213)]);
    world.pass(GRACE);
    let younger = [(service(2), FullMap::Backends), (service(4), FullMap::Backends)];
    assert_eq!(refused(&world), younger.into(), "the reserve is kept from them");
    assert_eq!(served(&world), BTreeSet::from(["s1".into(), "s3".into()]));
}

/// The endpoints of the earlier plan may be gone.
#[test]
fn displaced_service_comes_back_with_its_last_plan() {
    let mut world = World::new(Limits { backends: 64, ..LIMITS });
    for (number, endpoints) in [(3, 0..40), (1, 40..50), (2, 100..108), (2, 100..110)] {
        world.plan(vec![hosts(number, endpoints)]);
    }
    world.plan(vec![hosts(2, 150..180)]);
    let waits = BTreeSet::from([(service(2), FullMap::Backends)]);
    assert_eq!(refused(&world), waits, "served as before its last change");
    world.plan(vec![hosts(1, 45..55)]);
    for _ in 0..3 {
        world.pass(GRACE);
    }
    assert_eq!(refused(&world), waits);
    assert_eq!(served(&world), BTreeSet::from(["s1".into(), "s3".into()]));
}

#[test]
fn displaced_service_needs_no_reserve_however_often_it_is_retried() {
    let mut world = nearly_full();
    world.plan(vec![hosts(3, 10..30)]);
    let younger = BTreeSet::from([(service(1), FullMap::Backends)]);
    assert_eq!((refused(&world), delayed(&world)), (younger, vec![service(3)]));
    // One row too many, then one endpoint less.
    world.plan(vec![hosts(3, 10..34)]);
    world.pass(GRACE);
    assert_eq!(refused(&world), BTreeSet::from([(service(1), FullMap::Backends)]));
    world.plan(vec![hosts(3, 11..34)]);
    world.pass(GRACE);
    assert_eq!(refused(&world), BTreeSet::new());
    assert_eq!(world.reconciler.usage().backends, 63);
    world.check();
    // A deleted Service that is made again is new.
    world.plan(vec![hosts(3, 0..40), change(1, None)]);
    world.pass(GRACE);
    world.plan(vec![hosts(1, 100..120)]);
    world.pass(GRACE);
    assert_eq!(refused(&world), BTreeSet::from([(service(1), FullMap::Backends)]));
}

#[test]
fn service_of_an_earlier_run_that_changed_meanwhile_needs_no_reserve() {
    let mut world = nearly_full();
    world.wanted.insert(service(1), hosts(1, 110..150).ports);
    world.restart(world.reconciler.limits());
    world.pass(GRACE);
    assert_eq!(refused(&world), BTreeSet::new());
    world.check();
}

/// Between two ticks a rollout releases more sets than the map has room for, as that of a Service with a thousand pods.
#[test]
fn rollout_that_is_faster_than_the_tick_refuses_no_service() {
    // However two sets divide what is free without the released ones, there is room for the large set.
    let limits = Limits { lines: 4 * lines_of(40) + 2 * lines_of(2), ..LIMITS };
    let (mut world, mut grace_periods) = (World::new(limits), 0);
    for turn in 0..30 {
        world.plan(vec![hosts(3, turn..turn + 40), hosts(1, 100 + turn..102 + turn)]);
        assert_eq!(refused(&world), BTreeSet::new(), "turn {turn}");
        // As the agent does within the turn.
        while !delayed(&world).is_empty() {
            world.pass(GRACE);
            grace_periods += 1;
        }
        assert_eq!(refused(&world), BTreeSet::new(), "turn {turn}");
        world.check();
    }
    assert!((1..30).contains(&grace_periods), "{grace_periods}");
}

/// Six lines are free, on either side of the six that the youngest port has.
#[test]
fn youngest_port_changes_in_its_place_where_free_lines_are_scattered() {
    let mut world = World::new(Limits { lines: 12, ..LIMITS });
    let others = [1, 3, 4, 6, 7, 9];
    for number in [1, 3, 4, 5, 6, 7, 9] {
        let backends: &[(u8, u8)] = if number == 5 { &[(1, 2), (2, 2)] } else { &[(1, 2)] };
        world.plan(vec![tcp(number, backends)]);
    }
    assert_eq!(refused(&world), BTreeSet::new());
    world.plan(others.map(|number| change(number, None)).into());
    world.pass(GRACE);
    world.plan(vec![tcp(5, &[(3, 2), (4, 2)])]);
    world.pass(GRACE);
    assert_eq!(refused(&world), BTreeSet::new());
    assert_eq!(served(&world), BTreeSet::from(["s5".into()]));
    world.check();
}

#[test]
fn many_at_once_take_no_more_than_there_is_and_the_oldest_come_first() {
    // Each Service takes its entry and the marker of its address. Ages are 0 for 3 and 6, 1 for 1 and 4, 2 for 2 and 5.
    let mut world = World::new(Limits { services: 9, ..LIMITS });
    world.plan((1..=6).map(|number| tcp(number, &[(number, 2)])).collect());
    assert_eq!(served(&world), ["s1", "s3", "s4", "s6"].map(String::from).into());
    assert_eq!(world.maps.services.len(), 8);
    world.plan(vec![change(3, None)]);
    let ops = world.reconciler.remove_drained(world.now, world.now + GRACE, &BTreeSet::new());
    world.apply(&ops);
    assert_eq!(served(&world), ["s1", "s2", "s4", "s6"].map(String::from).into());
}

#[test]
fn room_of_udp_services_without_endpoints_is_given_out_again() {
    let mut world = World::new(Limits { services: 3, ..LIMITS });
    let udp = |number| change(number, Some(plan(number, Protocol::UDP, 0, &[])));
    world.plan(vec![udp(1)]);
    world.plan(vec![udp(2)]);
    assert_eq!(served(&world), ["s1".into()].into());
    world.plan(vec![change(1, None)]);
    assert!(world.reconciler.is_waiting());
    world.pass(GRACE);
    assert_eq!(served(&world), ["s2".into()].into());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn with_little_room_no_set_is_mixed_and_no_map_overflows(
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let limits = Limits { services: 14, backends: 8, lines: 60, sources: 2 };
        let mut world = World::new(limits);
        for step in steps {
            match step {
                Step::Change(changes) => {
                    let changes: BTreeMap<u8, _> = changes.into_iter().collect();
                    let changes = changes.into_iter().map(|(number, plan)| change(number, plan));
                    let ops = world.reconciler.plan(world.now, changes.collect());
                    world.apply(&ops);
                }
                Step::Pass(milliseconds) => {
                    world.pass(std::time::Duration::from_millis(milliseconds.into()));
                }
                Step::Restart | Step::Crash(..) => {}
            }
            prop_assert!(world.maps.services.len() <= limits.services as usize);
            prop_assert!(world.maps.sources.len() <= limits.sources as usize);
        }
        let deleted = (0..5).map(|number| change(number, None)).collect();
        let ops = world.reconciler.plan(world.now, deleted);
        world.apply(&ops);
        world.pass(GRACE);
        let ops = world.reconciler.remove_drained(world.now, world.now + GRACE, &BTreeSet::new());
        world.apply(&ops);
        world.pass(GRACE);
        prop_assert_eq!(world.reconciler.usage(), Usage::default(), "all room is back");
        prop_assert_eq!(world.reconciler.refused().count(), 0);
    }
}
