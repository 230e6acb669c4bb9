//! Where room ends: the oldest services are served, the newest are refused by name and wait.
//!
//! A port that finds no room sends younger ones away, the youngest first, and comes in when theirs is free. Nobody
//! is sent away in vain: not for a port that would not fit even then. A little room is left to those
//! that are served already, for their changes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::capacity::Lack;
use super::{Op, Outcome, Reconciler, Refusal, Transaction};
use crate::plan::{PortKey, PortPlan, ServiceName};

/// The plans that found no room.
#[derive(Debug, Default)]
pub(super) struct Refused {
    plans: BTreeMap<PortKey, (Refusal, PortPlan)>,
    /// Something became free since they were tried last.
    has_room: bool,
}

impl Refused {
    /// The ports, and the reason of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&PortKey, Refusal)> {
        self.plans.iter().map(|(key, (refusal, _))| (key, *refusal))
    }

    pub(super) fn insert(&mut self, refusal: Refusal, plan: PortPlan) {
        drop(self.plans.insert(plan.key.clone(), (refusal, plan)));
    }

    /// A Service asks for something else now.
    pub(super) fn forget(&mut self, service: &ServiceName) {
        self.plans.retain(|key, _| key.service != *service);
    }

    /// Notes whether something became free.
    pub(super) const fn note(&mut self, has_room: bool) {
        self.has_room |= has_room;
    }

    /// Whether a plan may find room by now.
    pub(super) fn are_due(&self) -> bool {
        self.has_room && !self.plans.is_empty()
    }

    /// Takes out all plans to try them again, the oldest first; none where nothing became free.
    fn take(&mut self) -> Vec<(Refusal, PortPlan)> {
        if !std::mem::take(&mut self.has_room) {
            return Vec::new();
        }
        let mut waiting: Vec<(Refusal, PortPlan)> =
            std::mem::take(&mut self.plans).into_values().collect();
        waiting
            .sort_by(|(_, left), (_, right)| (&left.age, &left.key).cmp(&(&right.age, &right.key)));
        waiting
    }
}

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
        let coming = self.room.coming(refusal, &self.frontends, &transaction.dirty);
        // Rows or ranges in their grace period will do: removing a younger port would not be faster.
        if coming >= needed && self.room.is_giving(refusal) {
            return true;
        }
        let own = self.names.get(&plan.key).and_then(|id| self.ports.get(id));
        let own = own.map_or(0, |port| port.holds(refusal));
        // The youngest of all has no one to displace.
        if self.ports.are_older(&plan.age) && own == 0 {
            return false;
        }
        let mut younger = self.ports.younger(plan, refusal);
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

    /// Takes a port's room; it is refused from now on.
    fn send_away(
        &mut self,
        key: &PortKey,
        refusal: Refusal,
        now: Duration,
        transaction: &mut Transaction,
    ) {
        let id = self.names.get(key);
        let Some(plan) = id.and_then(|id| self.ports.get(id)).map(|port| port.plan.clone()) else {
            return;
        };
        self.remove(key, now, transaction);
        self.refused.insert(refusal, plan);
    }

    /// Tries the refused ports again, oldest first, if something became free. While one of them waits for room
    /// that is coming, those that are younger wait too.
    pub(super) fn retry(&mut self, now: Duration) -> Vec<Op> {
        let waiting = self.refused.take();
        if waiting.is_empty() {
            return Vec::new();
        }
        let mut transaction = Transaction::default();
        let mut waits = false;
        for (refusal, plan) in waiting {
            if waits {
                self.refused.plans.entry(plan.key.clone()).or_insert((refusal, plan));
            } else {
                waits = self.put(plan, now, &mut transaction) == Outcome::Waits;
            }
        }
        self.finish(now, transaction)
    }
}
