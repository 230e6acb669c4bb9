//! Service ports without room: the oldest Services are served, the newest are refused by name and wait.
//!
//! A port that finds no room displaces younger ports, the youngest first, and is programmed when their room is free. No
//! port is displaced in vain, that is, for a port that would not fit even then. New ports leave some room free
//! (`Limits::reserve`) for changes of the ports that are served already. A port that was served and gave way is not new
//! when it comes back: the reserve is for it, too.
//!
//! A port that lacks only rows or lines in their grace period is delayed, not refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::capacity::Lack;
use super::{FullMap, Op, Placement, Reconciler, Transaction};
use crate::plan::{PortKey, PortPlan, ServiceName};

/// A plan that found no room.
#[derive(Debug)]
struct Unplaced {
    full: FullMap,
    plan: PortPlan,
    /// Whether there will be room once entries that nothing claims any more are free.
    waits: bool,
}

/// The plans that found no room.
#[derive(Debug, Default)]
pub(super) struct Refused {
    plans: BTreeMap<PortKey, Unplaced>,
    /// Ports that were served and gave way, until they are served again or their Services have them no more.
    returning: BTreeSet<PortKey>,
    /// Whether entries became free since the last retry.
    has_freed: bool,
}

impl Refused {
    pub(super) fn insert(&mut self, full: FullMap, plan: PortPlan, waits: bool) {
        drop(self.plans.insert(plan.key.clone(), Unplaced { full, plan, waits }));
    }

    /// Removes the plans of a Service, because its desired state has changed. `ports` are those that it has now.
    pub(super) fn forget(&mut self, service: &ServiceName, ports: &BTreeSet<&PortKey>) {
        self.plans.retain(|key, _| key.service != *service);
        self.returning.retain(|key| key.service != *service || ports.contains(key));
    }

    /// Records that a port was served and gave way.
    pub(super) fn record_left(&mut self, key: &PortKey) {
        self.returning.insert(key.clone());
    }

    /// Records that the last plan of a port is served.
    pub(super) fn record_served(&mut self, key: &PortKey) {
        drop(self.plans.remove(key));
        self.returning.remove(key);
    }

    /// Reports whether a port was served, gave way, and is not served again.
    pub(super) fn is_returning(&self, key: &PortKey) -> bool {
        self.returning.contains(key)
    }

    /// Records whether entries became free.
    pub(super) const fn record(&mut self, has_freed: bool) {
        self.has_freed |= has_freed;
    }

    /// Reports whether a refused plan may find room now.
    pub(super) fn are_due(&self) -> bool {
        self.has_freed && !self.plans.is_empty()
    }

    /// Removes and returns all plans for a retry, the oldest first; none if nothing became free.
    fn take(&mut self) -> Vec<Unplaced> {
        if !std::mem::take(&mut self.has_freed) {
            return Vec::new();
        }
        let mut waiting: Vec<Unplaced> = std::mem::take(&mut self.plans).into_values().collect();
        waiting.sort_by(|Unplaced { plan: left, .. }, Unplaced { plan: right, .. }| {
            (&left.age, &left.key).cmp(&(&right.age, &right.key))
        });
        waiting
    }
}

impl Reconciler {
    /// Returns the service ports that found no room, with the full map; without [`Reconciler::delayed`].
    pub fn refused(&self) -> impl Iterator<Item = (&PortKey, FullMap)> {
        let refused = self.refused.plans.iter().filter(move |(_, plan)| !self.is_delayed(plan));
        refused.map(|(key, plan)| (key, plan.full))
    }

    /// Returns the service ports that lack only rows or lines in their grace period: [`Reconciler::tick`] places them
    /// once it is over.
    pub fn delayed(&self) -> impl Iterator<Item = &PortKey> {
        let delayed = self.refused.plans.iter().filter(move |(_, plan)| self.is_delayed(plan));
        delayed.map(|(key, _)| key)
    }

    fn is_delayed(&self, plan: &Unplaced) -> bool {
        plan.waits && self.capacity.is_giving(plan.full)
    }

    /// Displaces younger ports until there will be room for `plan`. Returns whether there will be.
    pub(super) fn displace_younger(
        &mut self,
        plan: &PortPlan,
        lack: Lack,
        now: Duration,
        transaction: &mut Transaction,
    ) -> bool {
        let Lack { full, needed, whole } = lack;
        let coming = self.capacity.coming(full, &self.frontends, &transaction.dirty);
        // Rows or ranges in their grace period will do: removing a younger port would not be faster.
        if coming >= needed && self.capacity.is_giving(full) {
            return true;
        }
        let own = self.names.get(&plan.key).and_then(|id| self.ports.get(id));
        let own = own.map_or(0, |port| port.holds(full));
        // The youngest port can displace no other.
        if self.ports.are_older(&plan.age) && own == 0 {
            return false;
        }
        let mut younger = self.ports.younger(plan, full);
        let free = coming + younger.values().sum::<usize>();
        // If the new entries do not fit beside the port's own ones, they may fit in their place: the port is removed,
        // and programmed again later. The same for the youngest port where the free lines are in too short ranges.
        let must_leave =
            own > 0 && (free < needed && free + own >= whole || younger.is_empty() && own >= whole);
        if !must_leave && (younger.is_empty() || free < needed) {
            return false;
        }
        let mut free = coming;
        // At least one port is displaced: the free lines may be in ranges that are too short.
        while let Some(((_, key), held)) = younger.pop_last() {
            self.send_away(&key, full, now, transaction);
            free += held;
            if free >= needed && !must_leave {
                break;
            }
        }
        if must_leave {
            self.send_away(&plan.key, full, now, transaction);
        }
        true
    }

    /// Removes a port, and adds its plan to the refused ones.
    fn send_away(
        &mut self,
        key: &PortKey,
        full: FullMap,
        now: Duration,
        transaction: &mut Transaction,
    ) {
        let id = self.names.get(key);
        let Some(plan) = id.and_then(|id| self.ports.get(id)).map(|port| port.plan.clone()) else {
            return;
        };
        self.remove(key, now, transaction);
        self.refused.record_left(key);
        // A newer plan that found no room waits already.
        self.refused.plans.entry(key.clone()).or_insert(Unplaced { full, plan, waits: false });
    }

    /// Retries the refused ports, oldest first, if entries became free. While a port waits for room that will become
    /// free, younger ones wait too.
    pub(super) fn retry(&mut self, now: Duration) -> Vec<Op> {
        let waiting = self.refused.take();
        if waiting.is_empty() {
            return Vec::new();
        }
        let mut transaction = Transaction::default();
        let mut waits = false;
        for Unplaced { full, plan, waits: has_waited } in waiting {
            if waits {
                self.refused.insert(full, plan, has_waited);
            } else {
                waits = self.put(plan, now, &mut transaction) == Placement::Waits;
            }
        }
        self.finish(now, transaction)
    }
}
