//! The store: one file, one revision, and a window of the last changes.
//!
//! A write is one transaction of objects, bookings and history. Transactions that wait at the same time share one
//! commit to disk. Reads return durable state only: a change is visible once it is on disk. A watch reads the window at
//! its own pace; if it falls out of the window it gets an error, so no writer ever waits for a reader.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, mpsc};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

mod file;
mod object;
mod state;
mod transaction;
mod writer;

pub use object::{Change, ChangeKind, Key, Object};
pub use state::Gone;
pub use transaction::Transaction;

use file::File;
use state::State;
use writer::{Job, Writer};

/// An error of the store's file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened.
    #[error("store {path}: {cause}\nremedy: {remedy}")]
    Open {
        /// Path of the file.
        path: String,
        /// The error of the database.
        cause: String,
        /// The action that helps, for the operator.
        remedy: &'static str,
    },
    /// The content of the file cannot be read.
    #[error("store: {0}")]
    Read(String),
    /// A change could not be written; none of it is kept.
    #[error("store: the change was not written: {0}")]
    Write(String),
    /// The writer thread has ended.
    #[error("store: closed")]
    Closed,
}

/// How much history is kept for watches: every change younger than `age`, and at least the last `changes`.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Number of changes that are kept in any case.
    pub changes: usize,
    /// Age up to which changes are kept.
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { changes: 100_000, age: Duration::from_mins(5) }
    }
}

/// The store. Clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    state: Arc<RwLock<State>>,
    jobs: mpsc::Sender<Job>,
    revision: watch::Receiver<u64>,
}

impl Store {
    /// Opens the file, or creates it, and starts the writer thread.
    pub fn open(path: &Path, retention: Retention) -> Result<Self, Error> {
        let file = File::open(path)?;
        let state = file.load()?;
        // Watchers wait on the revision and then read the state; the writer never waits for them.
        let (published, revision) = watch::channel(state.revision());
        let state = Arc::new(RwLock::new(state));
        let (jobs, queue) = mpsc::channel();
        let writer = Writer { file, state: Arc::clone(&state), published, retention };
        let thread = std::thread::Builder::new().name("store".into());
        let started = thread.spawn(move || writer.run(&queue));
        drop(started.map_err(|error| Error::Read(error.to_string()))?);
        Ok(Self { state, jobs, revision })
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        // A panic of another holder cannot leave the state half changed, so the poison is ignored.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a transaction. All its changes are stored, or none if `work` returns an error.
    pub async fn write<T: Send + 'static, E: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<Result<T, E>, Error> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |transaction| {
            let result = work(transaction);
            let is_kept = result.is_ok();
            let reply = move |written: Result<(), Error>| {
                // The client may have closed the connection.
                drop(reply.send(written.map(|()| result)));
            };
            (is_kept, Box::new(reply))
        });
        self.jobs.send(job).map_err(|_closed| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// Returns the revision of the last change.
    pub fn revision(&self) -> u64 {
        self.state().revision()
    }

    /// Returns a receiver that gets every new revision.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    /// Returns an object at the current revision; `None` if it does not exist.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.state().get(key)
    }

    /// Returns the objects of a resource in key order, of one namespace or all, with the revision of the list.
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> (u64, Vec<Arc<Object>>) {
        let state = self.state();
        (state.revision(), state.list(resource, namespace))
    }

    /// Returns the objects as they were at an earlier revision. Error: the window does not reach back that far.
    pub fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Object>>, Gone> {
        self.state().list_at(resource, namespace, revision)
    }

    /// Returns the current revision, and up to `most` changes of a resource after `after`.
    ///
    /// Fewer than `most` changes mean that there are no more.
    pub fn changes(
        &self,
        resource: &str,
        after: u64,
        most: usize,
    ) -> Result<(u64, Vec<Arc<Change>>), Gone> {
        let state = self.state();
        state.changes(resource, after, most).map(|it| (state.revision(), it))
    }
}

#[cfg(test)]
mod tests;
