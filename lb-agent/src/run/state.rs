//! State that the maps cannot hold: names of services, conflicts, refusals. It is written beside the pins (a bpffs
//! cannot contain files) for `status` and the lists, which also work without it.

mod problems;
mod sync_time;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lb_common::service::ServiceId;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{debug, warn};

use self::problems::Problems;
use self::sync_time::SyncTime;
use crate::plan::PortKey;
use crate::reconcile::Reconciler;
use crate::snapshot::{Finding, KindView, ObjectKind, Stale, ViewHealth};
use crate::state_file::{Journal, StateFile, state_file};
use crate::words;

/// Shortest interval between writes: the names of 50,000 services are a few megabytes.
const PAUSE: Duration = Duration::from_secs(1);

/// The content of the state file, and what was written last.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    node: String,
    view: ViewHealth,
    changed: Option<Instant>,
    /// The stale kinds that were written last.
    stale: BTreeMap<String, String>,
    acceleration: BTreeMap<String, String>,
    problems: Problems,
    /// The content that was written last, without names; then the version of the names.
    last: StateFile,
    naming: Option<u64>,
    names: Journal,
    sync_time: SyncTime,
    writing: Option<JoinHandle<()>>,
    written: Arc<Mutex<Written>>,
}

/// The result of writing the file. It is locked during a write, so that no older state overwrites a newer one.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    /// Number of writes that were begun; only the last one counts.
    begun: u64,
    has_failed: bool,
}

impl State {
    pub(super) fn at(bpf_dir: &Path, node: &str, view: ViewHealth) -> Self {
        let (path, node) = (state_file(bpf_dir), node.to_owned());
        Self {
            names: Journal::next_to(&path),
            path,
            node,
            view,
            changed: None,
            stale: BTreeMap::new(),
            acceleration: BTreeMap::new(),
            problems: Problems::default(),
            last: StateFile::default(),
            naming: None,
            sync_time: SyncTime::unknown(),
            writing: None,
            written: Arc::default(),
        }
    }

    pub(super) fn set_acceleration(&mut self, acceleration: BTreeMap<String, String>) {
        self.acceleration = acceleration;
        self.changed();
    }

    /// Sets the faults of objects.
    pub(super) fn set_findings(&mut self, findings: impl Iterator<Item = impl ToString>) {
        self.problems.set_findings(findings);
    }

    /// Sets the faults of interfaces and attachments.
    pub(super) fn set_node_problems(&mut self, problems: Vec<String>) {
        self.problems.set_of_node(problems);
    }

    /// Returns the faults of the source itself.
    pub(super) fn of_source(&self) -> Vec<Finding> {
        self.view.problems()
    }

    pub(super) fn changed(&mut self) {
        self.changed.get_or_insert_with(Instant::now);
    }

    /// Writes names of service ports to the journal. Call it before their rows are written.
    pub(super) fn record_names(&self, named: Vec<(ServiceId, PortKey)>) {
        if named.is_empty() {
            return;
        }
        let named: Vec<_> = named.into_iter().map(|(id, key)| (id, key.to_string())).collect();
        if let Err(error) = self.names.add(&named) {
            debug!(path = %self.path.display(), %error, "names not saved yet: no state file");
        }
    }

    /// Records that everything that arrived is programmed.
    pub(super) fn synced(&mut self) {
        self.sync_time.set_now();
    }

    /// Writes the time of the last sync if it changed or its file is missing. Call it once a second.
    pub(super) fn write_sync(&mut self) {
        self.sync_time.write(&self.path.with_file_name("synced"));
    }

    /// Reports whether the file should be written: something changed more than a second ago, or the file is missing. A
    /// kind that became stale or fresh, or another list of problems, is due at once.
    pub(super) fn is_due(&mut self) -> bool {
        // One write at a time.
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return false;
        }
        if lock(&self.written).has_failed || !self.path.exists() {
            self.changed();
        }
        let is_time = self.changed.is_some_and(|changed| changed.elapsed() >= PAUSE);
        is_time || self.stale != self.staleness() || self.last.problems != self.problem_texts()
    }

    /// Returns the number of kinds of objects whose watch fails at the moment.
    pub(super) fn stale_kinds(&self) -> usize {
        self.view.kinds().values().filter(|view| view.stale.is_some()).count()
    }

    /// Returns the last failure to read objects of a kind; `None` if a list of them was read, or no attempt has failed.
    pub(super) fn unread(&self, kind: ObjectKind) -> Option<String> {
        let KindView { synced, stale } = self.view.kinds().remove(&kind)?;
        stale.filter(|_| !synced).map(|stale| stale.reason)
    }

    fn problem_texts(&self) -> Vec<String> {
        self.problems.texts(&self.view.problems())
    }

    fn staleness(&self) -> BTreeMap<String, String> {
        let kinds = self.view.kinds().into_iter();
        let stale = kinds.filter_map(|(kind, view)| Some((kind, view.stale?)));
        stale
            .map(|(kind, Stale { since, reason })| {
                (kind.resource().to_owned(), format!("since {since:.0}: {reason}"))
            })
            .collect()
    }

    /// Writes the state if it changed, in a thread of its own: the names of 50,000 services take longer than a turn of
    /// the loop may.
    pub(super) fn write(
        &mut self,
        reconciler: &Reconciler,
        unwritten: Vec<(ServiceId, String)>,
        ambiguous: &[String],
    ) {
        if let Some(write) = self.prepare(reconciler, unwritten, ambiguous) {
            self.writing = Some(spawn_blocking(write));
        }
    }

    /// Writes the state if it changed, before it returns.
    pub(super) fn write_now(
        &mut self,
        reconciler: &Reconciler,
        unwritten: Vec<(ServiceId, String)>,
        ambiguous: &[String],
    ) {
        if let Some(write) = self.prepare(reconciler, unwritten, ambiguous) {
            write();
        }
    }

    fn prepare(
        &mut self,
        reconciler: &Reconciler,
        unwritten: Vec<(ServiceId, String)>,
        ambiguous: &[String],
    ) -> Option<impl FnOnce() + use<>> {
        self.changed = None;
        self.stale = self.staleness();
        let of =
            |id| reconciler.key(id).map_or_else(|| format!("service {id}"), ToString::to_string);
        let mut state = StateFile {
            unwritten: unwritten.into_iter().map(|(id, why)| (of(id), why)).collect(),
            ambiguous: ambiguous.to_vec(),
            node: self.node.clone(),
            pid: std::process::id(),
            stale: self.stale.clone(),
            acceleration: self.acceleration.clone(),
            problems: self.problem_texts(),
            refused: reconciler
                .refused()
                .map(|(key, full)| (key.to_string(), full.name().to_owned()))
                .collect(),
            conflicts: reconciler
                .conflicts()
                .iter()
                .map(|conflict| {
                    let keys = [&conflict.winner].into_iter().chain(&conflict.losers);
                    (words::frontend(&conflict.frontend), keys.map(ToString::to_string).collect())
                })
                .collect(),
            ..StateFile::default()
        };
        let naming = Some(reconciler.naming());
        let written = Arc::clone(&self.written);
        let mut before = lock(&written);
        // The names are compared by the count of changes, as there may be very many.
        let is_written = self.naming == naming && self.last == state && self.path.exists();
        if is_written && !before.has_failed {
            return None;
        }
        // The file is written by another thread; the number lets the newest state win.
        before.begun += 1;
        let number = before.begun;
        (self.naming, self.last) = (naming, state.clone());
        // The names are copied here; the writing thread turns them into texts, which takes longer.
        let names: Vec<(ServiceId, PortKey)> =
            reconciler.names().map(|(id, key)| (id, key.clone())).collect();
        let (path, journal) = (self.path.clone(), self.names.clone());
        // An older write that ended now would forget the names that are moved aside here. The lock, which is still
        // held, keeps it out.
        if let Err(error) = journal.take() {
            debug!(path = %path.display(), %error, "names stay in the journal");
        }
        drop(before);
        Some(move || {
            let mut written = lock(&written);
            if written.begun != number {
                // A newer state was written meanwhile, or waits for the lock.
                return;
            }
            state.names = names.iter().map(|(id, key)| (*id, key.to_string())).collect();
            state.written = Timestamp::now().to_string();
            let result = state.replace(&path);
            match &result {
                Ok(()) => journal.forget(),
                Err(error) if !written.has_failed => {
                    warn!(path = %path.display(), %error, "names not saved yet; lists show numbers instead");
                }
                Err(_) => {}
            }
            written.has_failed = result.is_err();
        })
    }
}

fn lock(written: &Mutex<Written>) -> MutexGuard<'_, Written> {
    written.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
