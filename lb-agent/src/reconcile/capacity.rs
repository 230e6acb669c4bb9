//! Capacity: if a map is full, the oldest services are served; the newest ones are refused by name and wait.
//!
//! A port without room displaces younger ones, the youngest first, and is placed when their room is free. Ports are
//! displaced only if that makes enough room. A reserve is left to ports that are already served, for their changes.

use std::collections::BTreeMap;
use std::time::Duration;

use lb_common::maps::name;

use super::{Op, Outcome, Reconciler, Transaction};
use crate::plan::{PortKey, PortPlan};

/// The reserve is this fraction (1/16) of a map.
const RESERVE: usize = 16;

/// Capacity of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of `SERVICES`, markers included.
    pub services: u32,
    /// Rows of `BACKENDS`, the unused row 0 included.
    pub backends: u32,
    /// Lines of `MAGLEV`, 64 bytes each.
    pub lines: u32,
    /// Entries of `SOURCE_RANGES`.
    pub sources: u32,
}

/// The reason why a service port is not served, or as before its last change.
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
    /// Returns the map that should be larger.
    pub const fn map(self) -> &'static str {
        match self {
            Self::Services => name::SERVICES,
            Self::Backends => name::BACKENDS,
            Self::Slots => name::MAGLEV,
            Self::Sources => name::SOURCE_RANGES,
        }
    }
}

/// Entries in use, for metrics: from the mirror, without reading the maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub services: usize,
    pub backends: usize,
    /// Lines of `MAGLEV`.
    pub lines: usize,
    pub sources: usize,
}

impl Limits {
    /// Returns how much of a capacity new ports must leave free.
    pub(super) const fn reserve(limit: u32, is_new: bool) -> usize {
        if is_new { limit as usize / RESERVE } else { 0 }
    }
}

/// The room that a port lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lack {
    /// The map that is full.
    pub(super) refusal: Refusal,
    /// Entries that the port needs besides those it has.
    pub(super) needed: usize,
    /// Entries that the port would need if it had none.
    pub(super) whole: usize,
}

/// The order in which ports get room: age, then key.
type Seniority = ((i64, String), PortKey);

impl Reconciler {
    /// Removes younger ports until `plan` will have room. Returns whether room will become free.
    pub(super) fn make_room(
        &mut self,
        plan: &PortPlan,
        lack: Lack,
        now: Duration,
        transaction: &mut Transaction,
    ) -> bool {
        let Lack { refusal, needed, whole } = lack;
        let coming = self.coming(refusal, transaction);
        // Entries in their grace period are enough: removing a younger port would not be faster.
        if coming >= needed && self.is_giving(refusal) {
            return true;
        }
        let own = self.ids.get(&plan.key).and_then(|id| self.ports.get(id));
        let own = own.map_or(0, |port| port.holds(refusal));
        // The youngest port has none to displace.
        if plan.age > self.youngest && own == 0 {
            return false;
        }
        let mut younger = self.younger(plan, refusal);
        let room = coming + younger.values().sum::<usize>();
        // A port may fit only in place of its own entries: it must be removed in order to return changed.
        let must_leave = room < needed && own > 0 && room + own >= whole;
        if !must_leave && (younger.is_empty() || room < needed) {
            return false;
        }
        let mut room = coming;
        // At least one port is removed: free lines may be in pieces that are too short.
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

    /// Returns the ports that are younger than `plan` and hold entries of the full map, with their number.
    fn younger(&self, plan: &PortPlan, refusal: Refusal) -> BTreeMap<Seniority, usize> {
        let mine = (&plan.age, &plan.key);
        let younger = self.ports.values().filter(|port| port.seniority() > mine);
        younger
            .map(|port| ((port.plan.age.clone(), port.plan.key.clone()), port.holds(refusal)))
            .filter(|(_, held)| *held > 0)
            .collect()
    }

    /// Returns the entries that are free, or will be without displacing a port.
    fn coming(&self, refusal: Refusal, transaction: &Transaction) -> usize {
        let limits = self.limits;
        match refusal {
            Refusal::Services => {
                // Entries that this transaction will remove are still counted as used.
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

    /// Removes a port; it counts as refused from now on.
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

    /// Retries refused ports, oldest first, if room became free. If one of them waits for room, the younger ones wait
    /// too.
    pub(super) fn retry(&mut self, now: Duration) -> Vec<Op> {
        // Without freed room every attempt would fail again.
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
                // A younger port must not take the room that an older one waits for.
                self.refused.entry(plan.key.clone()).or_insert((refusal, plan));
            } else {
                waits = self.put(plan, now, &mut transaction) == Outcome::Waits;
            }
        }
        self.finish(now, transaction)
    }
}
