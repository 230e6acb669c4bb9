//! The settings of the loopback interface from before the agent, until they are saved for `lb-agent cleanup`.
//!
//! A directory that is full or read-only does not keep the interface from being configured: datagrams of host processes
//! would reach no Service. The settings stay here until the file can be written.

use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tracing::warn;

use super::error::Error;
use super::loopback::Loopback;

/// The earlier settings of the loopback interface.
#[derive(Debug)]
pub struct EarlierLoopback {
    /// The file for them.
    record: PathBuf,
    /// Those that are not saved yet.
    unsaved: Option<Loopback>,
    /// The reason why the settings are not saved yet, for operators.
    problem: watch::Sender<Option<String>>,
}

impl EarlierLoopback {
    /// Also returns the problem of settings that cannot be saved, as it is at any time.
    pub fn new(record: PathBuf) -> (Self, watch::Receiver<Option<String>>) {
        let (problem, receiver) = watch::channel(None);
        (Self { record, unsaved: None, problem }, receiver)
    }

    /// Remembers settings as the earlier ones, unless it has some already.
    pub(super) fn keep(&mut self, now: Loopback) {
        self.unsaved = self.unsaved.or(Some(now));
    }

    /// Saves the settings that are not saved yet, unless an earlier run has saved its own.
    pub(super) fn save(&mut self) {
        let Some(unsaved) = self.unsaved else { return };
        let failure = unsaved.keep(&self.record).err();
        if failure.is_none() {
            self.unsaved = None;
        }
        let problem = failure.map(|error| problem(&self.record, &error));
        let is_news = self.problem.send_if_modified(|known| {
            let is_news = *known != problem;
            known.clone_from(&problem);
            is_news
        });
        if let Some(problem) = problem.filter(|_| is_news) {
            warn!(problem, "earlier settings of the loopback interface not saved yet; retrying");
        }
    }
}

fn problem(record: &Path, error: &Error) -> String {
    let directory = record.parent().unwrap_or(record).display();
    let error = crate::chain(error);
    format!(
        "earlier settings of the loopback interface cannot be saved in {directory} ({error}), so `lb-agent cleanup` \
         could not restore them; host processes are served: make the directory writable, or free space there"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn first_settings_are_saved_once_the_directory_can_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("place");
        let record = place.join("loopback.json");
        let (mut earlier, problem) = EarlierLoopback::new(record.clone());
        earlier.save();
        assert!(problem.borrow().is_none() && !place.exists(), "there is nothing to save");
        // A file in the place of the directory.
        fs::write(&place, "").unwrap();
        let before = Loopback::default();
        for now in [before, before.opened(false, true)] {
            earlier.keep(now);
            earlier.save();
            let said = problem.borrow().clone().expect("a problem");
            let expected = format!("cannot be saved in {} (saved sysctl", place.display());
            assert!(said.contains(&expected), "{said}");
        }
        fs::remove_file(&place).unwrap();
        earlier.save();
        assert_eq!((Loopback::recorded(&record), problem.borrow().clone()), (Some(before), None));
        fs::remove_file(&record).unwrap();
        earlier.save();
        assert_eq!(Loopback::recorded(&record), None, "saved once");
    }
}
