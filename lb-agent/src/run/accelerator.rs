//! Keeps the XDP program where it belongs, and knows for each device to the outside why it is not there.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{info, warn};

use crate::config::Acceleration;
use crate::datapath::{Datapath, OCCUPIED};
use crate::node::{Hardware, Link, refusal};
use crate::syscall;

/// What came of the last try.
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

/// The devices to the outside.
#[derive(Debug, Default)]
pub(super) struct Accelerator {
    outcomes: BTreeMap<u32, Outcome>,
}

impl Accelerator {
    /// Brings the program to those of these devices that can have it. Says whether anything is another now.
    pub(super) fn apply(
        &mut self,
        setting: Acceleration,
        edges: &[&Link],
        datapath: &mut Datapath,
    ) -> bool {
        let before = self.outcomes.len();
        self.outcomes.retain(|index, _| {
            let stays = edges.iter().any(|link| link.index == *index);
            if !stays && let Err(error) = datapath.decelerate(*index) {
                warn!(index, error = crate::chain(&error), "XDP was not taken off");
            }
            stays
        });
        let mut changed = before != self.outcomes.len();
        for link in edges {
            // Who was in the way may have gone without a word (links are not told of), and ours may
            // have been taken off.
            let is_new = |last: &Outcome| {
                let is_occupied = last.refused.as_deref() == Some(OCCUPIED);
                let is_other = last.found != link.xdp || last.device != link.name;
                is_occupied || last.is_lost || is_other
            };
            if self.outcomes.get(&link.index).is_none_or(is_new) {
                changed |= self.attempt(setting, link, datapath);
            }
            changed |= self.look_out(setting, link.index, datapath);
        }
        changed
    }

    /// Whether a device takes what XDP sends can change at any time.
    fn look_out(&mut self, setting: Acceleration, index: u32, datapath: &Datapath) -> bool {
        let Some(outcome) = self.outcomes.get_mut(&index) else { return false };
        let keeps = if outcome.refused.is_some() {
            None
        } else if setting == Acceleration::Native {
            datapath.takes_frames(index).err()
        } else {
            Some("only `acceleration: native` sends past netfilter".to_owned())
        };
        let changed = outcome.keeps != keeps;
        outcome.keeps = keeps;
        changed
    }

    /// Devices that XDP may send by.
    pub(super) fn sending(&self) -> BTreeSet<u32> {
        let sends = |outcome: &Outcome| outcome.refused.is_none() && outcome.keeps.is_none();
        self.outcomes.iter().filter(|(_, it)| sends(it)).map(|(index, _)| *index).collect()
    }

    fn attempt(&mut self, setting: Acceleration, link: &Link, datapath: &mut Datapath) -> bool {
        let (driver, bus) = syscall::driver(&link.name).unwrap_or_default();
        let refused = match refusal(setting, link, &Hardware { driver, bus }) {
            Some(why) => {
                let removed = datapath.decelerate(link.index);
                Some(removed.map_or_else(|error| crate::chain(&error), |()| why))
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
                None => info!(device, "XDP accelerates"),
                Some(why) => info!(device, why, "XDP does not accelerate; tc does it all"),
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
            warn!(device, why, "XDP does not accelerate any more; tc does it all");
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
