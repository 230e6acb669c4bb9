//! The time of the last sync, in a file of its own beside the state file.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use tracing::debug;

/// Time when everything that had arrived was programmed, and whether that was written.
#[derive(Debug)]
pub(super) struct SyncTime {
    synced: Option<Timestamp>,
    is_written: bool,
}

impl SyncTime {
    /// Makes the time of a run that has not synced yet.
    pub(super) const fn unknown() -> Self {
        Self { synced: None, is_written: true }
    }

    /// Takes the present for the time of the last sync.
    pub(super) fn set_now(&mut self) {
        (self.synced, self.is_written) = (Some(Timestamp::now()), false);
    }

    /// Writes the time if it changed or the file is missing.
    pub(super) fn write(&mut self, file: &Path) {
        let is_due = !self.is_written || !file.exists();
        let Some(synced) = self.synced.filter(|_| is_due) else { return };
        let directory = file.parent().unwrap_or_else(|| Path::new("/run"));
        let written =
            fs::create_dir_all(directory).and_then(|()| fs::write(file, format!("{synced:.3}\n")));
        if let Err(error) = &written {
            debug!(path = %file.display(), %error, "time of the last sync not saved yet");
        }
        self.is_written = written.is_ok();
    }
}
