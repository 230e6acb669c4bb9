//! XDP on the external interfaces that can have it, and whether its current state was reported.

use std::collections::{BTreeMap, BTreeSet};

use crate::config;
use crate::datapath::Datapath;
use crate::node::Link;
use crate::run::accelerator::Accelerator;

/// The state of XDP: the interfaces with it, and those without it for a reason.
#[derive(Debug)]
pub(super) struct AccelerationState {
    accelerator: Accelerator,
    /// Whether the state of XDP has changed since it was last reported.
    has_changed: bool,
}

impl AccelerationState {
    /// Starts with the interfaces of an earlier run, which count as attached until they are inspected.
    pub(super) fn after(datapath: &Datapath) -> Self {
        Self { accelerator: Accelerator::after(datapath), has_changed: false }
    }

    /// Attaches XDP to the interfaces that can have it, once tc expects packets from XDP.
    pub(super) fn apply(
        &mut self,
        setting: config::Acceleration,
        external: &[&Link],
        datapath: &mut Datapath,
        tc_knows: bool,
    ) {
        self.has_changed |= self.accelerator.apply(setting, external, datapath, tc_knows);
    }

    /// Records the interfaces that lost the program, with the reasons why it was not attached again.
    pub(super) fn lose(&mut self, decelerated: Vec<(u32, String)>) {
        for (index, why) in decelerated {
            self.has_changed |= self.accelerator.lose(index, why);
        }
    }

    /// Reports whether an interface has the program, or is about to get it. tc must then expect packets from XDP.
    pub(super) const fn may_be_on(&self) -> bool {
        self.accelerator.may_be_on()
    }

    /// Reports whether an interface waits until tc expects packets from XDP.
    pub(super) const fn waits(&self) -> bool {
        self.accelerator.waits()
    }

    /// Returns the indices of the interfaces that XDP may redirect to.
    pub(super) fn redirect_targets(&self) -> BTreeSet<u32> {
        self.accelerator.redirect_targets()
    }

    /// Returns the state of XDP by interface (empty: attached), or `None` if it was reported before.
    pub(super) fn take(&mut self) -> Option<BTreeMap<String, String>> {
        std::mem::take(&mut self.has_changed).then(|| self.accelerator.refusals())
    }
}
