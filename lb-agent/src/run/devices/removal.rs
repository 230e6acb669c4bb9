//! Removes interfaces that are no longer served: of this run, and of an earlier one.

use std::collections::BTreeSet;

use tracing::{info, warn};

use super::Devices;
use crate::run::Error;

impl Devices {
    pub(super) fn detach(&mut self, index: u32) {
        let Some(device) = self.attached.remove(&index) else { return };
        match self.forget(index) {
            Ok(()) => info!(device = device.name, index, "interface is no longer served"),
            Err(error) => {
                warn!(device = device.name, index, error, "removing the interface failed");
            }
        }
    }

    /// Removes the links and the row of an interface; a failure of one does not keep the other.
    pub(super) fn forget(&mut self, index: u32) -> Result<(), String> {
        self.flags.forget(index);
        let detached = self.datapath.detach(index).map_err(|error| crate::chain(&error));
        let removed = self.maps.remove_device(index).map_err(|error| crate::chain(&error));
        // Last: from here on the thread may attach programs to a new interface with this index.
        self.newcomers.release(index);
        detached.and(removed)
    }

    /// Removes what an earlier run attached to interfaces that are gone or have no role now.
    pub(super) fn prune(&mut self, indices: &BTreeSet<u32>) {
        match self.forget_others(indices) {
            Ok(()) => self.is_pruned = true,
            Err(error) => {
                warn!(error = %crate::chain(&error), "removing stale interfaces failed");
            }
        }
    }

    fn forget_others(&mut self, indices: &BTreeSet<u32>) -> Result<(), Error> {
        for (index, _) in self.maps.devices()? {
            if !indices.contains(&index) {
                self.maps.remove_device(index)?;
            }
        }
        Ok(self.datapath.retain(indices)?)
    }
}
