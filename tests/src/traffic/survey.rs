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

/// How long silence must last to prove itself: a question that waited so long is not asked again.
const PROOF: Duration = Duration::from_secs(2);
/// Questions under way at a time: most of them wait.
const AT_ONCE: usize = 24;

/// One question of a survey.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inquiry {
    /// The question, asked through a new socket each time.
    pub ask: Ask,
    /// Different outcomes after which it need not be asked again.
    pub outcomes: usize,
    /// How often to ask at most.
    pub times: u32,
}

/// One way in which a question can end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Ending {
    /// A server answered, and saw a client of this address.
    Answered {
        server: String,
        /// Whom it saw.
        saw: IpAddr,
    },
    /// There was no answer.
    Failed(Failure),
}

/// How often a question ended how.
pub type Endings = Vec<(Ending, u32)>;

/// Asks all, and returns how each ended, in the same order.
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
