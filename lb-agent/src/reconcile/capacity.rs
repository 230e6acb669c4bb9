//! Where room ends: the oldest services are served, the newest are refused by name and wait.
//!
//! A port that finds no room sends younger ones away, the youngest first, and comes in when theirs is free. Nobody
//! is sent away in vain: not for a port that would not fit even then. A little room is left to those
//! that are served already, for their changes.

use std::collections::BTreeMap;
use std::time::Duration;

use lb_common::maps::name;

use super::{Op, Outcome, Reconciler, Transaction};
use crate::plan::{PortKey, PortPlan};

/// The part of a map that only changes of what is served may use.
const RESERVE: usize = 16;

/// Room in the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of `SERVICES`.
    pub services: u32,
    /// Rows of `BACKENDS`, the unused row 0 included.
    pub backends: u32,
    /// Lines of `MAGLEV`.
    pub lines: u32,
    /// Entries of `SOURCE_RANGES`.
    pub sources: u32,
}

/// Why a service port is not served, or still as it was before its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// `SERVICES` is full.
    Services,
    /// `BACKENDS` is full.
    Backends,
    /// `MAGLEV` has no free run of lines that is long enough.
    Slots,
    /// `SOURCE_RANGES` is full.
    Sources,
}

impl Refusal {
    /// The map to make larger.
    pub const fn map(self) -> &'static str {
        match self {
            Self::Services => name::SERVICES,
            Self::Backends => name::BACKENDS,
            Self::Slots => name::MAGLEV,
            Self::Sources => name::SOURCE_RANGES,
        }
    }
}

/// Entries in use, for metrics: what the mirror knows without asking the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub services: usize,
    pub backends: usize,
    /// `MAGLEV`.
    pub lines: usize,
    pub sources: usize,
}

impl Limits {
    /// Room that new ports must leave, of this much.
    pub(super) const fn reserve(limit: u32, is_new: bool) -> usize {
        if is_new { limit as usize / RESERVE } else { 0 }
    }
}

/// The room that a port lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lack {
    /// The map, and the count that it lacks.
    pub(super) refusal: Refusal,
    /// Entries it needs beside those it has.
    pub(super) needed: usize,
    /// Entries it would need if it had none.
    pub(super) whole: usize,
}

/// The order in which ports get room.
type Seniority = ((i64, String), PortKey);

impl Reconciler {
    /// Sends younger ports away until there will be room for `plan`, which lacks it. Says whether room is coming.
    pub(super) fn make_room(
        &mut self,
        plan: &PortPlan,
        lack: Lack,
        now: Duration,
        transaction: &mut Transaction,
    ) -> bool {
        let Lack { refusal, needed, whole } = lack;
        let coming = self.coming(refusal, transaction);
        // Rows or ranges in their grace period will do: removing a younger port would not be faster.
        if coming >= needed && self.is_giving(refusal) {
            return true;
        }
        let own = self.ids.get(&plan.key).and_then(|id| self.ports.get(id));
        let own = own.map_or(0, |port| port.holds(refusal));
        // The youngest of all has no one to displace.
        if plan.age > self.youngest && own == 0 {
            return false;
        }
        let mut younger = self.younger(plan, refusal);
        let room = coming + younger.values().sum::<usize>();
        // Beside what is used, or in its place: a port may have to leave in order to come back changed.
        let must_leave = room < needed && own > 0 && room + own >= whole;
        if !must_leave && (younger.is_empty() || room < needed) {
            return false;
        }
        let mut room = coming;
        // One goes at least: what is free may lie in pieces that are too short.
        while let Some(((_, key), held)) = younger.pop_last() {
            self.send_away(&key, refusal, now, transaction);
            room += held;
            if room >= needed && !must_leave {
                break;
            }
        }
        if must_leave {
            self.send_away(&plan.key, refusal, now, transaction);
        }
        true
    }

    /// Ports that are younger than `plan` and have some of what it lacks, and how much.
    fn younger(&self, plan: &PortPlan, refusal: Refusal) -> BTreeMap<Seniority, usize> {
        let mine = (&plan.age, &plan.key);
        let younger = self.ports.values().filter(|port| port.seniority() > mine);
        younger
            .map(|port| ((port.plan.age.clone(), port.plan.key.clone()), port.holds(refusal)))
            .filter(|(_, held)| *held > 0)
            .collect()
    }

    /// Entries that are free, or will be without anybody's doing.
    fn coming(&self, refusal: Refusal, transaction: &Transaction) -> usize {
        let limits = self.limits;
        match refusal {
            Refusal::Services => {
                let going = transaction.dirty.iter();
                let going = going.filter(|frontend| self.frontends.is_going(frontend)).count();
                (limits.services as usize + going).saturating_sub(self.frontends.used())
            }
            Refusal::Backends => self.rows.room() + self.rows.waiting(),
            Refusal::Slots => (limits.lines - self.lines.used() + self.lines.waiting()) as usize,
            Refusal::Sources => (limits.sources as usize).saturating_sub(self.sources.len()),
        }
    }

    fn is_giving(&self, refusal: Refusal) -> bool {
        match refusal {
            Refusal::Backends => self.rows.is_waiting(),
            Refusal::Slots => self.lines.is_waiting(),
            Refusal::Services | Refusal::Sources => false,
        }
    }

    /// Takes a port's room; it is refused from now on.
    fn send_away(
        &mut self,
        key: &PortKey,
        refusal: Refusal,
        now: Duration,
        transaction: &mut Transaction,
    ) {
        let id = self.ids.get(key).copied();
        let Some(plan) = id.and_then(|id| self.ports.get(&id)).map(|port| port.plan.clone()) else {
            return;
        };
        self.remove(key, now, transaction);
        drop(self.refused.insert(key.clone(), (refusal, plan)));
    }

    /// Tries the refused ports again, oldest first, if something became free. While one of them waits for room
    /// that is coming, those that are younger wait too.
    pub(super) fn retry(&mut self, now: Duration) -> Vec<Op> {
        if !std::mem::take(&mut self.has_room) || self.refused.is_empty() {
            return Vec::new();
        }
        let mut waiting: Vec<(Refusal, PortPlan)> =
            std::mem::take(&mut self.refused).into_values().collect();
        waiting
            .sort_by(|(_, left), (_, right)| (&left.age, &left.key).cmp(&(&right.age, &right.key)));
        let mut transaction = Transaction::default();
        let mut waits = false;
        for (refusal, plan) in waiting {
            if waits {
                self.refused.entry(plan.key.clone()).or_insert((refusal, plan));
            } else {
                waits = self.put(plan, now, &mut transaction) == Outcome::Waits;
            }
        }
        self.finish(now, transaction)
    }
}
