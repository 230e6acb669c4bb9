//! Interfaces with an ambiguous role, and interfaces that are not served: each is logged once.

use tracing::warn;

use super::Devices;
use crate::node::settings;

impl Devices {
    /// Devices whose role is a guess, by name.
    pub(in crate::run) fn doubtful(&self) -> &[String] {
        &self.doubtful
    }

    pub(super) fn doubt(&mut self, doubtful: Vec<String>) {
        for device in doubtful.iter().filter(|device| !self.doubtful.contains(device)) {
            warn!(
                device,
                "treated as a pod interface, but it may lead outside; say which with \
                 --external-device or --pod-device"
            );
        }
        self.doubtful = doubtful;
    }

    /// Devices that packets are routed by and that have no programs.
    pub(super) fn miss(&mut self, unserved: Vec<String>) {
        for problem in unserved.iter().filter(|problem| !self.unserved.contains(problem)) {
            warn!(problem, "Services are not served on an interface");
        }
        self.unserved = unserved;
    }

    /// The problems of devices, attachments and source ports, for an operator.
    pub(in crate::run) fn problems(&self) -> Vec<String> {
        let ports = settings::shared_ports();
        [self.attachment_problems.as_slice(), &self.unserved, ports.as_slice()].concat()
    }

    pub(super) fn leave_out(&mut self, unreadable: Vec<String>) {
        for device in unreadable.iter().filter(|device| !self.unreadable.contains(device)) {
            warn!(
                device,
                "not served: its packets start with neither an Ethernet nor an IP header"
            );
        }
        self.unreadable = unreadable;
    }
}
