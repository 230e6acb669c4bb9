//! Each long wait has a file as long as it lasts, so that the report about a test that is killed for its time names
//! what the test waited for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::topology::leftovers::DIRECTORY;

/// A wait is long after this time, which is less than the time limit of any test.
const LONG: Duration = Duration::from_secs(10);

/// One wait, and its file once it is long.
pub(super) struct Wait<'a> {
    what: &'a str,
    file: Option<PathBuf>,
}

impl<'a> Wait<'a> {
    pub(super) const fn new(what: &'a str) -> Self {
        Self { what, file: None }
    }

    /// Writes the file if the wait has become long. A failure changes no test.
    pub(super) fn passed(&mut self, time: Duration) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if time < LONG || self.file.is_some() {
            return;
        }
        let directory = Path::new(DIRECTORY).join(format!("{}-waits", process::id()));
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = directory.join(format!("{number}.log"));
        drop(fs::create_dir_all(&directory));
        drop(fs::write(&file, format!("waits for: {}\n", self.what)));
        self.file = Some(file);
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        drop(fs::remove_file(file));
        // Fails while other waits have their files there.
        drop(file.parent().map(fs::remove_dir));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_lasts_as_long_as_the_wait() {
        let mut wait = Wait::new("blue moon");
        wait.passed(Duration::from_secs(1));
        assert_eq!(wait.file, None);
        wait.passed(LONG);
        let file = wait.file.clone().unwrap();
        // Only root may write there.
        if file.exists() {
            assert_eq!(fs::read_to_string(&file).unwrap(), "waits for: blue moon\n");
        }
        drop(wait);
        assert!(!file.exists());
    }
}
