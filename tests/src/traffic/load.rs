//! Questions without pause on a thread of their own, and the account of how they went.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::ask::{Answer, Ask, Conversation, Failure, once, open};

/// How many questions were answered by whom, and how many were not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Answers by server.
    pub servers: BTreeMap<String, u64>,
    /// Failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// The longest time from one answer to the next.
    pub longest_gap_milliseconds: u64,
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

    pub(super) fn count(&mut self, outcome: Result<Answer, Failure>) {
        let slot = match outcome {
            Ok(answer) => self.servers.entry(answer.server),
            Err(failure) => self.failures.entry(failure.to_string()),
        };
        *slot.or_default() += 1;
    }
}

/// A thread that asks until it is told to stop.
#[derive(Debug)]
pub(crate) struct Stream {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Tally>,
}

impl Stream {
    /// Starts asking every `pause`: through one socket for all (`kept`), or through a new one each time.
    pub(crate) fn start(ask: Ask, kept: bool, pause: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || stream(&ask, kept, pause, &flag));
        Self { stop, thread }
    }

    /// Ends it and returns the account.
    pub(crate) fn finish(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn stream(ask: &Ask, kept: bool, pause: Duration, stop: &AtomicBool) -> Tally {
    let mut tally = Tally::default();
    let mut conversation: Option<Conversation> = None;
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let outcome = if kept { ask_kept(&mut conversation, ask) } else { once(ask) };
        if outcome.is_ok() {
            let gap = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
            tally.longest_gap_milliseconds = tally.longest_gap_milliseconds.max(gap);
            last = Instant::now();
        }
        tally.count(outcome);
        thread::park_timeout(pause);
    }
    tally
}

/// Asks through the socket that there is; a failed one is replaced, and the failure counts.
fn ask_kept(conversation: &mut Option<Conversation>, ask: &Ask) -> Result<Answer, Failure> {
    let mut current = match conversation.take() {
        Some(current) => current,
        None => open(ask)?,
    };
    let answer = current.ask(ask)?;
    *conversation = Some(current);
    Ok(answer)
}
