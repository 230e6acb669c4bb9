//! Restores removed pins: the agent holds the objects, so nothing was detached meanwhile.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use tracing::info;

use super::error::Error;
use super::lock::Lock;
use super::look::Fault;
use super::names::MEANINGS;
use super::{Datapath, bpffs, upgrade};
use crate::syscall;

impl Datapath {
    /// Gives directories, maps, programs and links back the pins that they lack. Each link that lacked one is a fault.
    pub(super) fn restore(&mut self) -> Result<Vec<Fault>, Error> {
        if let Some(bpf_dir) = self.dir.parent()
            && !self.lock.is_of(bpf_dir)
        {
            bpffs::prepare(bpf_dir)?;
            // Else another agent could take it, beside this one.
            self.lock = Lock::take(bpf_dir)?;
        }
        let pins = self.programs.restore()?;
        if !self.dir.join(MEANINGS).exists() {
            upgrade::note(&self.dir)?;
        }
        // Also where no held link lacks its pin: the next link that is made needs the directory.
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

    /// Whether a link that lacks its pin is held and leads somewhere: [`Self::restore`] pins it, and nothing else is
    /// to be made in its place. Pins may be removed while an inspection runs.
    pub(super) fn is_held(&self, path: &Path) -> bool {
        self.held.get(path).is_some_and(leads)
    }
}

/// A link whose device is gone leads nowhere; the inspection of that device takes care of it.
fn leads(link: &OwnedFd) -> bool {
    syscall::link_info(link.as_fd()).is_ok_and(|info| info.device() != 0)
}
