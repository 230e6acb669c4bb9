//! Acceleration: XDP before tc, bypass of the stack at tc, and the flags by which the programs know of both.

use std::collections::BTreeMap;

use lb_common::config::{Device, Settings};

use super::Devices;
use crate::config::{Masquerade, ShortCuts};
use crate::datapath::Role;
use crate::node::Link;

impl Devices {
    /// Attaches XDP to the interfaces that can have it, once tc knows.
    pub(super) fn accelerate(&mut self) {
        let Some(view) = &self.view else { return };
        let is_edge = |role| matches!(role, Role::Edge | Role::L3);
        let edges = self.attached.values().filter(|device| is_edge(device.role));
        let edges: Vec<&Link> = edges.filter_map(|device| view.links.get(&device.index)).collect();
        let setting = self.config.acceleration.value;
        let settings = self.maps.settings();
        // Read from the map, not from memory: the write of the settings may have failed.
        let tc_knows = settings.is_ok_and(|settings| settings.has(Settings::ACCELERATED));
        self.acceleration_changed |=
            self.accelerator.apply(setting, &edges, &mut self.datapath, tc_knows);
    }

    /// Attaches XDP to the interfaces that waited for the settings.
    pub(in crate::run) fn accelerate_waiting(&mut self) {
        if self.accelerator.waits() {
            self.accelerate();
        }
    }

    /// Reports whether packets of known flows bypass the stack. Packets that are masqueraded at interfaces of pods
    /// cannot.
    pub(super) fn has_short_cuts(&self) -> bool {
        self.config.short_cuts.value == ShortCuts::On
            && self.config.masquerade.value != Masquerade::KubeProxy
    }

    /// Writes which interfaces take redirected frames, and at which ones packets may bypass the stack.
    pub(super) fn write_flags(&mut self) {
        let sending = self.accelerator.sending();
        for (index, assignment) in &self.attached {
            let sends = if sending.contains(index) { Device::TAKES_FRAMES } else { 0 };
            let has_link = matches!(assignment.role, Role::Pod | Role::Edge);
            let opens = if self.has_short_cuts() && has_link { Device::BYPASS } else { 0 };
            self.flags.write(&mut self.maps, assignment, sends | opens);
        }
    }

    /// Returns the state of XDP by interface (empty: attached), or `None` if it was reported before.
    pub(in crate::run) fn take_acceleration(&mut self) -> Option<BTreeMap<String, String>> {
        std::mem::take(&mut self.acceleration_changed).then(|| self.accelerator.shown())
    }
}
