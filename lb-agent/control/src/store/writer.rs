//! The writer thread: runs waiting transactions in order, commits them together, and then makes the result visible.

use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::file::File;
use super::state::State;
use super::transaction::{Batch, Transaction};
use super::{Error, Retention};

/// A function that is called with the result of the commit.
pub(super) type Reply = Box<dyn FnOnce(Result<(), Error>) + Send>;
/// A transaction; returns whether its changes are to be stored, and the function to call after the commit.
pub(super) type Job = Box<dyn FnOnce(&mut Transaction<'_>) -> (bool, Reply) + Send>;

/// Largest number of transactions in one commit.
const TOGETHER: usize = 1_024;

pub(super) struct Writer {
    pub(super) file: File,
    pub(super) state: Arc<RwLock<State>>,
    pub(super) published: watch::Sender<u64>,
    pub(super) retention: Retention,
}

impl Writer {
    pub(super) fn run(self, queue: &mpsc::Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            let jobs = std::iter::once(first).chain(queue.try_iter().take(TOGETHER - 1));
            self.commit(jobs.collect());
        }
    }

    fn commit(&self, jobs: Vec<Job>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut batch = Batch::default();
        let mut replies = Vec::new();
        let forget = {
            // No other thread writes, so the state that is read here stays valid until the changes are applied below.
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            for job in jobs {
                let mut transaction = Transaction::new(&state, &batch, now);
                let (is_kept, reply) = job(&mut transaction);
                let own = transaction.finish();
                if is_kept {
                    batch.extend(own);
                }
                replies.push(reply);
            }
            let since = now.saturating_sub(self.retention.age.as_secs());
            state.forgettable(self.retention.changes, since)
        };
        let is_empty = batch.changes.is_empty() && batch.bookings.is_empty();
        let written = if is_empty { Ok(()) } else { self.file.write(&batch, forget) };
        if written.is_ok() && !is_empty {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            state.apply(&batch.changes, &batch.bookings);
            state.forget(forget);
            let revision = state.revision();
            drop(state);
            self.published.send_replace(revision);
        }
        for reply in replies {
            // The reply comes only after the commit: a client must not learn of a change that a crash could still undo.
            reply(written.clone());
        }
    }
}
