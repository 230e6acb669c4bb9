//! The summary of a run: equal packets, skipped packets, verdicts and events.

use std::collections::BTreeMap;

use lb_common::event::{Event, Verdict};

use crate::differential::Outcome;

/// The counts of a run.
#[derive(Debug, Default)]
pub struct Summary {
    /// Packets whose verdict, bytes and state were equal.
    pub equal: u64,
    /// Packets the kernel runs no program on.
    pub skipped: u64,
    /// How often each verdict was given, over all hooks, by its index.
    verdicts: BTreeMap<u32, u64>,
    events: BTreeMap<Event, u64>,
}

impl Summary {
    /// How often each verdict was given, those that were never given too.
    pub fn verdicts(&self) -> impl Iterator<Item = (Verdict, u64)> {
        let count = |verdict: Verdict| self.verdicts.get(&verdict.index()).copied().unwrap_or(0);
        Verdict::all().map(move |verdict| (verdict, count(verdict)))
    }

    /// How often each event was counted, those that were never counted too.
    pub fn events(&self) -> impl Iterator<Item = (Event, u64)> {
        let count = |event: Event| (event, self.events.get(&event).copied().unwrap_or(0));
        Event::ALL.iter().copied().map(count)
    }

    /// Counts what came of a batch.
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
