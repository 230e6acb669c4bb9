//! What a run knew last, as it is kept in a file: where, and what is in it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::Names;

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
    /// Whether packets go past the stack, and by which devices they do not.
    pub short_cuts: Vec<String>,
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
    /// What is wrong with the source (files that cannot be read, objects of no use), with our Node and with Services.
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

    /// Puts this in the place of what a file holds.
    pub(super) fn replace(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or_else(|| Path::new("/run"));
        fs::create_dir_all(folder)?;
        let next = path.with_extension("next");
        fs::write(&next, serde_json::to_vec(self)?)?;
        fs::rename(next, path)
    }
}
