//! Continuous questions on a background thread, and the account of their outcomes.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::background::Background;
use super::conversation::{Conversation, once, open};
use super::{Answer, Ask, Failure};
use crate::join_all::locked;
use crate::wait::pass;

/// The number of failures whose time is kept.
const NAMED: usize = 5;

/// The number of answers by each server, and the number of failures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// The number of answers by server.
    pub servers: BTreeMap<String, u64>,
    pub failures: BTreeMap<String, u64>,
    /// The number of failures since the last answer.
    pub lost_lately: u64,
    /// The largest number of failures between two answers.
    pub lost_in_a_row: u64,
    /// The times at which the first failures were seen: a timeout is seen long after the question.
    pub lost_at: Vec<String>,
    /// The longest wait for an answer, in milliseconds.
    pub slowest: u64,
}

impl Tally {
    /// Returns the number of answers.
    pub fn answered(&self) -> u64 {
        self.servers.values().sum()
    }

    /// Returns the number of questions without an answer.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Counts an outcome, which was awaited for `took`.
    pub(super) fn count_timed(&mut self, outcome: Result<Answer, Failure>, took: Duration) {
        if outcome.is_ok() {
            self.slowest = self.slowest.max(took.as_millis() as u64);
        }
        self.count(outcome);
    }

    pub(super) fn count(&mut self, outcome: Result<Answer, Failure>) {
        if outcome.is_err() && self.lost_at.len() < NAMED {
            self.lost_at.push(Timestamp::now().to_string());
        }
        self.lost_lately = if outcome.is_ok() { 0 } else { self.lost_lately + 1 };
        self.lost_in_a_row = self.lost_in_a_row.max(self.lost_lately);
        let slot = match outcome {
            Ok(answer) => self.servers.entry(answer.server),
            Err(failure) => self.failures.entry(failure.to_string()),
        };
        *slot.or_default() += 1;
    }
}

/// A thread that asks until it is stopped.
#[derive(Debug)]
pub(crate) struct Stream(Background<Tally>);

impl Stream {
    /// Starts asking every `pause`: through one socket for all questions (`kept`), or through a new one for each.
    pub(crate) fn start(ask: Ask, kept: bool, pause: Duration) -> Self {
        let work = move |stop: &_, tally: &_| stream(&ask, kept, pause, stop, tally);
        Self(Background::start(Tally::default(), work))
    }

    /// A copy of the account so far.
    pub(crate) fn so_far(&self) -> Tally {
        self.0.so_far()
    }

    /// Stops the thread and returns the account.
    pub(crate) fn finish(self) -> Tally {
        self.0.finish()
    }
}

fn stream(ask: &Ask, kept: bool, pause: Duration, stop: &AtomicBool, tally: &Mutex<Tally>) {
    let mut conversation: Option<Conversation> = None;
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let outcome = if kept { ask_kept(&mut conversation, ask) } else { once(ask) };
        locked(tally).count_timed(outcome, began.elapsed());
        pass(pause);
    }
}

/// Asks through the existing socket; after a failure, which counts, the next question opens a new one.
fn ask_kept(conversation: &mut Option<Conversation>, ask: &Ask) -> Result<Answer, Failure> {
    let mut current = match conversation.take() {
        Some(current) => current,
        None => open(ask)?,
    };
    let answer = current.ask(ask)?;
    *conversation = Some(current);
    Ok(answer)
}
