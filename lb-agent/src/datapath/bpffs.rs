//! The bpffs, which keeps the pins: mounts one if necessary.

use std::fs;
use std::io;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use nix::sys::statvfs::FsFlags;

use super::error::Error;

/// The source of mounts by this agent in `/proc/mounts`; `cleanup` recognizes them by it.
pub(super) const SOURCE: &str = "lb-agent";
/// The usual mount point of a bpffs.
const USUAL: &str = "/sys/fs/bpf";

/// Ensures that `dir` exists and is on a bpffs.
pub(super) fn prepare(dir: &Path) -> Result<(), Error> {
    let usual = Path::new(USUAL);
    // At the usual mount point, other tools such as bpftool find the pins too.
    if dir.starts_with(usual) && dir != usual && !is_bpffs(usual) {
        mount_at(usual)?;
    }
    // The directory is made after the mount, which would hide it.
    fs::create_dir_all(dir).map_err(|source| Error::Directory {
        path: dir.to_owned(),
        what: "cannot be created; choose another --bpf-dir".into(),
        source,
    })?;
    if is_bpffs(dir) { Ok(()) } else { mount_at(dir) }
}

/// Reports whether a path is on a bpffs.
pub(super) fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC)
}

/// Reports whether a path is on a file system that is mounted read-only.
pub(super) fn is_read_only(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_RDONLY))
}

/// Returns the mount points of all bpffs that this process sees.
pub(super) fn mounts() -> Vec<std::path::PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let place = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (path, kind) = (words.next()?, words.next()?);
        (kind == "bpf").then(|| path.into())
    };
    mounts.lines().filter_map(place).collect()
}

/// Reports whether `dir` is a mount that this agent made, by `/proc/mounts`.
pub(super) fn is_ours(dir: &Path) -> bool {
    let Ok(mounts) = fs::read_to_string("/proc/mounts") else { return false };
    // `/proc/mounts` has absolute paths.
    let Ok(dir) = fs::canonicalize(dir) else { return false };
    let ours = |line: &str| {
        let mut words = line.split(' ');
        words.next() == Some(SOURCE) && words.next().is_some_and(|path| Path::new(path) == dir)
    };
    mounts.lines().any(ours)
}

fn mount_at(dir: &Path) -> Result<(), Error> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    // Only root has access: a process that can open a pin can change where packets go.
    mount(Some(SOURCE), dir, Some("bpf"), flags, Some("mode=0700")).map_err(|error| {
        Error::Directory {
            path: dir.to_owned(),
            what: format!(
                "is not a bpffs and none can be mounted there; as root: mount -t bpf bpf {}",
                dir.display()
            ),
            source: io::Error::from(error),
        }
    })
}
