//! Expired flows, and packets between any two calls of the sweep.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::replace;

use lb_common::addr::Protocol;
use lb_common::flow::Shown;

use super::super::tests::{NOW, masqueraded, pair};
use super::*;

/// A table with one flow, and a packet of its client before one of the calls.
pub(in crate::sweep) struct Table {
    pub(in crate::sweep) entries: RefCell<BTreeMap<FlowKey, Flow>>,
    /// The transient table: what the entries left there when they became protected.
    pub(in crate::sweep) copies: RefCell<BTreeMap<FlowKey, Flow>>,
    front: FlowKey,
    /// The number of calls until the packet comes.
    left: Cell<u32>,
}

/// Returns the entries of a flow with other times of their last packets.
fn seen_at(flow: &[(FlowKey, Flow)], seen: impl Fn(u64) -> u64) -> BTreeMap<FlowKey, Flow> {
    let mut entries: BTreeMap<_, _> = flow.iter().copied().collect();
    for flow in entries.values_mut() {
        flow.seen = seen(flow.seen);
    }
    entries
}

impl Table {
    /// Returns a table with the entries of a flow and a packet before one of the calls.
    pub(in crate::sweep) fn new(flow: &[(FlowKey, Flow)], call: u32) -> Self {
        let [(front, _), ..] = flow else { panic!("a flow has entries") };
        Self {
            entries: RefCell::new(flow.iter().copied().collect()),
            copies: RefCell::new(seen_at(flow, |seen| seen - 1)),
            front: *front,
            left: Cell::new(call),
        }
    }

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
        let protected = self.entries.borrow().get(key).copied();
        Ok(protected.or_else(|| self.copies.borrow().get(key).copied()))
    }

    fn take(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        self.before_a_call();
        Ok(self.entries.borrow_mut().remove(key))
    }

    fn take_copy(&self, key: &FlowKey, seen: u64) -> Result<(), Error> {
        self.before_a_call();
        self.copies.borrow_mut().retain(|at, flow| at != key || flow.seen > seen);
        Ok(())
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
    let table = Table::new(flow, call);
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
            let table = Table::new(&flow, call);
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
    let table = Table::new(&[front, reply, masquerade, another], u32::MAX);
    let _went: usize = end(&table, &front.0, &Lifetimes::default(), NOW).unwrap();
    assert_eq!(table.entries.into_inner().into_keys().collect::<Vec<_>>(), [another.0]);
}

/// An older copy has the flags of the handshake: it would stand for an open connection until it is displaced.
#[test]
fn flow_that_is_over_leaves_no_copy() {
    for flow in over() {
        let table = Table::new(&flow, u32::MAX);
        let _went: usize = end(&table, &flow[0].0, &Lifetimes::default(), NOW).unwrap();
        assert_eq!(table.copies.into_inner(), BTreeMap::new(), "{flow:?}");
    }
}

/// As after a copy into a table that had no room for the reply.
#[test]
fn flow_whose_reply_is_transient_goes_with_its_masquerade() {
    let [front, reply, masquerade, answers] = masqueraded(400).try_into().unwrap();
    let table = Table::new(&[front, masquerade, answers], u32::MAX);
    *table.copies.borrow_mut() = BTreeMap::from([reply]);
    let _went: usize = end(&table, &front.0, &Lifetimes::default(), NOW).unwrap();
    assert_eq!(table.entries.into_inner(), BTreeMap::new());
}

/// The backend's packet comes before each call in turn: the entry that it renews is never removed.
#[test]
fn reply_that_is_renewed_meanwhile_stays() {
    for flow in over() {
        let [front, (reply, _), ..] = flow[..] else { panic!("{flow:?}") };
        for call in 0..8 {
            let table = Table { front: reply, ..Table::new(&flow, call) };
            let _went: usize = end(&table, &front.0, &Lifetimes::default(), NOW).unwrap();
            // A packet after the last call finds no entry to renew.
            let comes_too_late = table.left.get() < u32::MAX / 2;
            let left = table.entries.into_inner();
            let renewed = left.get(&reply).map(|flow| flow.seen);
            assert!(
                renewed.is_none_or(|seen| seen == NOW.as_nanos() as u64) || comes_too_late,
                "call {call}: {left:?}"
            );
            if call < 4 {
                assert!(renewed.is_some(), "call {call}: {left:?}");
            }
        }
    }
}

/// The flow began again behind the reply entry that a packet of the backend then renewed.
#[test]
fn reply_that_began_again_behind_a_renewed_one_stays() {
    for flow in over() {
        let [front, (reply, value), ..] = flow[..] else { panic!("{flow:?}") };
        // The calls until the forward entry has been taken: two reads, and one more of a masquerade.
        let call = if value.flags & Flow::MASQUERADED == 0 { 3 } else { 4 };
        let table = Table { front: reply, ..Table::new(&flow, call) };
        let mut began = value;
        began.seen = NOW.as_nanos() as u64 - 1;
        table.copies.borrow_mut().insert(reply, began);
        let _went: usize = end(&table, &front.0, &Lifetimes::default(), NOW).unwrap();
        assert_eq!(table.copies.into_inner().get(&reply), Some(&began), "{flow:?}");
    }
}

/// A packet began the flow again in the transient table after its forward entry had been taken.
#[test]
fn flow_that_began_again_stays() {
    for flow in over() {
        let table = Table::new(&flow, u32::MAX);
        let again = seen_at(&flow, |_| NOW.as_nanos() as u64);
        *table.copies.borrow_mut() = again.clone();
        let _went: usize = end(&table, &flow[0].0, &Lifetimes::default(), NOW).unwrap();
        assert_eq!(table.copies.into_inner(), again, "{flow:?}");
    }
}

/// Such a connection is transient where the table of protected flows is full, and keeps its draining frontend.
#[test]
fn idle_connection_is_judged_by_both_of_its_entries() {
    let lifetimes = Lifetimes::default();
    let is_over = |shown: [Shown; 2]| {
        let mut flow = pair(Protocol::TCP, 60, shown);
        for (_, entry) in &mut flow {
            entry.flags &= !Flow::PROTECTED;
        }
        let (key, forward) = flow[0];
        is_over(&Table::new(&flow, u32::MAX), &key, &forward, &lifetimes, NOW).unwrap()
    };
    assert!(!is_over([Shown::ESTABLISHED; 2]));
    assert!(is_over([Shown::NOTHING, Shown::NOTHING]), "never answered");
    assert!(is_over([Shown::FIN; 2]));
}
