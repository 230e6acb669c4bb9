//! The lines of `status` about the agent's process, and the screen for an agent whose pins were removed or covered by
//! another mount.

use std::fs;
use std::path::Path;

use super::line::line;
use super::{Error, findings};
use crate::datapath::{LAYOUT, OpenError, runs};
use crate::state_file::{StateFile, last_sync};

/// Returns the screen for maps without pins while an agent runs: the agent still holds and serves them.
pub(super) fn alone(
    bpf_dir: &Path,
    state_file: &StateFile,
    error: OpenError,
) -> Result<String, Error> {
    let process = running(bpf_dir, state_file);
    let pins = match (process, &error) {
        (Some(_), OpenError::NoDatapath(_)) => {
            "missing; the agent restores them every two seconds, \
             or a problem below names why it cannot"
                .to_owned()
        }
        (Some(_), OpenError::Maps(error)) => format!("cannot be read: {}", crate::chain(error)),
        _ => return Err(error.into()),
    };
    let mut text = String::new();
    lines(&mut text, bpf_dir, process, state_file);
    line(&mut text, "Pins", &format!("{}: {pins}", bpf_dir.join(LAYOUT).display()));
    findings(&mut text, state_file);
    Ok(text)
}

/// Returns the process of the agent, if one runs.
///
/// The agent locks the directory. If the directory was removed, the process that wrote the last state counts, provided
/// that it runs this program.
pub(super) fn running(bpf_dir: &Path, state_file: &StateFile) -> Option<u32> {
    if let Some(process) = runs(bpf_dir) {
        return Some(process.unwrap_or(state_file.pid));
    }
    let name = |process: &str| fs::read(format!("/proc/{process}/comm")).ok();
    let is_ours = || name("self").is_some_and(|own| name(&state_file.pid.to_string()) == Some(own));
    (!bpf_dir.exists() && is_ours()).then_some(state_file.pid)
}

/// Adds the agent, its node, the kinds whose changes do not arrive, and the time of the last sync.
pub(super) fn lines(
    text: &mut String,
    bpf_dir: &Path,
    process: Option<u32>,
    state_file: &StateFile,
) {
    let value = match process {
        Some(process) => format!("running (process {process})"),
        None => "not running (data path active with the last synced state)".to_owned(),
    };
    line(text, "Agent", &value);
    if !state_file.node.is_empty() {
        line(text, "Node", &state_file.node);
    }
    for (resource, since) in &state_file.stale {
        line(text, "Stale", &format!("{resource} {since}"));
    }
    if let Some(synced) = last_sync(bpf_dir) {
        line(text, "Last sync", &format!("{synced:.0}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory is gone, and the lock with it: the test itself plays the agent.
    #[test]
    fn agent_with_a_removed_directory_counts_as_running() {
        let directory = tempfile::tempdir().unwrap();
        let gone = directory.path().join("gone");
        let state_file = StateFile { pid: std::process::id(), ..StateFile::default() };
        assert_eq!(running(&gone, &state_file), Some(state_file.pid));
        assert_eq!(running(directory.path(), &state_file), None, "no process holds the lock");
        assert_eq!(running(&gone, &StateFile { pid: 1, ..StateFile::default() }), None);
        assert_eq!(running(&gone, &StateFile::default()), None, "no state was ever written");
        let said = |error| alone(&gone, &state_file, error).unwrap();
        let missing = format!("/gone/{LAYOUT}: missing");
        assert!(said(OpenError::NoDatapath(gone.clone())).contains(&missing));
        let other = alone(&gone, &state_file, OpenError::OtherBuild(gone.clone()));
        assert!(
            matches!(other, Err(Error::Open(OpenError::OtherBuild(_)))),
            "its maps have another format"
        );
        let stopped = alone(&gone, &StateFile::default(), OpenError::NoDatapath(gone.clone()));
        assert!(matches!(stopped, Err(Error::Open(OpenError::NoDatapath(_)))));
    }
}
