//! Applies operations in order. An entry that a map does not take costs its own service, nobody else: a new one is not
//! served, one that was served goes on as it was (what it leads to is given to nobody before it is gone, see
//! [`Writer::is_up_to_date`]). The entry is tried again every second, each for itself: what one map refuses another takes,
//! and a short entry finds room where a long one does not.
//!
//! Only what belongs to no single service, or what an array refuses, holds the rest up.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::Instant;

use lb_common::service::{Frontend, ServiceId, Source};
use tracing::{error, info, warn};

use crate::maps::{Error as Failure, Maps};
use crate::metrics::Numbers;
use crate::reconcile::Op;

#[cfg(test)]
mod tests;

/// The kernel refuses for moments: memory under pressure, a bucket that another CPU holds.
const ATTEMPTS: u32 = 3;

/// Refused entries that are tried again at once: a few milliseconds. Where there are more they take turns.
const TURN: usize = 2_000;

/// The tables that operations are applied to.
pub(super) trait Table {
    fn apply(&mut self, op: &Op) -> Result<(), Failure>;

    /// Whether a frontend has an entry.
    fn has(&self, frontend: &Frontend) -> bool;
}

impl Table for Maps {
    fn apply(&mut self, op: &Op) -> Result<(), Failure> {
        Self::apply(self, op)
    }

    fn has(&self, frontend: &Frontend) -> bool {
        // Where nobody can tell it may be there.
        self.service(frontend).map_or(true, |service| service.is_some())
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

/// The service whose own entry an operation puts: what is refused of it holds nobody else up.
const fn put_for(op: &Op) -> Option<ServiceId> {
    match op {
        Op::PutService { service, .. } => Some(service.id),
        Op::PutSource { source, .. } => Some(source.service),
        Op::PutSettings(_)
        | Op::PutBackend { .. }
        | Op::WriteLines { .. }
        | Op::RemoveSource { .. }
        | Op::RemoveService { .. }
        | Op::ForgetClients { .. } => None,
    }
}

/// An entry that the kernel refused.
#[derive(Debug)]
struct Refused {
    op: Op,
    why: String,
    /// The map holds the entry of before, which is served.
    is_served: bool,
}

/// The maps, and what they still have to take.
#[derive(Debug)]
pub(super) struct Writer<T> {
    maps: T,
    queue: VecDeque<Op>,
    /// Since when something holds the queue up.
    failing: Option<Instant>,
    /// Entries that were not taken.
    aside: BTreeMap<Entry, Refused>,
    /// The last of them that was tried again.
    tried: Option<Entry>,
}

impl<T: Table> Writer<T> {
    pub(super) const fn new(maps: T) -> Self {
        Self { maps, queue: VecDeque::new(), failing: None, aside: BTreeMap::new(), tried: None }
    }

    /// Applies operations after those that wait.
    pub(super) fn write(&mut self, ops: Vec<Op>, numbers: &Numbers) {
        self.queue.extend(ops);
        if self.failing.is_none() {
            self.drain(numbers);
        }
    }

    /// Tries what failed again. Says whether something is different.
    pub(super) fn retry(&mut self, numbers: &Numbers) -> bool {
        let before = self.aside.len();
        if self.failing.is_some() {
            self.drain(numbers);
        }
        for entry in self.turn() {
            if self.aside.get(&entry).is_none_or(|refused| self.waits(&refused.op)) {
                continue;
            }
            let Some(refused) = self.aside.get_mut(&entry) else { continue };
            match self.maps.apply(&refused.op) {
                Ok(()) => {
                    info!(op = ?refused.op, "map accepts an entry that it had refused");
                    drop(self.aside.remove(&entry));
                    Numbers::add(&numbers.operations, 1);
                }
                Err(failure) => refused.why = crate::chain(&failure),
            }
        }
        Numbers::set(&numbers.unwritten, self.aside.len());
        before != self.aside.len()
    }

    /// The entries whose turn it is: those behind the last that was tried, then from the first.
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

    /// True once no outdated entry is live. Only then may its rows and ranges be reused.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.is_done() && !self.serves_old()
    }

    fn serves_old(&self) -> bool {
        self.aside.values().any(|refused| refused.is_served)
    }

    /// Whether an old entry that is still served may need what this takes away.
    fn waits(&self, op: &Op) -> bool {
        matches!(op, Op::RemoveSource { .. }) && self.serves_old()
    }

    /// Since when a refused write holds up all others; `/healthz` counts from then.
    pub(super) const fn failing_since(&self) -> Option<Instant> {
        self.failing
    }

    /// Services some of whose entries were not taken, and why.
    pub(super) fn unwritten(&self) -> Vec<(ServiceId, String)> {
        let of = |refused: &Refused| Some((put_for(&refused.op)?, refused.why.clone()));
        self.aside.values().filter_map(of).collect()
    }

    fn drain(&mut self, numbers: &Numbers) {
        let mut done = 0;
        while let Some(op) = self.queue.pop_front() {
            let entry = Entry::of(&op);
            if let Some(entry) = &entry {
                drop(self.aside.remove(entry));
            }
            if let Some(entry) = entry
                && self.waits(&op)
            {
                drop(
                    self.aside.insert(entry, Refused { op, why: String::new(), is_served: false }),
                );
                continue;
            }
            let Err(failure) = self.attempt(&op) else {
                done += 1;
                continue;
            };
            Numbers::add(&numbers.failures, 1);
            if let (Some(entry), Some(_)) = (entry, put_for(&op)) {
                // Without a source, sources are refused that were allowed: never the other way round.
                let is_served =
                    matches!(&op, Op::PutService { frontend, .. } if self.maps.has(frontend));
                let why = crate::chain(&failure);
                warn!(?entry, is_served, error = why, "map refused an entry; retrying");
                drop(self.aside.insert(entry, Refused { op, why, is_served }));
            } else {
                Numbers::add(&numbers.operations, done);
                self.queue.push_front(op);
                self.fail(&failure);
                return;
            }
        }
        Numbers::add(&numbers.operations, done);
        Numbers::set(&numbers.unwritten, self.aside.len());
        if self.failing.take().is_some() {
            info!("map writes succeed again");
        }
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

    fn fail(&mut self, failure: &Failure) {
        if self.failing.is_none() {
            let (error, waiting) = (crate::chain(failure), self.queue.len());
            error!(error, waiting, "map refused a write; retrying every second");
        }
        self.failing.get_or_insert_with(Instant::now);
    }
}
