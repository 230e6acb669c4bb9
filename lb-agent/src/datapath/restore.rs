//! Restores removed pins. The agent holds the pinned objects, so nothing was detached meanwhile.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use tracing::info;

use super::error::Error;
use super::lock::Lock;
use super::look::Fault;
use super::names::FINGERPRINTS;
use super::{Datapath, bpffs, upgrade};
use crate::syscall;

impl Datapath {
    /// Restores missing directories, and the missing pins of maps, programs and links. Returns a fault for each link
    /// whose pin was missing.
    pub(super) fn restore(&mut self) -> Result<Vec<Fault>, Error> {
        if let Some(bpf_dir) = self.dir.parent()
            && !self.lock.is_of(bpf_dir)
        {
            bpffs::prepare(bpf_dir)?;
            // Without the lock, a second agent could start beside this one.
            self.lock = Lock::take(bpf_dir)?;
        }
        let pins = self.programs.restore()?;
        // Without the record, a later layout could not know that the maps have the content that it expects, and would
        // start with empty ones.
        if !self.dir.join(FINGERPRINTS).exists() {
            upgrade::record(&self.dir)?;
        }
        // The directory is needed even if no held link lacks its pin: the next new link is pinned there.
        let links = self.dir.join("links");
        fs::create_dir_all(&links).map_err(|source| Error::Pin { path: links, source })?;
        let mut faults = Vec::new();
        for (path, link) in &self.held {
            if !path.exists() && leads(link) {
                let pinned = syscall::pin(link.as_fd(), path);
                pinned.map_err(|source| Error::Pin { path: path.clone(), source })?;
                faults.push(Fault::Unpinned);
            }
        }
        if pins > 0 || !faults.is_empty() {
            let links = faults.len();
            info!(dir = %self.dir.display(), pins, links, "pins had been removed; restored");
        }
        Ok(faults)
    }

    /// Returns the problem that no pin can be added or removed, because the bpffs is mounted read-only.
    pub(super) fn read_only(&self) -> Option<String> {
        let dir = self.dir.display();
        bpffs::is_read_only(&self.dir).then(|| {
            format!(
                "pins in {dir} cannot be changed, because their bpffs is mounted read-only: programs stay attached, \
                 but programs of new interfaces would end with the agent; remount it read-write (mount -o remount,rw)"
            )
        })
    }

    /// Reports whether the agent holds the link of this pin, still at its target. If the pin is missing,
    /// [`Self::restore`] restores it, so the link must not be replaced.
    ///
    /// Pins may be removed while an inspection runs.
    pub(super) fn is_held(&self, path: &Path) -> bool {
        self.held.get(path).is_some_and(leads)
    }
}

/// Reports whether a link still has its target. A link whose interface is gone is left to the inspection of that
/// interface.
fn leads(link: &OwnedFd) -> bool {
    syscall::link_info(link.as_fd()).is_ok_and(|info| info.device() != 0)
}
