//! Many questions at once: each is repeated until all expected outcomes have occurred, or often enough to show that
//! they will not.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::conversation::once;
use super::{Ask, Failure};
use crate::join_all::locked;

/// The time without an answer that proves silence: a question with at least this timeout is not repeated.
const PROOF: Duration = Duration::from_secs(2);
/// The number of questions under way at a time: most of them wait.
const AT_ONCE: usize = 24;

/// One question of a survey.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inquiry {
    /// The question, asked through a new socket each time.
    pub ask: Ask,
    /// The number of different outcomes after which it is not repeated.
    pub outcomes: usize,
    /// The largest number of repetitions.
    pub times: u32,
}

/// One outcome of a question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Ending {
    /// A server answered, and saw a client with this address.
    Answered {
        server: String,
        /// The client address that the server saw.
        saw: IpAddr,
    },
    /// There was no answer.
    Failed(Failure),
}

/// The outcomes of a question, with their numbers.
pub type Endings = Vec<(Ending, u32)>;

/// Asks all questions, and returns the outcomes of each, in the same order.
pub(crate) fn survey(inquiries: &[Inquiry]) -> Vec<Endings> {
    let next = AtomicUsize::new(0);
    let found: Mutex<BTreeMap<usize, Endings>> = Mutex::default();
    let work = || {
        while let Some((index, inquiry)) = take(inquiries, &next) {
            let endings = inquire(inquiry);
            drop(locked(&found).insert(index, endings));
        }
    };
    thread::scope(|scope| {
        (0..AT_ONCE.min(inquiries.len())).for_each(|_| drop(scope.spawn(work)));
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

fn take<'a>(inquiries: &'a [Inquiry], next: &AtomicUsize) -> Option<(usize, &'a Inquiry)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    inquiries.get(index).map(|inquiry| (index, inquiry))
}

fn inquire(inquiry: &Inquiry) -> Endings {
    let mut endings: BTreeMap<Ending, u32> = BTreeMap::new();
    for _ in 0..inquiry.times {
        let ending = match once(&inquiry.ask) {
            Ok(answer) => Ending::Answered { server: answer.server, saw: answer.client.ip() },
            Err(failure) => Ending::Failed(failure),
        };
        let is_proof =
            inquiry.ask.patience() >= PROOF && ending == Ending::Failed(Failure::TimedOut);
        *endings.entry(ending).or_default() += 1;
        if is_proof || endings.len() >= inquiry.outcomes {
            break;
        }
    }
    endings.into_iter().collect()
}
