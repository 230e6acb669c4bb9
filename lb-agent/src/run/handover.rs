//! The text of the configuration, and the entries that maps need, for the run that follows in the same process.
//!
//! The file may change between the check of its text and the next start, or may be invalid for long while the agent
//! goes on with the text before. So the next run reads no file: it gets the text in memory, through a descriptor that
//! execve(2) keeps. The API server may be slow at the next start: the sizes of the maps must not depend on how many
//! objects have arrived by then.

use std::env;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::process::Command;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::close;
use tracing::{debug, warn};

use crate::reconcile::Limits;

/// The environment variable with the number of the descriptor.
const VARIABLE: &str = "LB_AGENT_CONFIG_FD";
/// The environment variable with the needed entries of the maps, in the order of [`words`].
const NEED: &str = "LB_AGENT_NEED";
const NAME: &CStr = c"lb-agent-config";
/// The target of the descriptor's link in `/proc`, as the kernel begins it.
const LINK: &str = "/memfd:lb-agent-config";

/// Facts that outlive execve(2).
#[derive(Debug)]
pub struct Handover {
    text: Option<File>,
    need: Option<Limits>,
}

impl Handover {
    /// Keeps the text and the need for the next run. Without the text, that run reads the file.
    pub(super) fn of(text: Option<&str>, need: Option<Limits>) -> Self {
        let text = text.and_then(|text| {
            memory(text)
                .inspect_err(
                    |error| warn!(%error, "configuration not handed over; the file is read again"),
                )
                .ok()
        });
        Self { text, need }
    }

    /// Lets the program of this command find the facts. It must be executed in this process, or started, before the
    /// value is dropped.
    pub fn announce_to(&self, command: &mut Command) {
        let text = self.text.as_ref().map(|text| text.as_raw_fd().to_string());
        for (variable, value) in [(VARIABLE, text), (NEED, self.need.map(words))] {
            match value {
                Some(value) => command.env(variable, value),
                // An older handover must not count again.
                None => command.env_remove(variable),
            };
        }
    }
}

fn memory(text: &str) -> io::Result<File> {
    // With `vm.memfd_noexec=2` the kernel demands this flag, and before Linux 6.3 it refuses it.
    let flags = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
    let memory =
        memfd_create(NAME, flags).or_else(|_error| memfd_create(NAME, MFdFlags::empty()))?;
    let mut file = File::from(memory);
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// Returns the entries that the maps needed when the run before in this process ended, if it knew all objects.
pub(super) fn needed_before() -> Option<Limits> {
    parse(&env::var(NEED).ok()?)
}

fn words(need: Limits) -> String {
    let Limits { services, backends, lines, sources } = need;
    format!("{services} {backends} {lines} {sources}")
}

/// Reads exactly what [`words`] writes.
fn parse(text: &str) -> Option<Limits> {
    let numbers: Result<Vec<u32>, _> = text.split(' ').map(str::parse).collect();
    let [services, backends, lines, sources] = numbers.ok()?.try_into().ok()?;
    Some(Limits { services, backends, lines, sources }).filter(|need| words(*need) == text)
}

/// Takes the text that the run before in this process handed over.
pub fn handed_over() -> Option<String> {
    take(env::var(VARIABLE).ok()?.parse().ok()?)
}

fn take(descriptor: RawFd) -> Option<String> {
    let path = format!("/proc/self/fd/{descriptor}");
    // A variable that another process left leads nowhere, or to another file.
    if !fs::read_link(&path).ok()?.to_string_lossy().starts_with(LINK) {
        return None;
    }
    let text = fs::read_to_string(&path).ok();
    // Neither this run nor the processes that it starts need the descriptor any more.
    if let Err(error) = close(descriptor) {
        debug!(%error, "descriptor of the handed over text not closed");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd as _;

    use super::*;

    #[test]
    fn text_outlives_the_execution_of_another_program() {
        let handover = Handover::of(Some("kind: A\n"), None);
        let mut reader = Command::new("sh");
        reader.args(["-c", &format!("cat /proc/self/fd/${VARIABLE}")]);
        handover.announce_to(&mut reader);
        let output = reader.output().expect("output");
        assert_eq!(output.stdout, b"kind: A\n");
    }

    #[test]
    fn need_reaches_only_the_next_run() {
        let need = Limits { services: 70_000, backends: 1, lines: 4_294_967_295, sources: 0 };
        let shown = |need| {
            let mut reader = Command::new("sh");
            reader.env(NEED, "1 2 3 4").args(["-c", &format!("printf %s \"${NEED}\"")]);
            Handover::of(None, need).announce_to(&mut reader);
            parse(&String::from_utf8_lossy(&reader.output().expect("output").stdout))
        };
        assert_eq!((shown(Some(need)), shown(None)), (Some(need), None));
    }

    #[test]
    fn malformed_need_counts_as_none() {
        assert!(parse("1 2 3 4").is_some());
        for text in
            ["", "1 2 3", "1 2 3 4 5", "1 2 3 -4", "1 2 3 +4", "1  2 3 4", "1 2 3 4294967296"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn text_is_taken_once() {
        let descriptor = memory("kind: A\n").expect("memory").into_raw_fd();
        assert_eq!(take(descriptor).as_deref(), Some("kind: A\n"));
        assert_eq!(take(descriptor), None);
    }

    #[test]
    fn descriptor_of_another_file_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = File::create_new(directory.path().join("file")).expect("a file");
        assert_eq!(take(file.as_raw_fd()), None);
        assert!(file.metadata().is_ok(), "closed");
    }
}
