//! One agent per `--bpf-dir`: a lock on the folder itself, since a bpffs holds no files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::Error;

/// Held while the agent lives; the kernel lets go of it whatever the agent's end.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held, never read")] Flock<File>);

impl Lock {
    /// Takes the lock of a folder, or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Self, Error> {
        let folder = |source: io::Error| Error::Folder {
            path: dir.to_owned(),
            what: "cannot be locked".into(),
            source,
        };
        let file = File::open(dir).map_err(folder)?;
        let inode = file.metadata().map_err(folder)?.ino();
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self(lock)),
            Err((_, Errno::EWOULDBLOCK)) => {
                Err(Error::InUse { path: dir.to_owned(), pid: holder(inode) })
            }
            Err((_, error)) => Err(folder(error.into())),
        }
    }
}

/// The process that holds a lock on an inode, from `/proc/locks`.
///
/// The device in there is that of the superblock, which `stat` may not show: the inode alone must do.
fn holder(inode: u64) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = words.as_slice() else { return None };
        let (_, number) = file.rsplit_once(':')?;
        (number.parse() == Ok(inode)).then(|| pid.parse().ok()).flatten()
    })
}
