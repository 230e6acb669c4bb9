//! Watches a directory for changed files with inotify.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use tokio::io::unix::AsyncFd;

/// The files of a directory that have changed, by name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChangedFiles {
    Names(BTreeSet<OsString>),
    /// Any file may have changed.
    All,
}

/// A watched directory.
#[derive(Debug)]
pub(super) struct Notify {
    directory: PathBuf,
    inotify: AsyncFd<Handle>,
}

#[derive(Debug)]
struct Handle(Inotify);

impl AsRawFd for Handle {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Events of files that are complete: a file is read when its writer has closed it, not while it is being written.
const WRITTEN: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_DELETE);
/// Events that mean that the directory itself is gone.
const GONE: AddWatchFlags = AddWatchFlags::IN_DELETE_SELF
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_UNMOUNT)
    .union(AddWatchFlags::IN_IGNORED);

impl Notify {
    /// Begins to watch a directory.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let own = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
        let flags = WRITTEN | own | AddWatchFlags::IN_ONLYDIR;
        // There is one watch, so its descriptor is not needed to distinguish events.
        let _only_one = inotify.add_watch(directory, flags)?;
        #[expect(deprecated, reason = "its successor is unsafe; our handle owns its descriptor")]
        let inotify = AsyncFd::new(Handle(inotify))?;
        Ok(Self { directory: directory.to_owned(), inotify })
    }

    /// Waits for changes. An error means that the directory is gone.
    pub(super) async fn changes(&self) -> io::Result<ChangedFiles> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let seen = drain(&ready.get_inner().0)?;
            ready.clear_ready();
            if let Some(changes) = self.changes_of(seen)? {
                return Ok(changes);
            }
        }
    }

    fn changes_of(&self, seen: Vec<InotifyEvent>) -> io::Result<Option<ChangedFiles>> {
        let mut names = BTreeSet::new();
        let mut all = false;
        for InotifyEvent { mask, name, .. } in seen {
            if mask.intersects(GONE) {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the directory is gone"));
            }
            // The kernel dropped events of its full queue, so the names are not all known.
            all |= mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
            let Some(name) = name else { continue };
            // The kubelet replaces all files of a volume at once by renaming the link `..data`.
            all |= name.as_encoded_bytes().starts_with(b"..");
            if mask != AddWatchFlags::IN_CREATE || self.is_link(&name) {
                names.insert(name);
            }
        }
        Ok(match (all, names.is_empty()) {
            (true, _) => Some(ChangedFiles::All),
            (false, false) => Some(ChangedFiles::Names(names)),
            (false, true) => None,
        })
    }

    /// Reports whether a new name already has its content, so that no close of a writer follows.
    fn is_link(&self, name: &OsStr) -> bool {
        let found = fs::symlink_metadata(self.directory.join(name));
        found.is_ok_and(|found| found.is_symlink() || found.nlink() > 1)
    }
}

fn drain(inotify: &Inotify) -> io::Result<Vec<InotifyEvent>> {
    let mut seen = Vec::new();
    loop {
        match inotify.read_events() {
            Ok(events) => seen.extend(events),
            Err(Errno::EAGAIN) => return Ok(seen),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
