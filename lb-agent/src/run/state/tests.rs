//! A file that cannot be written at first, and one that is removed.

use std::fs;

use super::*;
use crate::reconcile::Limits;

#[test]
fn state_file_is_written_once_its_directory_is_usable() {
    let directory = tempfile::tempdir().unwrap();
    let pins = directory.path().join("pins");
    let mut state = State::at(Path::new("nowhere"), "node-a", ViewHealth::default());
    state.path = pins.join("state.json");
    state.names = Journal::next_to(&state.path);
    let reconciler = Reconciler::new(Limits { services: 1, backends: 1, lines: 1, sources: 1 });
    // A file in the place of the directory.
    fs::write(&pins, "").unwrap();
    state.synced();
    state.write_sync();
    state.write_now(&reconciler, Vec::new(), &[]);
    assert!(!state.is_due(), "not without a pause");
    fs::remove_file(&pins).unwrap();
    state.write_sync();
    assert!(pins.join("synced").exists());
    state.changed = Instant::now().checked_sub(PAUSE);
    assert!(state.is_due());
    state.write_now(&reconciler, Vec::new(), &[]);
    assert!(state.path.exists(), "though nothing changed");
    assert!(!state.is_due(), "there is nothing to write");
    // The directory is removed, and nothing changes.
    fs::remove_dir_all(&pins).unwrap();
    state.write_sync();
    assert!(pins.join("synced").exists());
    assert!(!state.is_due(), "not without a pause");
    state.changed = Instant::now().checked_sub(PAUSE);
    assert!(state.is_due());
    state.write_now(&reconciler, Vec::new(), &[]);
    assert!(state.path.exists(), "it is as it was");
}
