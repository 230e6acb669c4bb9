//! Keeps the XDP program attached where it belongs, and records for each external interface why it is not.
//!
//! tc must know before XDP is attached: only the flow shows that XDP has translated a packet (ADR 0012).

use std::collections::{BTreeMap, BTreeSet};

use tracing::{info, warn};

use crate::config::Acceleration;
use crate::datapath::{Datapath, OCCUPIED};
use crate::node::{Hardware, Link, refusal};
use crate::syscall;

/// The way to attach the program to devices.
pub(super) trait Attach {
    /// Puts it on a device, else says why not.
    fn accelerate(&mut self, index: u32) -> Result<(), String>;

    /// Takes it off.
    fn decelerate(&mut self, index: u32) -> Result<(), String>;

    /// Whether some device has it, of this run or an earlier one.
    fn is_accelerating(&self) -> bool;

    /// Whether it may send by a device, else why not.
    fn takes_frames(&self, index: u32) -> Result<(), String>;
}

impl Attach for Datapath {
    fn accelerate(&mut self, index: u32) -> Result<(), String> {
        Self::accelerate(self, index)
    }

    fn decelerate(&mut self, index: u32) -> Result<(), String> {
        Self::decelerate(self, index).map_err(|error| crate::chain(&error))
    }

    fn is_accelerating(&self) -> bool {
        Self::is_accelerating(self)
    }

    fn takes_frames(&self, index: u32) -> Result<(), String> {
        Self::takes_frames(self, index)
    }
}

/// The result of the last try.
#[derive(Debug)]
struct Outcome {
    device: String,
    /// The program that was there before.
    found: u32,
    refused: Option<String>,
    /// Why it sends nothing out itself, where the program is.
    keeps: Option<String>,
    /// It was there, went, and was not put back: to be tried again.
    is_lost: bool,
}

impl Outcome {
    /// Whether nothing has to change for another try.
    fn is_tried_again(&self) -> bool {
        self.is_lost || self.refused.as_deref() == Some(OCCUPIED)
    }
}

/// The devices to the outside.
#[derive(Debug, Default)]
pub(super) struct Accelerator {
    outcomes: BTreeMap<u32, Outcome>,
    /// Some device would have the program, if tc knew.
    waits: bool,
    /// Some device has it, or is to have it.
    may_be_on: bool,
}

impl Accelerator {
    /// Counts the devices of an earlier run as attached until they are looked at.
    pub(super) fn after(datapath: &impl Attach) -> Self {
        Self { may_be_on: datapath.is_accelerating(), ..Self::default() }
    }

    /// Brings the program to those of these devices that can have it, once tc knows ([`Accelerator::may_be_on`]). Says
    /// whether anything is another now.
    pub(super) fn apply(
        &mut self,
        setting: Acceleration,
        edges: &[&Link],
        datapath: &mut impl Attach,
        tc_knows: bool,
    ) -> bool {
        self.waits = false;
        let before = self.outcomes.len();
        self.outcomes.retain(|index, _| {
            let stays = edges.iter().any(|link| link.index == *index);
            if !stays && let Err(error) = datapath.decelerate(*index) {
                warn!(index, error, "XDP program could not be detached");
            }
            stays
        });
        let mut changed = before != self.outcomes.len();
        for link in edges {
            // A program that was in the way may have gone without a word (links are not told of), and ours
            // may have been removed.
            let is_new = |last: &Outcome| {
                let is_other = last.found != link.xdp || last.device != link.name;
                last.is_tried_again() || is_other
            };
            if self.outcomes.get(&link.index).is_none_or(is_new) {
                changed |= self.attempt(setting, link, datapath, tc_knows);
            }
            changed |= self.look_out(setting, link.index, datapath);
        }
        let may = |outcome: &Outcome| outcome.refused.is_none() || outcome.is_tried_again();
        // A program that could not be removed, and one of an earlier run elsewhere, is there still.
        self.may_be_on = self.waits
            || self.outcomes.values().any(may)
            || self.may_be_on && datapath.is_accelerating();
        changed
    }

    /// Whether a device takes what XDP sends can change at any time.
    fn look_out(&mut self, setting: Acceleration, index: u32, datapath: &impl Attach) -> bool {
        let Some(outcome) = self.outcomes.get_mut(&index) else { return false };
        let keeps = if outcome.refused.is_some() {
            None
        } else if setting == Acceleration::Native {
            datapath.takes_frames(index).err()
        } else {
            Some("only `acceleration: native` redirects past netfilter".to_owned())
        };
        let changed = outcome.keeps != keeps;
        outcome.keeps = keeps;
        changed
    }

    /// Whether some device has the program, or is to have it: tc must know.
    pub(super) const fn may_be_on(&self) -> bool {
        self.may_be_on
    }

    /// Whether a device waits for tc to know.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }

    /// Devices that XDP may send by.
    pub(super) fn sending(&self) -> BTreeSet<u32> {
        let sends = |outcome: &Outcome| outcome.refused.is_none() && outcome.keeps.is_none();
        self.outcomes.iter().filter(|(_, it)| sends(it)).map(|(index, _)| *index).collect()
    }

    fn attempt(
        &mut self,
        setting: Acceleration,
        link: &Link,
        datapath: &mut impl Attach,
        tc_knows: bool,
    ) -> bool {
        let (driver, bus) = syscall::driver(&link.name).unwrap_or_default();
        let refused = match refusal(setting, link, &Hardware { driver, bus }) {
            Some(why) => {
                let removed = datapath.decelerate(link.index);
                Some(removed.err().unwrap_or(why))
            }
            None if !tc_knows => {
                self.waits = true;
                return false;
            }
            None => datapath.accelerate(link.index).err(),
        };
        let device = link.name.clone();
        let last = self.outcomes.remove(&link.index);
        let changed = last.as_ref().is_none_or(|last| last.refused != refused);
        let is_lost = refused.is_some() && last.as_ref().is_some_and(|last| last.is_lost);
        let keeps = last.and_then(|last| last.keeps);
        let outcome = Outcome { device: device.clone(), found: link.xdp, refused, keeps, is_lost };
        if changed {
            match &outcome.refused {
                None => info!(device, "XDP in use"),
                Some(why) => info!(device, why, "XDP not in use; tc handles every packet"),
            }
        }
        drop(self.outcomes.insert(link.index, outcome));
        changed
    }

    /// A device has lost the program, and for this reason it was not put back. Says whether that is news.
    pub(super) fn lose(&mut self, index: u32, why: String) -> bool {
        let Some(outcome) = self.outcomes.get_mut(&index) else { return false };
        let is_news = outcome.refused.as_ref() != Some(&why);
        if is_news {
            let device = &outcome.device;
            warn!(device, why, "XDP no longer in use; tc handles every packet");
        }
        (outcome.refused, outcome.is_lost) = (Some(why), true);
        is_news
    }

    /// By device name: empty where the program is and sends, else why it does not, or is not there.
    pub(super) fn shown(&self) -> BTreeMap<String, String> {
        let why = |it: &Outcome| it.refused.clone().or_else(|| it.keeps.clone());
        let outcomes = self.outcomes.values();
        outcomes.map(|it| (it.device.clone(), why(it).unwrap_or_default())).collect()
    }
}

#[cfg(test)]
mod tests;
