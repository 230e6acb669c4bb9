//! Packets between any two calls of the sweep.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::replace;

use lb_common::addr::Protocol;
use lb_common::flow::state;

use super::super::tests::{NOW, masquerade, pair};
use super::*;

/// What comes between two calls.
#[derive(Clone, Copy, Debug)]
enum Packet {
    /// A question, and its answer at once.
    Question,
    /// An answer alone.
    Answer,
}

/// A table with one flow that is over, and a packet of it before one of the calls.
struct Table {
    halves: RefCell<BTreeMap<FlowKey, Flow>>,
    pair: [(FlowKey, Flow); 2],
    packet: Packet,
    /// Calls until the packet comes.
    left: Cell<u32>,
    /// Whether the packet found what it needs.
    passed: Cell<Option<bool>>,
}

impl Table {
    fn before_a_call(&self) {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        if left != 0 {
            return;
        }
        let mut halves = self.halves.borrow_mut();
        let seen = NOW.as_nanos() as u64;
        let [(front, mut front_flow), (back, mut back_flow)] = self.pair;
        (front_flow.seen, back_flow.seen) = (seen, seen);
        if matches!(self.packet, Packet::Question) {
            if let Some(flow) = halves.get_mut(&front) {
                flow.seen = seen;
            } else {
                let _: Option<Flow> = halves.insert(back, back_flow);
                let _: Option<Flow> = halves.insert(front, front_flow);
            }
        }
        let answered = halves.get_mut(&back).map(|flow| flow.seen = seen);
        self.passed.set(Some(answered.is_some()));
    }
}

impl Halves for Table {
    fn half(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        self.before_a_call();
        Ok(self.halves.borrow().get(key).copied())
    }

    fn take(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        self.before_a_call();
        Ok(self.halves.borrow_mut().remove(key))
    }

    fn restore(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error> {
        self.before_a_call();
        let _: &mut Flow = self.halves.borrow_mut().entry(*key).or_insert(*flow);
        Ok(())
    }

    fn replace(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error> {
        self.before_a_call();
        let _: Option<Flow> = self.halves.borrow_mut().get_mut(key).map(|it| replace(it, *flow));
        Ok(())
    }
}

/// A sweep of a flow with a packet before one of its calls: whether the packet passed, if it came at all, and what is left.
fn swept(flow: &[(FlowKey, Flow)], packet: Packet, call: u32) -> (Option<bool>, usize) {
    let table = Table {
        halves: RefCell::new(flow.iter().copied().collect()),
        pair: flow.try_into().unwrap(),
        packet,
        left: Cell::new(call),
        passed: Cell::new(None),
    };
    let mut notes = Notes { epochs: vec![0, 1], ..Notes::default() };
    for (key, flow) in flow {
        notes.note(key, flow);
    }
    for (key, _) in flow {
        let _went: usize = end(&table, key, &mut notes, NOW).unwrap();
    }
    (table.passed.get(), table.halves.into_inner().len())
}

fn flows() -> [Vec<(FlowKey, Flow)>; 2] {
    [pair(Protocol::UDP, 200, [state::ESTABLISHED; 2]), masquerade(100)]
}

#[test]
fn a_flow_that_is_over_goes_whole() {
    for flow in flows() {
        assert_eq!(swept(&flow, Packet::Question, u32::MAX), (None, 0));
    }
}

#[test]
fn a_question_during_a_sweep_is_answered_and_its_flow_stays() {
    for flow in flows() {
        let came: Vec<_> = (0..12).map(|call| swept(&flow, Packet::Question, call)).collect();
        for (call, (passed, left)) in came.iter().enumerate().filter(|(_, (p, _))| p.is_some()) {
            assert_eq!((*passed, *left), (Some(true), 2), "before call {call}: {came:?}");
        }
        assert!(came.iter().filter(|(passed, _)| passed.is_some()).count() >= 5, "{came:?}");
    }
}

#[test]
fn an_answer_that_passes_keeps_its_flow() {
    let flow = pair(Protocol::UDP, 200, [state::ESTABLISHED; 2]);
    for call in 0..12 {
        let (passed, left) = swept(&flow, Packet::Answer, call);
        let expected = if passed == Some(true) { 2 } else { 0 };
        assert_eq!(left, expected, "before call {call}: {passed:?}");
    }
}
