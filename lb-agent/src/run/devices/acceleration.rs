//! Before the stack and past it: XDP and short cuts where they can be, and what the programs know of both.

use std::collections::BTreeMap;

use lb_common::config::{Device, Settings};
use tracing::{info, warn};

use super::Devices;
use crate::config::{Masquerade, ShortCuts};
use crate::datapath::Role;
use crate::node::Link;

impl Devices {
    /// Puts XDP before tc where that can be, and tc knows of it.
    pub(super) fn accelerate(&mut self) {
        let Some(view) = &self.view else { return };
        let is_edge = |role| matches!(role, Role::Edge | Role::L3);
        let edges = self.attached.values().filter(|device| is_edge(device.role));
        let edges: Vec<&Link> = edges.filter_map(|device| view.links.get(&device.index)).collect();
        let setting = self.config.acceleration.value;
        let settings = self.maps.settings();
        let tc_knows = settings.is_ok_and(|settings| settings.has(Settings::ACCELERATED));
        self.acceleration_changed |=
            self.accelerator.apply(setting, &edges, &mut self.datapath, tc_knows);
    }

    /// The same for devices that waited for the settings.
    pub(in crate::run) fn accelerate_waiting(&mut self) {
        if self.accelerator.waits() {
            self.accelerate();
        }
    }

    /// Whether packets of known flows bypass the stack. Packets that are masqueraded at pods' devices do not.
    pub(super) fn has_short_cuts(&self) -> bool {
        self.config.short_cuts.value == ShortCuts::On
            && self.config.masquerade.value != Masquerade::KubeProxy
    }

    /// Tells the programs what may be done with each device.
    pub(super) fn tell(&mut self) {
        let sending = self.accelerator.sending();
        for (index, assignment) in &self.attached {
            let sends = if sending.contains(index) { Device::TAKES_FRAMES } else { 0 };
            let has_link = matches!(assignment.role, Role::Pod | Role::Edge);
            let opens = if self.has_short_cuts() && has_link { Device::SHORT_CUT } else { 0 };
            let (told, wanted) = (self.told_flags.get(index).copied().unwrap_or(0), sends | opens);
            if told == wanted {
                continue;
            }
            let flags = assignment.device.flags | wanted;
            let name = &assignment.name;
            if let Err(error) = self.maps.put_device(*index, &Device { flags, ..assignment.device })
            {
                warn!(device = name, error = crate::chain(&error), "writing the interface failed");
                continue;
            }
            self.told_flags.insert(*index, wanted);
            if (told ^ wanted) & Device::TAKES_FRAMES != 0 {
                let is_sending = sends != 0;
                info!(device = name, is_sending, "XDP redirect switched");
            }
        }
    }

    /// Where XDP is (with an empty text) or why it is not, by device; nothing when that was told before.
    pub(in crate::run) fn take_acceleration(&mut self) -> Option<BTreeMap<String, String>> {
        std::mem::take(&mut self.acceleration_changed).then(|| self.accelerator.shown())
    }
}
