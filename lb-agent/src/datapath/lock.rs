//! One agent per `--bpf-dir`: a lock on the folder itself, since a bpffs holds no files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use super::Error;

/// Held while the agent lives; the kernel lets go of it whatever the agent's end.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held, never read")] Flock<File>);

impl Lock {
    /// Takes the lock of a folder, or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Self, Error> {
        let folder = |source: io::Error| Error::Folder {
            path: dir.to_owned(),
            what: "cannot be locked; run as root, or choose another --bpf-dir".into(),
            source,
        };
        let file = File::open(dir).map_err(folder)?;
        let metadata = file.metadata().map_err(folder)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self(lock)),
            Err((_, Errno::EWOULDBLOCK)) => {
                let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
                let pid = holder(&locks, metadata.dev(), metadata.ino());
                Err(Error::InUse { path: dir.to_owned(), pid })
            }
            Err((_, error)) => Err(folder(error.into())),
        }
    }
}

/// The process that holds a lock on a file, from `/proc/locks`.
///
/// The device in there is that of the superblock, which `stat` may not show: where none fits, the inode
/// must do, as long as only one lock has it. The root of every bpffs is inode 1.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let device = format!("{:02x}:{:02x}", major(device), minor(device));
    let held = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
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
    fn holder_is_told_from_those_of_other_file_systems() {
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
