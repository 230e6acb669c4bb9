//! The state file: the last state of a run, for `status` and the lists.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
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
    /// Process id of the agent.
    pub pid: u32,
    /// Time of writing, in RFC 3339.
    pub written: String,
    /// Kinds of objects whose changes do not arrive, with the time since when and the reason.
    pub stale: BTreeMap<String, String>,
    /// State of XDP by external interface: empty if it is attached and redirects, else the reason why not.
    pub acceleration: BTreeMap<String, String>,
    /// Names of service ports by service id.
    pub names: BTreeMap<u32, String>,
    /// Service ports without room, with the map that is full.
    pub refused: BTreeMap<String, String>,
    /// Service ports for which a map refused entries, with the reason.
    pub unwritten: BTreeMap<String, String>,
    /// Interfaces that are treated as those of pods, but may be external.
    pub ambiguous: Vec<String>,
    /// Frontends that several Services claim: the winner, then the others.
    pub conflicts: BTreeMap<String, Vec<String>>,
    /// Faults of the source (unreadable files, unsupported objects), of the Node and of Services.
    pub problems: Vec<String>,
}

/// The name of the file with the time of the last sync.
const SYNCED: &str = "synced";

/// Returns the path of the state file for a `--bpf-dir`.
pub fn state_file(bpf_dir: &Path) -> PathBuf {
    let name: Vec<String> = bpf_dir
        .components()
        .filter_map(|part| match part {
            // The path becomes one name, so that agents with different `--bpf-dir` do not share a file.
            std::path::Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            std::path::Component::Prefix(_)
            | std::path::Component::RootDir
            | std::path::Component::CurDir
            | std::path::Component::ParentDir => None,
        })
        .collect();
    Path::new("/run/lb-agent").join(name.join("-")).join("state.json")
}

/// Returns the path of the file with the time of the last sync. It is separate from the state, whose megabytes of names
/// are not written at every change.
pub fn sync_file(bpf_dir: &Path) -> PathBuf {
    state_file(bpf_dir).with_file_name(SYNCED)
}

/// Returns the path of the file with the earlier settings of the loopback interface.
pub fn loopback_file(bpf_dir: &Path) -> PathBuf {
    state_file(bpf_dir).with_file_name("loopback.json")
}

/// Returns the path of the file with the earlier timeouts of netfilter's connections.
pub fn conntrack_file(bpf_dir: &Path) -> PathBuf {
    state_file(bpf_dir).with_file_name("conntrack.json")
}

/// Removes the files of earlier runs with this `--bpf-dir`, also those that a killed run left. Returns the removed
/// ones.
///
/// The earlier settings of the network namespace are no such files: they must be restored before they may be forgotten.
pub fn remove(bpf_dir: &Path) -> Vec<PathBuf> {
    remove_around(&state_file(bpf_dir))
}

fn remove_around(state: &Path) -> Vec<PathBuf> {
    let journal = Journal::next_to(state);
    let others = [next(state), state.with_file_name(SYNCED)];
    let files = [state].into_iter().chain(others.iter().map(PathBuf::as_path));
    let removed = files.chain(journal.files()).filter(|file| fs::remove_file(file).is_ok());
    let removed = removed.map(Path::to_owned).collect();
    // The directory stays if other files are in it.
    drop(state.parent().map(fs::remove_dir));
    removed
}

/// Returns the path of the state that is being written.
fn next(state: &Path) -> PathBuf {
    state.with_extension("next")
}

/// Returns the last time when a run with this `--bpf-dir` had programmed everything.
pub(crate) fn last_sync(bpf_dir: &Path) -> Option<Timestamp> {
    fs::read_to_string(sync_file(bpf_dir)).ok()?.trim().parse().ok()
}

impl StateFile {
    /// Reads the last state of a run with this `--bpf-dir`; an empty one if there is no file.
    pub fn read(bpf_dir: &Path) -> Self {
        Self::read_file(&state_file(bpf_dir))
    }

    fn read_file(file: &Path) -> Self {
        let added = Journal::next_to(file).read();
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut state: Self = serde_json::from_str(&text).unwrap_or_default();
        state.names.extend(added);
        state
    }

    /// Replaces the content of a file, atomically.
    pub(crate) fn replace(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().unwrap_or_else(|| Path::new("/run"));
        fs::create_dir_all(directory)?;
        let next = next(path);
        // The reason of a failure may quote what others must not read. A file that is there keeps its mode.
        drop(fs::remove_file(&next));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&next)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(next, path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// Number of rounds: with them, a reader that reads the state before the journal fails about a hundred times.
    const ROUNDS: u32 = 2_000;

    #[test]
    fn no_file_of_a_killed_run_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("run/state.json");
        let journal = Journal::next_to(&state);
        let leave = || {
            StateFile::default().replace(&state).unwrap();
            journal.add(&[(1, "before".to_owned())]).unwrap();
            journal.take().unwrap();
            journal.add(&[(2, "new".to_owned())]).unwrap();
            for name in ["state.next", "synced"] {
                fs::write(state.with_file_name(name), "").unwrap();
            }
        };
        leave();
        assert_eq!(remove_around(&state).len(), 5);
        assert!(!state.parent().unwrap().exists());
        assert_eq!(remove_around(&state), Vec::<PathBuf>::new());
        leave();
        let other = state.with_file_name("loopback.json");
        fs::write(&other, "").unwrap();
        drop(remove_around(&state));
        let left: Vec<_> = fs::read_dir(state.parent().unwrap()).unwrap().flatten().collect();
        assert_eq!(left.iter().map(fs::DirEntry::path).collect::<Vec<_>>(), [other]);
    }

    #[test]
    fn only_root_reads_the_state_also_after_a_write_that_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state.json");
        fs::write(next(&state), "cut").unwrap();
        StateFile::default().replace(&state).unwrap();
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_reader_misses_no_name_while_the_state_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state.json");
        let added = AtomicU32::new(0);
        let write = || {
            let journal = Journal::next_to(&file);
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
                let state = StateFile::read_file(&file);
                assert!(last == 0 || state.names.contains_key(&last), "{last} has no name");
            }
        });
    }
}
