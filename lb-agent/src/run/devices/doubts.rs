//! Devices whose role is a guess, and devices that are not served: each is said once.

use tracing::warn;

use super::Devices;

impl Devices {
    /// Devices whose role is a guess, by name.
    pub(in crate::run) fn doubtful(&self) -> &[String] {
        &self.doubtful
    }

    pub(super) fn doubt(&mut self, doubtful: Vec<String>) {
        for device in doubtful.iter().filter(|device| !self.doubtful.contains(device)) {
            warn!(
                device,
                "taken for the device of a pod, but it may lead outside: say which with \
                 --external-device or --pod-device"
            );
        }
        self.doubtful = doubtful;
    }

    pub(super) fn leave_out(&mut self, unreadable: Vec<String>) {
        for device in unreadable.iter().filter(|device| !self.unreadable.contains(device)) {
            warn!(device, "not served: its packets begin with neither Ethernet nor IP");
        }
        self.unreadable = unreadable;
    }
}
