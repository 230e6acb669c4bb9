//! The interfaces that have programs, and those flags of their entries in `DEVICES` that may change later: redirect by
//! XDP, and bypass.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::config::Device;
use tracing::{info, warn};

use crate::datapath::InterfaceRole;
use crate::maps::Maps;
use crate::node::Assignment;

/// The interfaces with programs, and the flags that their entries have besides those of the [`Assignment`]; by
/// interface index.
#[derive(Debug, Default)]
pub(super) struct Attached {
    devices: BTreeMap<u32, Assignment>,
    flags: BTreeMap<u32, u32>,
}

impl Attached {
    /// Reports whether an interface has the programs and the entry of this assignment.
    pub(super) fn has(&self, device: &Assignment) -> bool {
        self.devices.get(&device.index) == Some(device)
    }

    /// Reports whether an interface has the programs of this assignment, whatever its entry is.
    pub(super) fn has_programs(&self, device: &Assignment) -> bool {
        let of = |it: &Assignment| (it.number, it.role);
        self.devices.get(&device.index).is_some_and(|it| of(it) == of(device))
    }

    /// Returns the assignments of all interfaces with programs, by interface index.
    pub(super) const fn all(&self) -> &BTreeMap<u32, Assignment> {
        &self.devices
    }

    pub(super) fn insert(&mut self, device: Assignment) {
        drop(self.devices.insert(device.index, device));
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Assignment> {
        self.devices.remove(&index)
    }

    /// Removes and returns the interfaces whose index fulfils `is`.
    pub(super) fn extract(&mut self, mut is: impl FnMut(u32) -> bool) -> Vec<Assignment> {
        let extracted = self.devices.extract_if(.., |index, _| is(*index));
        extracted.map(|(_, device)| device).collect()
    }

    /// Returns the indices of all interfaces except these.
    pub(super) fn others(&self, indices: &BTreeSet<u32>) -> Vec<u32> {
        self.devices.keys().filter(|it| !indices.contains(it)).copied().collect()
    }

    /// Returns the number of interfaces with this role.
    pub(super) fn count(&self, role: InterfaceRole) -> usize {
        self.devices.values().filter(|it| it.role == role).count()
    }

    /// Returns the external interfaces, those without a link-layer header included.
    pub(super) fn external(&self) -> impl Iterator<Item = &Assignment> {
        self.devices.values().filter(|device| device.role.is_external())
    }

    /// Forgets the written flags of an interface. Call it when its entry is removed, or written without them.
    pub(super) fn forget_flags(&mut self, index: u32) {
        self.flags.remove(&index);
    }

    /// Writes for each interface whether it takes redirected frames, and whether its packets may bypass the stack.
    pub(super) fn write_flags(
        &mut self,
        redirect_targets: &BTreeSet<u32>,
        has_bypass: bool,
        maps: &mut Maps,
    ) {
        for (index, assignment) in &self.devices {
            let takes_frames =
                if redirect_targets.contains(index) { Device::TAKES_FRAMES } else { 0 };
            let has_link = matches!(assignment.role, InterfaceRole::Pod | InterfaceRole::External);
            let opens = if has_bypass && has_link { Device::BYPASS } else { 0 };
            write(&mut self.flags, maps, assignment, takes_frames | opens);
        }
    }
}

/// Writes the flags of an interface if they changed.
fn write(flags: &mut BTreeMap<u32, u32>, maps: &mut Maps, assignment: &Assignment, wanted: u32) {
    let Assignment { index, name, device, .. } = assignment;
    let written = flags.get(index).copied().unwrap_or(0);
    if written == wanted {
        return;
    }
    let all = device.flags | wanted;
    if let Err(error) = maps.put_device(*index, &Device { flags: all, ..*device }) {
        let error = crate::chain(&error);
        warn!(interface = name, error, "flags of the interface could not be written; retrying");
        return;
    }
    flags.insert(*index, wanted);
    if (written ^ wanted) & Device::TAKES_FRAMES != 0 {
        let enabled = wanted & Device::TAKES_FRAMES != 0;
        info!(interface = name, enabled, "XDP redirect switched");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_whose_addresses_change_keeps_its_programs() {
        let pod = Assignment {
            index: 7,
            number: 1,
            name: "veth7".into(),
            role: InterfaceRole::Pod,
            device: Device::default(),
            sources: Vec::new(),
        };
        let mut attached = Attached::default();
        assert!(!attached.has_programs(&pod));
        attached.insert(pod.clone());
        let device = Device { bridge: 3, ..pod.device };
        let changed = Assignment { device, ..pod.clone() };
        assert!(!attached.has(&changed) && attached.has_programs(&changed));
        assert!(!attached.has_programs(&Assignment { number: 2, ..pod.clone() }), "recreated");
        assert!(!attached.has_programs(&Assignment { role: InterfaceRole::External, ..pod }));
    }
}
