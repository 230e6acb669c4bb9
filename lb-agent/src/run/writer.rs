//! Applies operations in order. An entry that a map does not take costs its own service, nobody else: the service
//! is not served (its old entry would lead to what is given to others), and the entry is tried again every second,
//! each for itself: what one map refuses another takes, and a short entry finds room where a long one does not.
//!
//! Only what belongs to no single service, or what an array refuses, holds the rest up.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Included, Unbounded};

use lb_common::service::{Frontend, ServiceId, Source};
use tracing::{error, info, warn};

use crate::maps::{Error as Failure, Maps};
use crate::metrics::Numbers;
use crate::program::Op;

/// The kernel refuses for moments: memory under pressure, a bucket that another CPU holds.
const ATTEMPTS: u32 = 3;

/// Refused entries that are tried again at once: a few milliseconds. Where there are more they take turns.
const TURN: usize = 2_000;

/// What operations are applied to.
pub(super) trait Table {
    /// Applies one.
    fn apply(&mut self, op: &Op) -> Result<(), Failure>;
}

impl Table for Maps {
    fn apply(&mut self, op: &Op) -> Result<(), Failure> {
        Self::apply(self, op)
    }
}

/// An entry of a map in which every entry is one service's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Service(Frontend),
    Source(Source, u32),
}

impl Entry {
    const fn of(op: &Op) -> Option<Self> {
        match op {
            Op::PutService { frontend, .. } | Op::RemoveService { frontend } => {
                Some(Self::Service(*frontend))
            }
            Op::PutSource { bits, source } | Op::RemoveSource { bits, source } => {
                Some(Self::Source(*source, *bits))
            }
            Op::PutSettings(_)
            | Op::PutBackend { .. }
            | Op::WriteLines { .. }
            | Op::ForgetClients { .. } => None,
        }
    }
}

/// The maps, and what they still have to take.
#[derive(Debug)]
pub(super) struct Writer<T> {
    maps: T,
    queue: VecDeque<Op>,
    is_failing: bool,
    /// Entries that were not taken, and why.
    aside: BTreeMap<Entry, (Op, String)>,
    /// The last of them that was tried again.
    tried: Option<Entry>,
}

impl<T: Table> Writer<T> {
    pub(super) const fn new(maps: T) -> Self {
        Self {
            maps,
            queue: VecDeque::new(),
            is_failing: false,
            aside: BTreeMap::new(),
            tried: None,
        }
    }

    /// Applies operations after those that wait.
    pub(super) fn write(&mut self, ops: Vec<Op>, numbers: &Numbers) {
        self.queue.extend(ops);
        if !self.is_failing {
            self.drain(numbers);
        }
    }

    /// Tries what failed again. Says whether something is different.
    pub(super) fn retry(&mut self, numbers: &Numbers) -> bool {
        let before = self.aside.len();
        if self.is_failing {
            self.drain(numbers);
        }
        for entry in self.turn() {
            let Some((op, why)) = self.aside.get_mut(&entry) else { continue };
            match self.maps.apply(op) {
                Ok(()) => {
                    info!(?op, "a map takes an entry that it had refused");
                    drop(self.aside.remove(&entry));
                    Numbers::add(&numbers.operations, 1);
                }
                Err(failure) => *why = crate::chain(&failure),
            }
        }
        Numbers::set(&numbers.unwritten, self.aside.len());
        before != self.aside.len()
    }

    /// Whose turn it is: those behind the last that was tried, then from the first.
    fn turn(&mut self) -> Vec<Entry> {
        let last = self.tried;
        let behind = self.aside.range((last.map_or(Unbounded, Excluded), Unbounded));
        let up_to = last.map(|last| self.aside.range((Unbounded, Included(last))));
        let all = behind.chain(up_to.into_iter().flatten());
        let turn: Vec<Entry> = all.map(|(entry, _)| *entry).take(TURN).collect();
        self.tried = turn.last().copied().or(last);
        turn
    }

    /// Whether everything is in the maps that they take.
    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty()
    }

    /// Services some of whose entries were not taken, and why.
    pub(super) fn unwritten(&self) -> Vec<(ServiceId, String)> {
        let unwritten = self.aside.values().filter_map(|(op, why)| match op {
            Op::PutService { service, .. } => Some((service.id, why.clone())),
            Op::PutSource { source, .. } => Some((source.service, why.clone())),
            Op::PutSettings(_)
            | Op::PutBackend { .. }
            | Op::WriteLines { .. }
            | Op::RemoveSource { .. }
            | Op::RemoveService { .. }
            | Op::ForgetClients { .. } => None,
        });
        unwritten.collect()
    }

    fn drain(&mut self, numbers: &Numbers) {
        let mut done = 0;
        while let Some(op) = self.queue.pop_front() {
            let entry = Entry::of(&op);
            if let Some(entry) = &entry {
                drop(self.aside.remove(entry));
            }
            match (self.attempt(&op), entry) {
                (Ok(()), _) => done += 1,
                (Err(failure), Some(entry)) if self.leave_out(&op) => {
                    Numbers::add(&numbers.failures, 1);
                    let error = crate::chain(&failure);
                    warn!(?entry, error, "a map refused an entry; its service is not served");
                    self.put_aside(entry, op, &failure);
                }
                (Err(failure), _) => {
                    Numbers::add(&numbers.failures, 1);
                    Numbers::add(&numbers.operations, done);
                    self.queue.push_front(op);
                    self.fail(&failure);
                    return;
                }
            }
        }
        Numbers::add(&numbers.operations, done);
        Numbers::set(&numbers.unwritten, self.aside.len());
        if self.is_failing {
            info!("the maps take writes again");
        }
        self.is_failing = false;
    }

    fn attempt(&mut self, op: &Op) -> Result<(), Failure> {
        let mut result = self.maps.apply(op);
        for _ in 1..ATTEMPTS {
            if result.is_ok() {
                break;
            }
            result = self.maps.apply(op);
        }
        result
    }

    /// Whether nothing of what an entry was before stays in the map; packets must not follow it.
    fn leave_out(&mut self, op: &Op) -> bool {
        match op {
            Op::PutService { frontend, .. } => {
                self.maps.apply(&Op::RemoveService { frontend: *frontend }).is_ok()
            }
            // Without it sources are refused that were allowed: never the other way round.
            Op::PutSource { .. } => true,
            Op::PutSettings(_)
            | Op::PutBackend { .. }
            | Op::WriteLines { .. }
            | Op::RemoveSource { .. }
            | Op::RemoveService { .. }
            | Op::ForgetClients { .. } => false,
        }
    }

    fn put_aside(&mut self, entry: Entry, op: Op, failure: &Failure) {
        drop(self.aside.insert(entry, (op, crate::chain(failure))));
    }

    fn fail(&mut self, failure: &Failure) {
        if !self.is_failing {
            let (error, waiting) = (crate::chain(failure), self.queue.len());
            error!(error, waiting, "a map refused a write; trying again every second");
        }
        self.is_failing = true;
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use lb_common::addr::{Ip, Port, Protocol};
    use lb_common::service::Service;

    use super::*;

    /// `SERVICES` with room for so many.
    #[derive(Debug)]
    struct Small {
        room: usize,
        services: BTreeMap<Frontend, ServiceId>,
        is_broken: bool,
    }

    impl Table for Small {
        fn apply(&mut self, op: &Op) -> Result<(), Failure> {
            let full = || Failure::Batch {
                map: "SERVICES",
                source: io::Error::from_raw_os_error(libc::E2BIG),
            };
            match op {
                Op::PutService { frontend, service } => {
                    let is_there = self.services.contains_key(frontend);
                    if !is_there && self.services.len() >= self.room {
                        return Err(full());
                    }
                    let _: Option<ServiceId> = self.services.insert(*frontend, service.id);
                }
                Op::RemoveService { frontend } => drop(self.services.remove(frontend)),
                Op::PutSettings(_)
                | Op::PutBackend { .. }
                | Op::WriteLines { .. }
                | Op::PutSource { .. }
                | Op::RemoveSource { .. }
                | Op::ForgetClients { .. } => {
                    if self.is_broken {
                        return Err(full());
                    }
                }
            }
            Ok(())
        }
    }

    fn frontend(number: u8) -> Frontend {
        Frontend::new(Ip::v4([10, 96, 0, number]), Port::new(80), Protocol::TCP)
    }

    fn put(number: u8) -> Op {
        let service = Service { id: u32::from(number), ..Service::default() };
        Op::PutService { frontend: frontend(number), service }
    }

    fn writer(room: usize) -> Writer<Small> {
        Writer::new(Small { room, services: BTreeMap::new(), is_broken: false })
    }

    #[test]
    fn an_entry_that_is_refused_costs_only_its_own_service() {
        let (mut writer, numbers) = (writer(2), Numbers::default());
        writer.write(vec![put(1), put(2), put(3), put(2)], &numbers);
        assert!(writer.is_done(), "nobody waits for it");
        assert_eq!(writer.unwritten().into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [3]);
        assert!(!writer.retry(&numbers), "still no room");
        writer.write(vec![Op::RemoveService { frontend: frontend(1) }], &numbers);
        assert!(writer.retry(&numbers));
        assert_eq!(writer.maps.services.values().copied().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(writer.unwritten().len(), 0);
    }

    fn source(number: u8) -> Op {
        Op::PutSource { bits: 32, source: Source::new(number.into(), Ip::v4([10, 0, 0, number])) }
    }

    #[test]
    fn what_one_map_refuses_keeps_nothing_from_another() {
        let (mut writer, numbers) = (writer(1), Numbers::default());
        writer.write(vec![put(1)], &numbers);
        writer.maps.is_broken = true;
        writer.write(vec![put(2), source(3)], &numbers);
        assert_eq!(writer.unwritten().len(), 2);
        writer.maps.is_broken = false;
        assert!(writer.retry(&numbers), "the other map has room");
        assert_eq!(writer.unwritten().into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn everybody_has_a_turn_where_many_are_refused() {
        let (mut writer, numbers) = (writer(0), Numbers::default());
        let number = |number: u16| {
            let [high, low] = number.to_be_bytes();
            Frontend::new(Ip::v4([10, 96, high, low]), Port::new(80), Protocol::TCP)
        };
        let service = Service::default();
        let put = |at| Op::PutService { frontend: number(at), service };
        let many = 2 * TURN as u16 + 7;
        writer.write((0..many).map(put).collect(), &numbers);
        let mut tried = std::collections::BTreeSet::new();
        for _ in 0..3 {
            assert!(!writer.retry(&numbers));
        }
        for _ in 0..3 {
            let turn = writer.turn();
            assert!(turn.len() == TURN, "{}", turn.len());
            tried.extend(turn);
        }
        assert_eq!(tried.len(), usize::from(many));
    }

    #[test]
    fn what_is_not_wanted_any_more_is_not_tried_again() {
        let (mut writer, numbers) = (writer(1), Numbers::default());
        writer.write(vec![put(1), put(2)], &numbers);
        writer.write(vec![Op::RemoveService { frontend: frontend(2) }], &numbers);
        writer.write(vec![Op::RemoveService { frontend: frontend(1) }], &numbers);
        assert!(!writer.retry(&numbers));
        assert!(writer.maps.services.is_empty());
    }

    #[test]
    fn what_belongs_to_all_holds_the_rest_up() {
        let (mut writer, numbers) = (writer(1), Numbers::default());
        writer.maps.is_broken = true;
        writer.write(vec![Op::PutSettings(Box::default()), put(1)], &numbers);
        assert!(!writer.is_done() && writer.maps.services.is_empty());
        writer.maps.is_broken = false;
        let _: bool = writer.retry(&numbers);
        assert!(writer.is_done() && writer.maps.services.len() == 1);
    }
}
