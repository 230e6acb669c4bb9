//! What the maps cannot say: names of services, conflicts, refusals. Written beside the pins (a bpffs
//! holds no files) for `status` and `lb list`, which do without when it is missing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lb_common::service::ServiceId;
use serde::{Deserialize, Serialize};
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{debug, warn};

use super::names::Names;
use crate::plan::PortKey;
use crate::program::Programmer;
use crate::show::words;
use crate::snapshot::{Stale, ViewHealth};

/// The names of 50,000 services are a few megabytes: not for every change.
const PAUSE: Duration = Duration::from_secs(1);

/// The file and what is in it.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    node: String,
    view: ViewHealth,
    changed: Option<Instant>,
    /// What was written of the view.
    stale: BTreeMap<String, String>,
    acceleration: BTreeMap<String, String>,
    /// What was written, without names, and which names.
    told: Known,
    naming: Option<u64>,
    names: Names,
    /// When everything that came was programmed last, and whether that is written.
    synced: Option<Timestamp>,
    is_synced_written: bool,
    writing: Option<JoinHandle<()>>,
}

/// What a run knew last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Known {
    /// Our node's name.
    pub node: String,
    /// The process.
    pub pid: u32,
    /// When this was written.
    pub written: String,
    /// Kinds of objects whose changes did not arrive, since when, and why.
    pub stale: BTreeMap<String, String>,
    /// Devices to the outside: nothing where XDP accelerates and sends, else why it does not.
    pub acceleration: BTreeMap<String, String>,
    /// Service ports by identity.
    pub names: BTreeMap<u32, String>,
    /// Service ports without room, and the map that is full.
    pub refused: BTreeMap<String, String>,
    /// Service ports some of whose entries a map did not take, and why.
    pub unwritten: BTreeMap<String, String>,
    /// Devices that were taken for those of pods, and may lead outside.
    pub doubtful: Vec<String>,
    /// Frontends several services ask for: the winner, then the others.
    pub conflicts: BTreeMap<String, Vec<String>>,
    /// What is wrong with the source itself: files that cannot be read, objects of no use.
    pub problems: Vec<String>,
}

/// Problems that are kept by name.
const NAMED: usize = 20;

/// Where a run over these pins keeps its state.
pub fn state_file(bpf_dir: &Path) -> PathBuf {
    let name: Vec<String> = bpf_dir
        .components()
        .filter_map(|part| match part {
            std::path::Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            std::path::Component::Prefix(_)
            | std::path::Component::RootDir
            | std::path::Component::CurDir
            | std::path::Component::ParentDir => None,
        })
        .collect();
    Path::new("/run/lb-agent").join(name.join("-")).join("state.json")
}

/// Where a run over these pins keeps the time of its last sync: beside the state, which is megabytes of names and not
/// for every change.
pub fn sync_file(bpf_dir: &Path) -> PathBuf {
    state_file(bpf_dir).with_file_name("synced")
}

/// When everything that had come was programmed last by a run over these pins.
pub(crate) fn last_sync(bpf_dir: &Path) -> Option<Timestamp> {
    fs::read_to_string(sync_file(bpf_dir)).ok()?.trim().parse().ok()
}

impl Known {
    /// What the last run over these pins knew; nothing when it left no file.
    pub fn read(bpf_dir: &Path) -> Self {
        let file = state_file(bpf_dir);
        let text = fs::read_to_string(&file).unwrap_or_default();
        let mut known: Self = serde_json::from_str(&text).unwrap_or_default();
        Names::beside(&file).read(&mut known.names);
        known
    }
}

impl State {
    pub(super) fn at(bpf_dir: &Path, node: &str, view: ViewHealth) -> Self {
        let (path, node) = (state_file(bpf_dir), node.to_owned());
        Self {
            names: Names::beside(&path),
            path,
            node,
            view,
            changed: None,
            stale: BTreeMap::new(),
            acceleration: BTreeMap::new(),
            told: Known::default(),
            naming: None,
            synced: None,
            is_synced_written: true,
            writing: None,
        }
    }

    pub(super) fn accelerates(&mut self, acceleration: BTreeMap<String, String>) {
        self.acceleration = acceleration;
        self.changed();
    }

    pub(super) fn changed(&mut self) {
        let _: &mut Instant = self.changed.get_or_insert_with(Instant::now);
    }

    /// Service ports have these names: to be told before they have rows.
    pub(super) fn name(&self, named: Vec<(ServiceId, PortKey)>) {
        if named.is_empty() {
            return;
        }
        let named: Vec<_> = named.into_iter().map(|(id, key)| (id, name(&key))).collect();
        if let Err(error) = self.names.add(&named) {
            debug!(path = %self.path.display(), %error, "new names wait for the state");
        }
    }

    /// Everything that came is programmed.
    pub(super) fn synced(&mut self) {
        (self.synced, self.is_synced_written) = (Some(Timestamp::now()), false);
    }

    /// Once a second: writes the time of the last sync, if that is another.
    pub(super) fn write_sync(&mut self) {
        let Some(synced) = self.synced.filter(|_| !self.is_synced_written) else { return };
        let file = self.path.with_file_name("synced");
        let folder = file.parent().unwrap_or_else(|| Path::new("/run"));
        let written =
            fs::create_dir_all(folder).and_then(|()| fs::write(&file, format!("{synced:.3}\n")));
        if let Err(error) = written {
            debug!(path = %file.display(), %error, "the time of the last sync is not kept");
        }
        self.is_synced_written = true;
    }

    /// Whether something changed, and long enough ago; at once when the view became old or fresh.
    pub(super) fn is_due(&self) -> bool {
        let is_free = self.writing.as_ref().is_none_or(JoinHandle::is_finished);
        let is_time = self.changed.is_some_and(|changed| changed.elapsed() >= PAUSE);
        is_free
            && (is_time || self.stale != self.staleness() || self.told.problems != self.problems())
    }

    fn problems(&self) -> Vec<String> {
        self.view.problems().iter().take(NAMED).map(ToString::to_string).collect()
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
        programmer: &Programmer,
        unwritten: Vec<(ServiceId, String)>,
        doubtful: &[String],
    ) {
        if let Some(write) = self.prepare(programmer, unwritten, doubtful) {
            self.writing = Some(spawn_blocking(write));
        }
    }

    /// The same, done when this returns.
    pub(super) fn write_now(
        &mut self,
        programmer: &Programmer,
        unwritten: Vec<(ServiceId, String)>,
        doubtful: &[String],
    ) {
        if let Some(write) = self.prepare(programmer, unwritten, doubtful) {
            write();
        }
    }

    fn prepare(
        &mut self,
        programmer: &Programmer,
        unwritten: Vec<(ServiceId, String)>,
        doubtful: &[String],
    ) -> Option<impl FnOnce() + use<>> {
        self.changed = None;
        self.stale = self.staleness();
        let of = |id| programmer.key(id).map_or_else(|| format!("service {id}"), name);
        let mut known = Known {
            unwritten: unwritten.into_iter().map(|(id, why)| (of(id), why)).collect(),
            doubtful: doubtful.to_vec(),
            node: self.node.clone(),
            pid: std::process::id(),
            stale: self.stale.clone(),
            acceleration: self.acceleration.clone(),
            problems: self.problems(),
            refused: programmer
                .refused()
                .map(|(key, refusal)| (name(key), refusal.map().to_owned()))
                .collect(),
            conflicts: programmer
                .conflicts()
                .iter()
                .map(|conflict| {
                    let keys = [&conflict.winner].into_iter().chain(&conflict.losers);
                    (words::frontend(&conflict.frontend), keys.map(name).collect())
                })
                .collect(),
            ..Known::default()
        };
        let naming = Some(programmer.naming());
        if self.naming == naming && self.told == known {
            return None;
        }
        (self.naming, self.told) = (naming, known.clone());
        let names: Vec<(ServiceId, PortKey)> =
            programmer.names().map(|(id, key)| (id, key.clone())).collect();
        let (path, journal) = (self.path.clone(), self.names.clone());
        journal.take();
        Some(move || {
            known.names = names.iter().map(|(id, key)| (*id, name(key))).collect();
            known.written = Timestamp::now().to_string();
            match replace(&path, &known) {
                Ok(()) => journal.forget(),
                Err(error) => {
                    warn!(path = %path.display(), %error, "names are not kept; lists show numbers");
                }
            }
        })
    }
}

fn replace(path: &Path, known: &Known) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("/run"));
    fs::create_dir_all(folder)?;
    let next = path.with_extension("next");
    fs::write(&next, serde_json::to_vec(known)?)?;
    fs::rename(next, path)
}

/// `namespace/name:port`, as people write it; the port without a name is not there.
pub(crate) fn name(key: &PortKey) -> String {
    match key.port.as_str() {
        "" => key.service.to_string(),
        port => format!("{}:{port}", key.service),
    }
}
