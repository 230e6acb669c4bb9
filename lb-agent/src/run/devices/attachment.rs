//! Programs on a device, and what others did to them since.

use std::collections::btree_map::Entry;
use std::time::Instant;

use tracing::warn;

use super::Devices;
use crate::datapath::Findings;
use crate::metrics::Numbers;
use crate::node::Assignment;

impl Devices {
    pub(super) fn attach(&mut self, device: Assignment, numbers: &Numbers) {
        let _: Option<u32> = self.told_flags.remove(&device.index);
        let marked = self.maps.mark_sources(&device.sources);
        let put = marked.and_then(|()| self.maps.put_device(device.index, &device.device));
        let attached = put
            .map_err(Into::into)
            .and_then(|()| self.datapath.attach(device.index, &device.name, device.role));
        match attached {
            Ok(()) => {
                let _: Option<Instant> = self.failed.remove(&device.index);
                numbers.attached(self.told);
                drop(self.attached.insert(device.index, device));
            }
            Err(error) => {
                if let Entry::Vacant(place) = self.failed.entry(device.index) {
                    let _: &mut Instant = place.insert(Instant::now());
                    let error = crate::chain(&error);
                    warn!(device = device.name, error, "device has no programs yet");
                }
            }
        }
    }

    /// Puts right what somebody else did to our attachments. Says whether something was.
    pub(in crate::run) fn inspect(&mut self, numbers: &Numbers) -> bool {
        let Findings { repaired, failed, decelerated } = self.datapath.inspect();
        for index in failed {
            drop(self.attached.remove(&index));
            let _: &mut Instant = self.failed.entry(index).or_insert_with(Instant::now);
        }
        for fault in &repaired {
            numbers.repaired(*fault);
        }
        for (index, why) in decelerated {
            self.acceleration_changed |= self.accelerator.lose(index, why);
        }
        !repaired.is_empty()
    }
}
