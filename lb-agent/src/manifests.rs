//! Follows a directory of ordinary Service, `EndpointSlice`, Node and `ServiceCIDR` manifests. It sends the same
//! [`Event`]s as an API server would, for test rigs and demos without Kubernetes.
//!
//! A file that cannot be read keeps its last valid content, and is reported with line and column. Content behind a
//! symbolic link is read again when the link changes, not when its target changes.

mod directory;
mod notify;
mod parse;

use std::convert::Infallible;
use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

use self::directory::Directory;
use self::notify::{ChangedFiles, Notify};
use crate::snapshot::{Event, ObjectKind, ViewHealth};

/// A directory to follow.
#[derive(Debug)]
pub struct Manifests {
    directory: Directory,
    notify: Notify,
}

/// The reason why a directory cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum ManifestsError {
    /// The path does not exist or is not a directory.
    #[error("manifests {}: {source}; give an existing directory to --manifests", directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    /// The kernel cannot report changes of the directory.
    #[error(
        "manifests {}: no change notification: {source}; raise fs.inotify.max_user_instances \
         and max_user_watches", directory.display()
    )]
    Notification { directory: PathBuf, source: io::Error },
}

/// Interval of the checks whether a directory that vanished is back.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Manifests {
    /// Opens the directory, for the node of this name, without reading it. Must be called inside a tokio runtime.
    pub fn open(directory: &Path, node: &str) -> Result<Self, ManifestsError> {
        let directory = directory.to_owned();
        let wrong = |source| ManifestsError::Directory { directory: directory.clone(), source };
        // The directory is read first, because the error of inotify does not say that it is missing.
        drop(std::fs::read_dir(&directory).map_err(wrong)?);
        let notify = Notify::open(&directory);
        let notify = notify.map_err(|source| ManifestsError::Notification {
            directory: directory.clone(),
            source,
        })?;
        Ok(Self { directory: Directory::new(directory, node), notify })
    }

    /// Follows the directory until the receiver of the events is dropped.
    pub async fn run(self, view: ViewHealth, events: Sender<Event>) {
        let listener = events.clone();
        // As long as nothing changes nothing is sent, so no send would notice that the receiver is gone.
        tokio::select! {
            Err(Gone) = self.follow(&view, &events) => {}
            () = listener.closed() => {}
        }
    }

    async fn follow(
        mut self,
        view: &ViewHealth,
        events: &Sender<Event>,
    ) -> Result<Infallible, Gone> {
        for kind in ObjectKind::ALL {
            send(events, Event::ListBegan(kind)).await?;
        }
        self = self.read(ChangedFiles::All, view, events).await?;
        for kind in ObjectKind::ALL {
            // Only a complete read may end the lists: an object that is missing at that point counts as deleted.
            view.synced(kind);
            send(events, Event::Synced(kind)).await?;
        }
        loop {
            let changes = match self.notify.changes().await {
                Ok(changes) => changes,
                Err(error) => self.reopened(&error, view).await,
            };
            self = self.read(changes, view, events).await?;
        }
    }

    /// Reads what changed, and sends it. While the directory cannot be read, the read is repeated.
    async fn read(
        mut self,
        mut changes: ChangedFiles,
        view: &ViewHealth,
        events: &Sender<Event>,
    ) -> Result<Self, Gone> {
        let found = loop {
            let (this, found) = self.found(changes, view).await?;
            self = this;
            match found {
                Ok(found) => break found,
                Err(error) => changes = self.reopened(&error, view).await,
            }
        };
        for kind in ObjectKind::ALL {
            view.fresh(kind);
        }
        for event in found {
            send(events, event).await?;
        }
        Ok(self)
    }

    /// Returns what changed, read in a thread for blocking calls.
    async fn found(
        mut self,
        changes: ChangedFiles,
        view: &ViewHealth,
    ) -> Result<(Self, io::Result<Vec<Event>>), Gone> {
        let view = view.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let found = self.directory.read(changes, &view);
            (self, found)
        });
        reading.await.map_err(|error| {
            // A panic of the reader must not look like the end of the runtime.
            if error.is_panic() {
                resume_unwind(error.into_panic());
            }
            Gone
        })
    }

    /// Waits until the directory is back. Its last content stays in effect meanwhile.
    async fn reopened(&mut self, error: &io::Error, view: &ViewHealth) -> ChangedFiles {
        let mut reason = format!("manifests {}: {error}", self.directory.path().display());
        loop {
            for kind in ObjectKind::ALL {
                view.stale(kind, &reason);
            }
            sleep(LOOK_AGAIN).await;
            match Notify::open(self.directory.path()) {
                Ok(notify) => {
                    self.notify = notify;
                    break;
                }
                Err(error) => {
                    reason = format!("manifests {}: {error}", self.directory.path().display());
                }
            }
        }
        ChangedFiles::All
    }
}

/// The receiver of the events is dropped.
#[derive(Debug)]
struct Gone;

async fn send(events: &Sender<Event>, event: Event) -> Result<(), Gone> {
    events.send(event).await.map_err(|_closed| Gone)
}

#[cfg(test)]
mod tests;
