//! Flags of interfaces that change while programs are attached: redirect by XDP, and bypass of the stack.

use std::collections::BTreeMap;

use lb_common::config::Device;
use tracing::{info, warn};

use crate::maps::Maps;
use crate::node::Assignment;

/// The flags written besides those of each [`Assignment`], by interface index.
#[derive(Debug, Default)]
pub(super) struct DeviceFlags(BTreeMap<u32, u32>);

impl DeviceFlags {
    /// Forgets the flags of an interface whose entry was removed, or written without them.
    pub(super) fn forget(&mut self, index: u32) {
        self.0.remove(&index);
    }

    /// Writes the flags of an interface if they changed.
    pub(super) fn write(&mut self, maps: &mut Maps, assignment: &Assignment, wanted: u32) {
        let Assignment { index, name, device, .. } = assignment;
        let written = self.0.get(index).copied().unwrap_or(0);
        if written == wanted {
            return;
        }
        let flags = device.flags | wanted;
        if let Err(error) = maps.put_device(*index, &Device { flags, ..*device }) {
            warn!(device = name, error = crate::chain(&error), "writing the interface failed");
            return;
        }
        // Only after the write: a failed one is repeated.
        self.0.insert(*index, wanted);
        if (written ^ wanted) & Device::TAKES_FRAMES != 0 {
            let enabled = wanted & Device::TAKES_FRAMES != 0;
            info!(device = name, enabled, "XDP redirect switched");
        }
    }
}
