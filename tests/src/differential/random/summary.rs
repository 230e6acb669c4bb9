//! The summary of a run: equal packets, skipped packets, verdicts and events.

use std::collections::BTreeMap;

use lb_common::event::{Event, Verdict};

use crate::differential::Outcome;

/// The numbers of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// Packets with equal verdict, bytes and state.
    pub equal: u64,
    /// Packets on which the kernel runs no program.
    pub skipped: u64,
    /// The number of packets with each verdict, over all hooks, by the index of the verdict.
    verdicts: BTreeMap<u32, u64>,
    events: BTreeMap<Event, u64>,
}

impl Summary {
    /// The number of packets with each verdict, including verdicts that never occurred.
    pub fn verdicts(&self) -> impl Iterator<Item = (Verdict, u64)> {
        let count = |verdict: Verdict| self.verdicts.get(&verdict.index()).copied().unwrap_or(0);
        Verdict::all().map(move |verdict| (verdict, count(verdict)))
    }

    /// The number of each event, including events that never occurred.
    pub fn events(&self) -> impl Iterator<Item = (Event, u64)> {
        let count = |event: Event| (event, self.events.get(&event).copied().unwrap_or(0));
        Event::ALL.iter().copied().map(count)
    }

    /// Adds the outcome of a batch.
    pub(super) fn add(&mut self, outcome: &Outcome) {
        for (event, count) in &outcome.events {
            *self.events.entry(*event).or_default() += count;
        }
        for ended in &outcome.verdicts {
            if let Some((_, verdict)) = ended {
                self.equal += 1;
                *self.verdicts.entry(verdict.index()).or_default() += 1;
            } else {
                self.skipped += 1;
            }
        }
    }
}
