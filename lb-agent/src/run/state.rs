//! State that the maps cannot hold: names of services, conflicts, refusals. Written beside the pins (a bpffs
//! holds no files) for `status` and `lb list`, which do without when it is missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lb_common::service::ServiceId;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{debug, warn};

use crate::plan::PortKey;
use crate::reconcile::Reconciler;
use crate::snapshot::{Finding, Stale, ViewHealth};
use crate::state_file::{Journal, StateFile, state_file};
use crate::words;

/// The names of 50,000 services are a few megabytes: not for every change.
const PAUSE: Duration = Duration::from_secs(1);

/// The file and what is in it.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    node: String,
    view: ViewHealth,
    changed: Option<Instant>,
    /// The stale kinds that were written.
    stale: BTreeMap<String, String>,
    acceleration: BTreeMap<String, String>,
    /// The faults of objects: those that are kept by name, and the number of all.
    findings: (Vec<String>, usize),
    /// The faults of devices and attachments.
    of_node: Vec<String>,
    /// The last file that was written, without names, and its names.
    told: StateFile,
    naming: Option<u64>,
    names: Journal,
    /// When everything that came was programmed last, and whether that is written.
    synced: Option<Timestamp>,
    is_synced_written: bool,
    writing: Option<JoinHandle<()>>,
    written: Arc<Mutex<Written>>,
}

/// The result of writing the file. Locked while it is written, so that no older state overwrites a newer one.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    /// How many were begun; only the last of them counts.
    begun: u64,
    has_failed: bool,
}

/// Problems that are kept by name.
const NAMED: usize = 20;

impl State {
    pub(super) fn at(bpf_dir: &Path, node: &str, view: ViewHealth) -> Self {
        let (path, node) = (state_file(bpf_dir), node.to_owned());
        Self {
            names: Journal::beside(&path),
            path,
            node,
            view,
            changed: None,
            stale: BTreeMap::new(),
            acceleration: BTreeMap::new(),
            findings: (Vec::new(), 0),
            of_node: Vec::new(),
            told: StateFile::default(),
            naming: None,
            synced: None,
            is_synced_written: true,
            writing: None,
            written: Arc::default(),
        }
    }

    pub(super) fn accelerates(&mut self, acceleration: BTreeMap<String, String>) {
        self.acceleration = acceleration;
        self.changed();
    }

    /// These things are wrong with objects.
    pub(super) fn finds(&mut self, mut findings: impl Iterator<Item = impl ToString>) {
        let named: Vec<String> = findings.by_ref().take(NAMED).map(|it| it.to_string()).collect();
        let count = named.len() + findings.count();
        self.findings = (named, count);
    }

    /// These things are wrong with devices and attachments.
    pub(super) fn finds_on_node(&mut self, problems: Vec<String>) {
        self.of_node = problems;
    }

    /// The faults of the source itself.
    pub(super) fn of_source(&self) -> Vec<Finding> {
        self.view.problems()
    }

    pub(super) fn changed(&mut self) {
        self.changed.get_or_insert_with(Instant::now);
    }

    /// Service ports have these names: to be told before they have rows.
    pub(super) fn name(&self, named: Vec<(ServiceId, PortKey)>) {
        if named.is_empty() {
            return;
        }
        let named: Vec<_> = named.into_iter().map(|(id, key)| (id, key.to_string())).collect();
        if let Err(error) = self.names.add(&named) {
            debug!(path = %self.path.display(), %error, "names not saved yet: no state file");
        }
    }

    /// Everything that came is programmed.
    pub(super) fn synced(&mut self) {
        (self.synced, self.is_synced_written) = (Some(Timestamp::now()), false);
    }

    /// Once a second: writes the time of the last sync, if that is another or its file is gone.
    pub(super) fn write_sync(&mut self) {
        let file = self.path.with_file_name("synced");
        let is_due = !self.is_synced_written || !file.exists();
        let Some(synced) = self.synced.filter(|_| is_due) else { return };
        let directory = file.parent().unwrap_or_else(|| Path::new("/run"));
        let written =
            fs::create_dir_all(directory).and_then(|()| fs::write(&file, format!("{synced:.3}\n")));
        if let Err(error) = &written {
            debug!(path = %file.display(), %error, "time of the last sync not saved yet");
        }
        self.is_synced_written = written.is_ok();
    }

    /// Whether something changed, and long enough ago, or somebody removed the file; at once when the view became old
    /// or fresh.
    pub(super) fn is_due(&mut self) -> bool {
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return false;
        }
        if lock(&self.written).has_failed || !self.path.exists() {
            self.changed();
        }
        let is_time = self.changed.is_some_and(|changed| changed.elapsed() >= PAUSE);
        is_time || self.stale != self.staleness() || self.told.problems != self.problems()
    }

    fn problems(&self) -> Vec<String> {
        let (of_source, (of_objects, count)) = (self.view.problems(), &self.findings);
        let of_source_count = of_source.len();
        let of_source = of_source.iter().map(ToString::to_string);
        let all = self.of_node.iter().cloned().chain(of_source).chain(of_objects.iter().cloned());
        let known = self.of_node.len() + of_source_count + count;
        let mut named: Vec<String> = all.take(NAMED).collect();
        match known.saturating_sub(named.len()) {
            0 => {}
            more => named.push(format!("{more} more; the log names all of them")),
        }
        named
    }

    /// How many kinds of objects are not followed at the moment.
    pub(super) fn stale_kinds(&self) -> usize {
        self.view.kinds().values().filter(|view| view.stale.is_some()).count()
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

    /// Writes what differs from what was written last, in a thread of its own: names of 50,000 services take
    /// longer than a change may.
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

    /// The same, done when this returns.
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
        let mut known = StateFile {
            unwritten: unwritten.into_iter().map(|(id, why)| (of(id), why)).collect(),
            ambiguous: ambiguous.to_vec(),
            node: self.node.clone(),
            pid: std::process::id(),
            stale: self.stale.clone(),
            acceleration: self.acceleration.clone(),
            problems: self.problems(),
            refused: reconciler
                .refused()
                .map(|(key, refusal)| (key.to_string(), refusal.map().to_owned()))
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
        let is_told = self.naming == naming && self.told == known && self.path.exists();
        if is_told && !before.has_failed {
            return None;
        }
        before.begun += 1;
        let number = before.begun;
        (self.naming, self.told) = (naming, known.clone());
        let names: Vec<(ServiceId, PortKey)> =
            reconciler.names().map(|(id, key)| (id, key.clone())).collect();
        let (path, journal) = (self.path.clone(), self.names.clone());
        if let Err(error) = journal.take() {
            debug!(path = %path.display(), %error, "names stay in the journal");
        }
        drop(before);
        Some(move || {
            let mut written = lock(&written);
            if written.begun != number {
                // A newer one was written meanwhile, or waits for this one.
                return;
            }
            known.names = names.iter().map(|(id, key)| (*id, key.to_string())).collect();
            known.written = Timestamp::now().to_string();
            let result = known.replace(&path);
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
