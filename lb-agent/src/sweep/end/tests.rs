//! Expired flows, and packets between any two calls of the sweep.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::replace;

use lb_common::addr::Protocol;
use lb_common::flow::Shown;

use super::super::tests::{NOW, masqueraded, pair};
use super::*;

/// A table with one flow, and a packet of its client before one of the calls.
struct Table {
    entries: RefCell<BTreeMap<FlowKey, Flow>>,
    front: FlowKey,
    /// The number of calls until the packet comes.
    left: Cell<u32>,
}

impl Table {
    fn before_a_call(&self) {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left != 0 {
            return;
        }
        if let Some(flow) = self.entries.borrow_mut().get_mut(&self.front) {
            flow.seen = NOW.as_nanos() as u64;
        }
    }
}

impl Entries for Table {
    fn entry(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        self.before_a_call();
        Ok(self.entries.borrow().get(key).copied())
    }

    fn take(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        self.before_a_call();
        Ok(self.entries.borrow_mut().remove(key))
    }

    fn restore(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error> {
        self.before_a_call();
        self.entries.borrow_mut().entry(*key).or_insert(*flow);
        Ok(())
    }

    fn replace(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error> {
        self.before_a_call();
        self.entries.borrow_mut().get_mut(key).map(|it| replace(it, *flow));
        Ok(())
    }
}

/// Returns the entries that a sweep leaves of a flow, with a packet before one of its calls.
fn left(flow: &[(FlowKey, Flow)], call: u32) -> usize {
    let [(front, _), ..] = flow else { return 0 };
    let table = Table {
        entries: RefCell::new(flow.iter().copied().collect()),
        front: *front,
        left: Cell::new(call),
    };
    for (key, _) in flow {
        let _went: usize = end(&table, key, &Lifetimes::default(), NOW).unwrap();
    }
    table.entries.into_inner().len()
}

fn over() -> [Vec<(FlowKey, Flow)>; 3] {
    [
        pair(Protocol::UDP, 200, [Shown::ESTABLISHED; 2]),
        pair(Protocol::TCP, 90_000, [Shown::ESTABLISHED; 2]),
        masqueraded(100),
    ]
}

#[test]
fn a_flow_that_is_over_goes_whole() {
    for flow in over() {
        assert_eq!(left(&flow, u32::MAX), 0, "{flow:?}");
    }
}

#[test]
fn a_flow_lives_as_long_as_either_direction_is_seen() {
    let both = [Shown::ESTABLISHED; 2];
    for (flow, expected) in [
        (pair(Protocol::UDP, 119, both), 2),
        (pair(Protocol::UDP, 120, both), 0),
        (pair(Protocol::UDP, 30, [Shown::ESTABLISHED, Shown::NOTHING]), 0),
        (pair(Protocol::SCTP, 209, both), 2),
        (pair(Protocol::TCP, 3_601, both), 2),
        (pair(Protocol::TCP, 3_601, [Shown::FIN, Shown::ESTABLISHED]), 0),
        (pair(Protocol::TCP, 10, [Shown::ESTABLISHED, Shown::RST]), 0),
    ] {
        assert_eq!(left(&flow, u32::MAX), expected, "{flow:?}");
    }
}

#[test]
fn a_packet_before_its_entry_goes_keeps_the_flow() {
    for flow in over() {
        let all = flow.len();
        // The packet comes before the entry is read, and before it is taken.
        for call in 0..3 {
            assert_eq!(left(&flow, call), all, "before call {call}: {flow:?}");
        }
    }
}

/// A packet of its client comes before each call in turn, and finds the whole flow or nothing.
#[test]
fn a_flow_that_is_judged_by_its_reply_is_never_left_without_one() {
    for flow in over() {
        let [(front, _), (reply, _), ..] = flow[..] else { panic!("{flow:?}") };
        for call in 0..8 {
            let table = Table {
                entries: RefCell::new(flow.iter().copied().collect()),
                front,
                left: Cell::new(call),
            };
            let _went: usize = end(&table, &reply, &Lifetimes::default(), NOW).unwrap();
            let left = table.entries.into_inner();
            assert!(
                !left.contains_key(&front) || left.contains_key(&reply),
                "call {call}: {left:?}"
            );
        }
    }
}

#[test]
fn a_masquerade_without_its_flow_goes() {
    let [_, _, masquerade, back] = masqueraded(400).try_into().unwrap();
    assert_eq!(left(&[masquerade, back], u32::MAX), 0);
    assert_eq!(left(&[back], u32::MAX), 0);
}

/// The source of a flow that lost its reply entry belongs to another flow by now.
#[test]
fn removed_flow_leaves_the_reply_entry_of_its_successor() {
    let mut flow = masqueraded(400);
    let Some((_, answers)) = flow.last_mut() else { panic!("four entries") };
    answers.to.destination_port = lb_common::addr::Port::new(1);
    answers.seen = NOW.as_nanos() as u64;
    let [front, reply, masquerade, another] = flow.try_into().unwrap();
    let entries = [front, reply, masquerade, another].into_iter().collect();
    let table = Table { entries: RefCell::new(entries), front: front.0, left: Cell::new(u32::MAX) };
    let _went: usize = end(&table, &front.0, &Lifetimes::default(), NOW).unwrap();
    assert_eq!(table.entries.into_inner().into_keys().collect::<Vec<_>>(), [another.0]);
}
