//! The state file: what a run knew last, for `status` and the lists.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

mod journal;

pub(crate) use journal::Journal;

/// The last state of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateFile {
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
    pub ambiguous: Vec<String>,
    /// Frontends several services ask for: the winner, then the others.
    pub conflicts: BTreeMap<String, Vec<String>>,
    /// The faults of the source (files that cannot be read, objects of no use), of our Node and of Services.
    pub problems: Vec<String>,
}

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

/// Where a run over these pins notes what the loopback device was like before.
pub fn loopback_file(bpf_dir: &Path) -> PathBuf {
    state_file(bpf_dir).with_file_name("loopback.json")
}

/// When everything that had come was programmed last by a run over these pins.
pub(crate) fn last_sync(bpf_dir: &Path) -> Option<Timestamp> {
    fs::read_to_string(sync_file(bpf_dir)).ok()?.trim().parse().ok()
}

impl StateFile {
    /// Reads the last state of the last run over these pins; an empty one when it left no file.
    pub fn read(bpf_dir: &Path) -> Self {
        Self::read_file(&state_file(bpf_dir))
    }

    fn read_file(file: &Path) -> Self {
        let added = Journal::beside(file).read();
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut known: Self = serde_json::from_str(&text).unwrap_or_default();
        known.names.extend(added);
        known
    }

    /// Puts this in the place of what a file holds.
    pub(crate) fn replace(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().unwrap_or_else(|| Path::new("/run"));
        fs::create_dir_all(directory)?;
        let next = path.with_extension("next");
        fs::write(&next, serde_json::to_vec(self)?)?;
        fs::rename(next, path)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// Enough for a hundred failures of a reader that takes the state before the journal.
    const ROUNDS: u32 = 2_000;

    #[test]
    fn a_reader_misses_no_name_while_the_state_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state.json");
        let added = AtomicU32::new(0);
        let write = || {
            let journal = Journal::beside(&file);
            let mut state = StateFile::default();
            for id in 1..=ROUNDS {
                let name = format!("default/late-{id}");
                journal.add(&[(id, name.clone())]).unwrap();
                added.store(id, Ordering::Release);
                journal.take().unwrap();
                state.names.insert(id, name);
                state.replace(&file).unwrap();
                journal.forget();
            }
        };
        thread::scope(|scope| {
            let writer = scope.spawn(write);
            while !writer.is_finished() {
                let last = added.load(Ordering::Acquire);
                let known = StateFile::read_file(&file);
                assert!(last == 0 || known.names.contains_key(&last), "{last} has no name");
            }
        });
    }
}
