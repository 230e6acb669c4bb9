//! The store: one file, one revision, and a window of the last changes.
//!
//! A write is one transaction of objects, bookings and history; those that wait together share one commit to disk.
//! Reads return what is on disk: a change is seen once it is durable. Watches read the window at their own pace; who
//! falls out of it is told so, and no writer ever waits for a reader.

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

/// A fault of the file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened.
    #[error("store {path}: {cause}\nremedy: {remedy}")]
    Open {
        /// Where it is.
        path: String,
        /// In the words of who tried.
        cause: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The contents of the file cannot be read.
    #[error("store: {0}")]
    Read(String),
    /// A change could not be written; nothing of it is kept.
    #[error("store: the change was not written: {0}")]
    Write(String),
    /// The writer has ended.
    #[error("store: closed")]
    Closed,
}

/// How much of the past is kept for watches: what is younger than `age`, and the last `changes`.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// So many changes at least.
    pub changes: usize,
    /// Changes of so long ago at least.
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { changes: 100_000, age: Duration::from_mins(5) }
    }
}

/// The store; clones are the same one.
#[derive(Clone, Debug)]
pub struct Store {
    state: Arc<RwLock<State>>,
    jobs: mpsc::Sender<Job>,
    revision: watch::Receiver<u64>,
}

impl Store {
    /// Opens the file, or makes it, and starts its writer.
    pub fn open(path: &Path, retention: Retention) -> Result<Self, Error> {
        let file = File::open(path)?;
        let state = file.load()?;
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
        // Nothing that holds it leaves it half changed.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a transaction: all of what it changes is kept, or none where it fails.
    pub async fn write<T: Send + 'static, E: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<Result<T, E>, Error> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |transaction| {
            let result = work(transaction);
            let is_kept = result.is_ok();
            let reply = move |written: Result<(), Error>| {
                // The client may have gone.
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

    /// Returns a receiver that is told of every new revision.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    /// Returns one object.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.state().get(key)
    }

    /// Returns the objects of a resource, of one namespace or all, in order, with the revision that they are of.
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> (u64, Vec<Arc<Object>>) {
        let state = self.state();
        (state.revision(), state.list(resource, namespace))
    }

    /// Returns the objects as they were at an earlier revision.
    pub fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Vec<Arc<Object>>, Gone> {
        self.state().list_at(resource, namespace, revision)
    }

    /// Returns the revision that is now, and up to `most` changes of a resource after another one.
    ///
    /// Fewer than `most` are all that there are.
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
