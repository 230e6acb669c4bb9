//! Restores removed pins. The agent holds the objects open, so nothing was detached meanwhile.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use tracing::info;

use super::lock::Lock;
use super::watchdog::Fault;
use super::{Datapath, Error, bpffs, upgrade};
use crate::syscall;

impl Datapath {
    /// Restores the missing pins of directories, maps, programs and links. Each link without a pin counts as a fault.
    pub(super) fn restore(&mut self) -> Result<Vec<Fault>, Error> {
        if let Some(bpf_dir) = self.dir.parent()
            && !self.lock.is_of(bpf_dir)
        {
            bpffs::prepare(bpf_dir)?;
            // Without the lock another agent could start over the recreated directory.
            self.lock = Lock::take(bpf_dir)?;
        }
        let pins = self.programs.restore()?;
        if !self.dir.join(upgrade::DIRECTORY).exists() {
            upgrade::note(&self.dir)?;
        }
        // Even if no held link lacks its pin: the next new link needs the directory.
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
            info!(dir = %self.dir.display(), pins, links, "removed pins were restored");
        }
        Ok(faults)
    }

    /// Reports whether a link without a pin is held and attached. [`Self::restore`] will pin it, so it must not be
    /// replaced: pins may be removed while an inspection runs.
    pub(super) fn is_held(&self, path: &Path) -> bool {
        self.held.get(path).is_some_and(leads)
    }
}

/// Reports whether a link is attached. One whose interface is gone is not; the inspection of interfaces handles that.
fn leads(link: &OwnedFd) -> bool {
    syscall::link_info(link.as_fd()).is_ok_and(|info| info.device() != 0)
}
