//! One agent for each `--bpf-dir`: an advisory lock on the directory itself, because a bpffs cannot contain files.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use super::error::Error;

/// The lock, held while the agent lives. The kernel releases it however the agent ends.
#[derive(Debug)]
pub(super) struct Lock(Flock<File>);

/// A process that asks for the holder takes a shared lock for a moment. `take` therefore tries this often, with this
/// pause.
const TRIES: u32 = 20;
const MOMENT: Duration = Duration::from_millis(10);

/// Returns whether an agent serves a `--bpf-dir`, and its process id if that is visible from here.
///
/// The lock covers processes in every container, under whatever name they run.
pub fn runs(dir: &Path) -> Option<Option<u32>> {
    let file = File::open(dir).ok()?;
    let metadata = file.metadata().ok()?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((_, Errno::EWOULDBLOCK)) => Some(process(&metadata)),
        Ok(_) | Err(_) => None,
    }
}

fn process(directory: &Metadata) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    holder(&locks, directory.dev(), directory.ino())
}

/// The end of the message if the directory cannot be locked.
const FORBIDDEN: &str = "cannot be locked; run as root, without a profile of AppArmor or SELinux that forbids it, or \
                         choose another --bpf-dir";

impl Lock {
    /// Reports whether this is the lock of the directory now at that path, which may have been removed and recreated.
    pub(super) fn is_of(&self, dir: &Path) -> bool {
        let of = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let held = self.0.metadata().map(of).ok();
        held.is_some() && fs::metadata(dir).map(of).ok() == held
    }

    /// Takes the lock of a directory. Error: another process holds it; the message names it.
    pub(super) fn take(dir: &Path) -> Result<Self, Error> {
        let directory = |source: io::Error| Error::Directory {
            path: dir.to_owned(),
            what: FORBIDDEN.to_owned(),
            source,
        };
        let mut file = File::open(dir).map_err(directory)?;
        let metadata = file.metadata().map_err(directory)?;
        // An agent that is just ending, or a cleanup, releases the lock within a moment.
        for _ in 0..TRIES {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Self(lock)),
                Err((again, Errno::EWOULDBLOCK)) => file = again,
                Err((_, error)) => return Err(directory(error.into())),
            }
            std::thread::park_timeout(MOMENT);
        }
        Err(Error::InUse { path: dir.to_owned(), pid: process(&metadata) })
    }
}

/// Fails if an agent serves a directory; the error names its process.
pub fn ensure_no_agent(dir: &Path) -> Result<(), Error> {
    without_agent(dir, || ())
}

/// Runs `work` while no agent serves a directory, and none can start there; the error names the agent's process.
pub fn without_agent<T>(dir: &Path, work: impl FnOnce() -> T) -> Result<T, Error> {
    let _lock = Lock::take(dir)?;
    Ok(work())
}

/// Returns the process that holds a lock on a file, from `/proc/locks`.
///
/// The device there is that of the superblock, which can differ from the one in stat(2). If none matches, the inode
/// decides, provided that only one lock has it: the root of every bpffs has inode 1.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let device = format!("{:02x}:{:02x}", major(device), minor(device));
    let held = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The agent's lock is exclusive; shared ones belong to processes that look for its holder.
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = words.as_slice() else { return None };
        let (superblock, number) = file.rsplit_once(':')?;
        let is_inode = number.parse() == Ok(inode);
        is_inode.then(|| Some((pid.parse().ok()?, superblock == device))).flatten()
    };
    let held: Vec<(u32, bool)> = locks.lines().filter_map(held).collect();
    let exact = held.iter().find(|(_, fits)| *fits);
    exact.or_else(|| held.first().filter(|_| held.len() == 1)).map(|(pid, _)| *pid)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;

    use super::*;

    const LOCKS: &str = "\
1: FLOCK  ADVISORY  WRITE 11 00:2f:1 0 EOF
2: POSIX  ADVISORY  WRITE 12 00:30:1 0 EOF
3: FLOCK  ADVISORY  WRITE 13 00:30:1 0 EOF
3: -> FLOCK  ADVISORY  WRITE 14 00:30:1 0 EOF
4: FLOCK  ADVISORY  WRITE 15 fe:01:77 0 EOF
";

    #[test]
    fn query_finds_a_held_lock_and_does_not_keep_it() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(runs(directory.path()), None);
        let lock = Lock::take(directory.path()).unwrap();
        assert!(runs(directory.path()).is_some() && lock.is_of(directory.path()));
        assert!(matches!(Lock::take(directory.path()), Err(Error::InUse { .. })));
        drop(lock);
        assert_eq!(runs(directory.path()), None);
        let held = without_agent(directory.path(), || runs(directory.path()).is_some());
        assert!(held.unwrap(), "no agent starts meanwhile");
        assert!(Lock::take(directory.path()).is_ok());
        assert_eq!(runs(&directory.path().join("nowhere")), None);
    }

    #[test]
    fn holder_is_distinguished_from_those_of_other_file_systems() {
        assert_eq!(holder(LOCKS, makedev(0, 0x30), 1), Some(13));
        assert_eq!(holder(LOCKS, makedev(0, 0x2f), 1), Some(11));
    }

    #[test]
    fn holder_on_an_unknown_device_is_named_only_when_there_is_one() {
        assert_eq!(holder(LOCKS, makedev(9, 9), 77), Some(15));
        assert_eq!(holder(LOCKS, makedev(9, 9), 1), None);
        assert_eq!(holder("", makedev(9, 9), 1), None);
    }
}
