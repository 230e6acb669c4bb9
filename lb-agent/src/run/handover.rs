//! The text of the configuration for the run that follows in the same process.
//!
//! The file may change between the check of its text and the next start, or may be invalid for long while the agent
//! goes on with the text before. So the next run reads no file: it gets the text in memory, through a descriptor that
//! execve(2) keeps.

use std::env;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::process::Command;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::close;
use tracing::debug;

/// The environment variable with the number of the descriptor.
const VARIABLE: &str = "LB_AGENT_CONFIG_FD";
const NAME: &CStr = c"lb-agent-config";
/// The target of the descriptor's link in `/proc`, as the kernel begins it.
const LINK: &str = "/memfd:lb-agent-config";

/// A text that outlives execve(2).
#[derive(Debug)]
pub struct Handover(File);

impl Handover {
    pub(super) fn of(text: &str) -> io::Result<Self> {
        // With `vm.memfd_noexec=2` the kernel demands this flag, and before Linux 6.3 it refuses it.
        let flags = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
        let memory =
            memfd_create(NAME, flags).or_else(|_error| memfd_create(NAME, MFdFlags::empty()))?;
        let mut file = File::from(memory);
        file.write_all(text.as_bytes())?;
        Ok(Self(file))
    }

    /// Lets the program of this command find the text. It must be executed in this process, or started, before the
    /// value is dropped.
    pub fn announce_to(&self, command: &mut Command) {
        command.env(VARIABLE, self.0.as_raw_fd().to_string());
    }
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
        let handover = Handover::of("kind: A\n").expect("memory");
        let mut reader = Command::new("sh");
        reader.args(["-c", &format!("cat /proc/self/fd/${VARIABLE}")]);
        handover.announce_to(&mut reader);
        let output = reader.output().expect("output");
        assert_eq!(output.stdout, b"kind: A\n");
    }

    #[test]
    fn text_is_taken_once() {
        let descriptor = Handover::of("kind: A\n").expect("memory").0.into_raw_fd();
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
