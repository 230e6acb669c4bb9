//! Clients are forgotten when nothing can use their affinity any more.

use lb_common::addr::Protocol;
use lb_common::service::Flags;

use super::super::{Op, Reconciler};
use super::world::World;
use super::{LIMITS, change, plan, service};
use crate::plan::{PortKey, PortPlan};

#[test]
fn clients_are_forgotten_when_their_affinity_is_switched_off() {
    let mut world = World::new(LIMITS);
    let [sticky, plain] = [16, 0].map(|more| plan(1, Protocol::TCP, more, &[(1, 2)]));
    let mut forgets = |plan: &PortPlan| {
        let ops = world.reconciler.plan(world.now, vec![change(1, Some(plan.clone()))]);
        forgotten(&ops)
    };
    assert_eq!([&sticky, &plain, &sticky].map(&mut forgets), [vec![], vec![1], vec![]]);
}

/// Returns the services whose clients the last operation forgets: no packet finds their frontends then.
fn forgotten(ops: &[Op]) -> Vec<u32> {
    match ops.split_last() {
        Some((Op::ForgetClients { services }, before)) => {
            assert!(!before.iter().any(|op| matches!(op, Op::ForgetClients { .. })), "one walk");
            services.iter().copied().collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn clients_are_forgotten_with_their_service() {
    let mut world = World::new(LIMITS);
    let sticky = |number, protocol| change(number, Some(plan(number, protocol, 16, &[(1, 2)])));
    let plain = change(3, Some(plan(3, Protocol::UDP, 0, &[(1, 2)])));
    world.plan(vec![sticky(1, Protocol::UDP), sticky(2, Protocol::TCP), plain]);
    let mut ids = [1, 2].map(|number| {
        let of = |(_, key): &(u32, &PortKey)| key.service == service(number);
        world.reconciler.names().find(of).unwrap().0
    });
    ids.sort_unstable();
    let gone = [1, 2, 3].map(|number| change(number, None));
    let ops = world.reconciler.plan(world.now, gone.into());
    world.apply(&ops);
    assert_eq!(forgotten(&ops), ids);
    let left: Vec<_> =
        world.maps.services.values().map(|left| (left.flags, left.affinity)).collect();
    assert_eq!(left, [(Flags::DRAINING, 0)], "the draining frontend has no affinity");
}

#[test]
fn clients_of_a_service_that_went_while_no_agent_ran_are_forgotten() {
    let mut world = World::new(LIMITS);
    world.plan(vec![change(1, Some(plan(1, Protocol::UDP, 16, &[(1, 2)])))]);
    let mut reconciler = Reconciler::adopt(LIMITS, world.maps.actual(), world.now);
    assert_eq!(forgotten(&reconciler.synced(world.now)), [1]);
    let mut reconciler = Reconciler::adopt(LIMITS, world.maps.actual(), world.now);
    let without = change(1, Some(plan(1, Protocol::UDP, 0, &[(1, 2)])));
    assert_eq!(
        forgotten(&reconciler.plan(world.now, vec![without])),
        [1],
        "switched off meanwhile"
    );
    assert!(forgotten(&reconciler.synced(world.now)).is_empty());
}
