//! XDP before tc where that can be, and whether what is known of it was reported.

use std::collections::{BTreeMap, BTreeSet};

use crate::config;
use crate::datapath::Datapath;
use crate::node::Link;
use crate::run::accelerator::Accelerator;

/// The devices with XDP, and those without for a reason.
#[derive(Debug)]
pub(super) struct Acceleration {
    accelerator: Accelerator,
    /// Where XDP is, or why it is not, is another than was last shown.
    has_changed: bool,
}

impl Acceleration {
    /// Counts the devices of an earlier run as accelerated until they are looked at.
    pub(super) fn after(datapath: &Datapath) -> Self {
        Self { accelerator: Accelerator::after(datapath), has_changed: false }
    }

    /// Attaches XDP to the interfaces that can have it, once tc knows.
    pub(super) fn apply(
        &mut self,
        setting: config::Acceleration,
        edges: &[&Link],
        datapath: &mut Datapath,
        tc_knows: bool,
    ) {
        self.has_changed |= self.accelerator.apply(setting, edges, datapath, tc_knows);
    }

    /// Devices have lost the program, and for these reasons it was not put back.
    pub(super) fn lose(&mut self, decelerated: Vec<(u32, String)>) {
        for (index, why) in decelerated {
            self.has_changed |= self.accelerator.lose(index, why);
        }
    }

    /// Whether some device has the program, or is to have it: tc must know.
    pub(super) const fn may_be_on(&self) -> bool {
        self.accelerator.may_be_on()
    }

    /// Whether a device waits for tc to know.
    pub(super) const fn waits(&self) -> bool {
        self.accelerator.waits()
    }

    /// Devices that XDP may send by.
    pub(super) fn sending(&self) -> BTreeSet<u32> {
        self.accelerator.sending()
    }

    /// Returns the state of XDP by interface (empty: attached), or `None` if it was reported before.
    pub(super) fn take(&mut self) -> Option<BTreeMap<String, String>> {
        std::mem::take(&mut self.has_changed).then(|| self.accelerator.shown())
    }
}
