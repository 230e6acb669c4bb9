//! The folder of one control plane, and those that an interrupted test left behind.

use std::env;
use std::fs;
use std::path::Path;
use std::process;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// Begins the name of every such folder; the owner's process id follows.
const PREFIX: &str = "lb-control-plane-";

/// Makes a folder that is removed with its value, and removes those whose owner is gone.
///
/// With `LB_TESTS_KEEP` in the environment it stays, for a look at the logs.
pub(crate) fn create() -> Result<TempDir> {
    sweep();
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", process::id()))
        .disable_cleanup(env::var_os("LB_TESTS_KEEP").is_some())
        .tempdir()
        .with_context(|| format!("folder in {}", env::temp_dir().display()))
}

/// Removes what a killed test could not remove. Failure is no news: another test may have been first.
fn sweep() {
    let Ok(entries) = fs::read_dir(env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(owner);
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// Reads the process id out of the name of a folder of ours.
fn owner(name: &str) -> Option<&str> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.bytes().all(|byte| byte.is_ascii_digit()).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_read_from_our_folders_only() {
        assert_eq!(owner("lb-control-plane-4711-x7Gh"), Some("4711"));
        assert_eq!(owner("lb-control-plane-x-y"), None);
        assert_eq!(owner("somebody-4711-x"), None);
    }

    #[test]
    fn folder_of_a_living_owner_survives_the_sweep() {
        let mine = create().unwrap();
        sweep();
        assert!(mine.path().exists());
    }
}
