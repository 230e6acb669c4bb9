//! Attaches programs to an interface, and handles changes that others made to them.

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
                    // A pod that ended before its turn is nobody's fault.
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

    /// Attaches programs to the devices that were made anew with their index. New ones come before them: each is asked.
    pub(super) fn attach_made_anew(&mut self, numbers: &Numbers) {
        let is_another = |index: &u32, _: &mut Assignment| self.datapath.forget_if_another(*index);
        let devices: Vec<_> = self.attached.extract_if(.., is_another).collect();
        for (_, device) in devices {
            self.attach(device, numbers);
        }
    }

    /// Puts right what somebody else did to our attachments. Says whether something was.
    pub(in crate::run) fn inspect(&mut self, numbers: &Numbers) -> bool {
        // Their links are no fault that somebody made.
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

    /// Since when pins are missing that cannot be put back.
    pub(in crate::run) const fn unpinned_since(&self) -> Option<Instant> {
        self.unpinned
    }
}
