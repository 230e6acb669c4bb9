//! Attaches programs to interfaces, and repairs what other programs did to them.

use std::sync::Arc;
use std::time::Instant;

use tracing::{debug, info, warn};

use super::Devices;
use crate::datapath::Findings;
use crate::metrics::Numbers;
use crate::node::Assignment;
use crate::syscall::device_name;

impl Devices {
    pub(super) fn attach(&mut self, device: Assignment, numbers: &Numbers) {
        self.flags.forget(device.index);
        let newcomers = Arc::clone(&self.newcomers);
        let taking = newcomers.take(device.index);
        // The row first: without it a detector by interface (contract 3.4) would not know a pod of this node.
        let put = self.maps.put_device(device.index, &device.device);
        let attached = put
            .map_err(Into::into)
            .and_then(|()| self.datapath.attach(device.index, &device.name, device.role));
        let was_early = taking.was_early;
        drop(taking);
        match attached {
            Ok(()) => {
                self.failed.forget(device.index);
                if !was_early {
                    let (name, index) = (&device.name, device.index);
                    numbers.attached(self.source);
                    info!(device = name, index, role = device.role.name(), "programs attached");
                }
                drop(self.attached.insert(device.index, device));
            }
            Err(error) => {
                let error = crate::chain(&error);
                if self.failed.note(device.index, &device.name, &error, Instant::now()) {
                    // A pod that ended before its turn is no fault.
                    if device_name(device.index).is_none() {
                        debug!(
                            device = device.name,
                            error, "interface disappeared before it was attached"
                        );
                    } else {
                        warn!(
                            device = device.name,
                            error, "programs could not be attached yet; retrying"
                        );
                    }
                }
            }
        }
    }

    /// Attaches programs to interfaces that were recreated with the index of an earlier one. New interfaces are
    /// attached first, because each of these costs a system call.
    pub(super) fn attach_made_anew(&mut self, numbers: &Numbers) {
        let is_another = |index: &u32, _: &mut Assignment| self.datapath.forget_if_another(*index);
        let devices: Vec<_> = self.attached.extract_if(.., is_another).collect();
        for (_, device) in devices {
            self.attach(device, numbers);
        }
    }

    /// Repairs what other programs did to the attachments. Returns whether anything was repaired.
    pub(in crate::run) fn inspect(&mut self, numbers: &Numbers) -> bool {
        // The links of a recreated interface were not removed by another program, so they must not be counted as
        // repaired.
        self.attach_made_anew(numbers);
        let Findings { repaired, failed, decelerated, problems, is_unpinned } =
            self.datapath.inspect();
        for (index, error) in failed {
            if let Some(device) = self.attached.remove(&index) {
                self.failed.note(index, &device.name, &error, Instant::now());
            }
        }
        for fault in &repaired {
            numbers.repaired(*fault);
        }
        for (index, why) in decelerated {
            self.acceleration_changed |= self.accelerator.lose(index, why);
        }
        self.attachment_problems = problems;
        self.unpinned = is_unpinned.then(|| self.unpinned.unwrap_or_else(Instant::now));
        !repaired.is_empty()
    }

    /// Returns the time since which pins are missing and cannot be restored.
    pub(in crate::run) const fn unpinned_since(&self) -> Option<Instant> {
        self.unpinned
    }
}
