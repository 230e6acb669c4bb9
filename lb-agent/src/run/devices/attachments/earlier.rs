//! The attachments of an earlier run: those of interfaces that are no longer served, and those of another layout.

use std::collections::BTreeSet;
use std::path::Path;

use tracing::{info, warn};

use super::Attachments;
use crate::maps::Maps;
use crate::run::error::Error;

impl Attachments {
    /// Removes an earlier run's links and entries of interfaces that are gone or no longer served, and its XDP links of
    /// those that are not external.
    pub(super) fn prune(
        &mut self,
        indices: &BTreeSet<u32>,
        external: &BTreeSet<u32>,
        maps: &mut Maps,
    ) {
        match self.forget_others(indices, external, maps) {
            Ok(()) => self.is_pruned = true,
            Err(error) => {
                warn!(
                    error = %crate::chain(&error),
                    "programs of interfaces that are no longer served could not be removed; retrying"
                );
            }
        }
    }

    fn forget_others(
        &mut self,
        indices: &BTreeSet<u32>,
        external: &BTreeSet<u32>,
        maps: &mut Maps,
    ) -> Result<(), Error> {
        // The programs go first: without the entry of its interface a program finds no source for a masquerade.
        self.datapath.retain(indices, external)?;
        for (index, _) in maps.devices()? {
            if !indices.contains(&index) {
                maps.remove_device(index)?;
            }
        }
        Ok(())
    }

    /// Reports whether another layout's programs still serve.
    pub(in crate::run::devices) const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Replaces the socket hooks of another layout, and lets programs be attached to interfaces. Call it once
    /// everything is programmed.
    pub(in crate::run::devices) fn switch(&mut self, cgroup: &Path) {
        match self.datapath.attach_sockets(cgroup) {
            Ok(()) => {
                self.is_held = false;
                info!("data path of another layout replaced");
            }
            Err(error) => {
                warn!(error = %crate::chain(&error), "socket hooks could not be attached yet; retrying");
            }
        }
    }

    /// Copies the entries that packets wrote into an earlier run's maps while programs were replaced, and removes that
    /// run's programs. Returns false if something remains, to be retried.
    pub(in crate::run::devices) fn finish_upgrade(&mut self) -> bool {
        let finished = self.datapath.finish_upgrade();
        if let Err(error) = &finished {
            warn!(error = %crate::chain(error), "leftovers of an earlier run could not be removed; retrying");
        }
        finished.is_ok()
    }
}
