//! Applies operations to the maps in order.
//!
//! An entry that a map refuses affects only its own service: a new one is not served, and one that was served stays as
//! it was. (What the old entry refers to is not reused before the entry is gone, see [`Writer::is_up_to_date`].) Each
//! refused entry is retried every second, independently: one map may accept what another refuses, and a small entry may
//! find room where a large one does not.
//!
//! Only operations that belong to no single service, and those that an array refuses, hold up the rest.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::Instant;

use lb_common::service::{Frontend, ServiceId, Source};
use tracing::{error, info, warn};

use crate::maps::{self, Maps};
use crate::metrics::Numbers;
use crate::reconcile::Op;
use crate::words;

#[cfg(test)]
mod tests;

/// Number of attempts at once: the kernel refuses some writes only for a moment, if memory is short or another CPU
/// holds the bucket.
const ATTEMPTS: u32 = 3;

/// Number of refused entries that are retried in one turn, which takes a few milliseconds. The others follow in later
/// turns.
const TURN: usize = 2_000;

/// The target that operations are applied to: the maps. A test has its own.
pub(super) trait WriteTarget {
    fn apply(&mut self, op: &Op) -> Result<(), maps::Error>;

    /// Reports whether a frontend has an entry.
    fn has(&self, frontend: &Frontend) -> bool;
}

impl WriteTarget for Maps {
    fn apply(&mut self, op: &Op) -> Result<(), maps::Error> {
        Self::apply(self, op)
    }

    fn has(&self, frontend: &Frontend) -> bool {
        // If the lookup fails, the entry may exist.
        self.service(frontend).map_or(true, |service| service.is_some())
    }
}

/// An entry of a map in which every entry belongs to one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MapEntry {
    Service(Frontend),
    Source(Source, u32),
}

impl MapEntry {
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

/// The entry in the words of the lists: `10.96.0.1:80/TCP`, `source range 10.0.0.0/8 of service #1`.
impl fmt::Display for MapEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(frontend) => f.write_str(&words::frontend(frontend)),
            Self::Source(source, bits) => {
                let range = words::source_range(*bits, source);
                write!(
                    f,
                    "source range {range} of service {}",
                    words::service(source.service, None)
                )
            }
        }
    }
}

/// Returns the service whose own entry an operation puts. Refusing it affects no other service.
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
struct RefusedEntry {
    op: Op,
    why: String,
    /// Whether the map still has the earlier entry, which is served.
    is_served: bool,
}

/// The maps, and the operations that they have not accepted yet.
#[derive(Debug)]
pub(super) struct Writer<T> {
    maps: T,
    queue: VecDeque<Op>,
    /// Time since which an operation holds up the queue.
    failing: Option<Instant>,
    /// Refused entries, which do not hold up the queue.
    aside: BTreeMap<MapEntry, RefusedEntry>,
    /// The refused entry that was retried last.
    tried: Option<MapEntry>,
    /// An entry that packets used, and whose change was refused, has been replaced.
    has_replaced: bool,
}

impl<T: WriteTarget> Writer<T> {
    pub(super) const fn new(maps: T) -> Self {
        Self {
            maps,
            queue: VecDeque::new(),
            failing: None,
            aside: BTreeMap::new(),
            tried: None,
            has_replaced: false,
        }
    }

    /// Applies operations, after those that wait.
    pub(super) fn write(&mut self, ops: Vec<Op>, numbers: &Numbers) {
        self.queue.extend(ops);
        // While the first operation of the queue fails, the tick alone retries it: many changes must not repeat it each
        // time.
        if self.failing.is_none() {
            self.apply_queued(numbers);
        }
    }

    /// Retries what was refused. Returns whether the set of refused entries changed.
    pub(super) fn retry(&mut self, numbers: &Numbers) -> bool {
        let before = self.aside.len();
        if self.failing.is_some() {
            self.apply_queued(numbers);
        }
        for entry in self.turn() {
            // Source ranges that an outdated but live entry may need are not removed yet.
            if self.aside.get(&entry).is_none_or(|refused| self.waits(&refused.op)) {
                continue;
            }
            let Some(refused) = self.aside.get_mut(&entry) else { continue };
            match self.maps.apply(&refused.op) {
                Ok(()) => {
                    if put_for(&refused.op).is_some() {
                        info!(%entry, "refused map entry written");
                    } else {
                        info!(%entry, "postponed removal of map entry done");
                    }
                    self.has_replaced |= refused.is_served;
                    drop(self.aside.remove(&entry));
                    Numbers::add(&numbers.operations, 1);
                }
                Err(failure) => refused.why = crate::chain(&failure),
            }
        }
        Numbers::set(&numbers.unwritten, self.aside.len());
        before != self.aside.len()
    }

    /// Returns whether an entry that packets used was replaced after a refusal, since this was called last.
    pub(super) const fn take_replaced(&mut self) -> bool {
        std::mem::replace(&mut self.has_replaced, false)
    }

    /// Returns the entries to retry now: those after the last one that was tried, then from the first.
    fn turn(&mut self) -> Vec<MapEntry> {
        let last = self.tried;
        // Entries are retried in turn, so that a few entries that always fail do not keep the others from being tried.
        let behind = self.aside.range((last.map_or(Unbounded, Excluded), Unbounded));
        let up_to = last.map(|last| self.aside.range((Unbounded, Included(last))));
        let all = behind.chain(up_to.into_iter().flatten());
        let turn: Vec<MapEntry> = all.map(|(entry, _)| *entry).take(TURN).collect();
        self.tried = turn.last().copied().or(last);
        turn
    }

    /// Reports whether no operation waits; refused entries do not count.
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

    /// Reports whether an operation removes something that an outdated but live entry may need.
    fn waits(&self, op: &Op) -> bool {
        matches!(op, Op::RemoveSource { .. }) && self.serves_old()
    }

    /// Returns the time since which a refused write holds up all others; `/healthz` counts from then.
    pub(super) const fn failing_since(&self) -> Option<Instant> {
        self.failing
    }

    /// Returns the services some of whose entries were refused, and why.
    pub(super) fn unwritten(&self) -> Vec<(ServiceId, String)> {
        let of = |refused: &RefusedEntry| Some((put_for(&refused.op)?, refused.why.clone()));
        self.aside.values().filter_map(of).collect()
    }

    /// Returns the services some of whose entries were refused, and whether an earlier entry is served in its place.
    pub(super) fn refused(&self) -> impl Iterator<Item = (ServiceId, bool)> {
        self.aside.values().filter_map(|entry| Some((put_for(&entry.op)?, entry.is_served)))
    }

    /// Applies the queued operations, up to one that holds up all later ones.
    fn apply_queued(&mut self, numbers: &Numbers) {
        let mut done = 0;
        while let Some(op) = self.queue.pop_front() {
            let entry = MapEntry::of(&op);
            // A newer write of the same entry replaces the one that was refused.
            let refused = entry.and_then(|entry| self.aside.remove(&entry));
            if let Some(entry) = entry
                && self.waits(&op)
            {
                drop(
                    self.aside
                        .insert(entry, RefusedEntry { op, why: String::new(), is_served: false }),
                );
                continue;
            }
            let Err(failure) = self.attempt(&op) else {
                self.has_replaced |= refused.is_some_and(|refused| refused.is_served);
                done += 1;
                continue;
            };
            Numbers::add(&numbers.failures, 1);
            if let (Some(entry), Some(_)) = (entry, put_for(&op)) {
                // A missing source entry refuses clients that are allowed; it never allows others.
                let is_served =
                    matches!(&op, Op::PutService { frontend, .. } if self.maps.has(frontend));
                let why = crate::chain(&failure);
                warn!(%entry, is_served, error = why, "map refused an entry; retrying");
                drop(self.aside.insert(entry, RefusedEntry { op, why, is_served }));
            } else {
                Numbers::add(&numbers.operations, done);
                // All later writes wait for this one: they may depend on it.
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

    fn attempt(&mut self, op: &Op) -> Result<(), maps::Error> {
        let mut result = self.maps.apply(op);
        for _ in 1..ATTEMPTS {
            if result.is_ok() {
                break;
            }
            result = self.maps.apply(op);
        }
        result
    }

    fn fail(&mut self, failure: &maps::Error) {
        if self.failing.is_none() {
            let (error, waiting) = (crate::chain(failure), self.queue.len());
            error!(error, waiting, "map refused a write; retrying every second");
        }
        self.failing.get_or_insert_with(Instant::now);
    }
}
