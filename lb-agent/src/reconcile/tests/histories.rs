//! Random histories: no packet sees a gap, and nothing is forgotten across a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lb_common::addr::Protocol;
use proptest::prelude::*;

use super::super::{GRACE, Usage};
use super::world::World;
use super::{LIMITS, change, plan};
use crate::plan::PortPlan;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Change(Vec<(u8, Option<PortPlan>)>),
    Pass(u16),
    Restart,
    /// The agent is killed after this number of operations of a change.
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

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(one(), 1..4).prop_map(Step::Change),
        2 => (0..1500_u16).prop_map(Step::Pass),
        1 => Just(Step::Restart),
        2 => (one(), 0..12_usize).prop_map(|((number, plan), ops)| Step::Crash(number, plan, ops)),
    ]
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
                    let ops = world.reconciler.plan(world.now, vec![change]);
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
        let ops = world.reconciler.remove_drained(world.now, world.now + GRACE, &BTreeSet::new());
        world.apply(&ops);
        world.pass(GRACE);
        prop_assert!(world.maps.services.is_empty() && world.maps.sources.is_empty());
        prop_assert_eq!(world.reconciler.usage(), Usage::default(), "all room is back");
        prop_assert!(world.maps.backends.iter().all(|row| row.service == 0));
    }
}
