//! Keeps the XDP program attached to the external interfaces that can have it, and records why others do not.
//!
//! The programs at tc must expect packets from XDP before XDP is attached: only the flow shows that XDP has translated
//! a packet (ADR 0012).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use tracing::{info, warn};

use crate::config::Acceleration;
use crate::datapath::{Datapath, OCCUPIED};
use crate::node::{Hardware, Link, refusal};
use crate::syscall;

/// The operations on interfaces that the accelerator uses; a test has its own.
pub(super) trait Attach {
    /// Attaches the program to an interface. The error says why not.
    fn accelerate(&mut self, index: u32) -> Result<(), String>;

    /// Detaches the program from an interface; the error says why not.
    fn decelerate(&mut self, index: u32) -> Result<(), String>;

    /// Reports whether any interface has the program, of this run or an earlier one.
    fn is_accelerating(&self) -> bool;

    /// Checks that XDP may redirect to an interface. The error says why not.
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

/// The directory in which Calico pins XDP programs, if it uses XDP (`felix/bpf/bpf.go`).
const CALICO: &str = "/sys/fs/bpf/calico/xdp";

/// The last attempt at an interface, and its result.
#[derive(Debug)]
struct Attempt {
    device: String,
    /// Id of the XDP program on the interface before the attempt.
    found: u32,
    refused: Option<String>,
    /// Why XDP does not redirect although the program is attached.
    keeps: Option<String>,
    /// Whether the program was attached, was removed, and could not be attached again: to be retried.
    is_lost: bool,
}

impl Attempt {
    /// Reports whether the attempt is repeated even if nothing changed.
    fn is_tried_again(&self, setting: Acceleration) -> bool {
        self.is_lost || self.is_occupied() && setting == Acceleration::Native
    }

    /// Reports whether the interface is left to another program for good: its owner may only restart, and could not come
    /// back if ours took the place meanwhile.
    fn is_left(&self, setting: Acceleration) -> bool {
        self.is_occupied() && setting != Acceleration::Native
    }

    fn is_occupied(&self) -> bool {
        self.refused.as_deref() == Some(OCCUPIED)
    }
}

/// The external interfaces, with the last attempt at each.
#[derive(Debug, Default)]
pub(super) struct Accelerator {
    attempts: BTreeMap<u32, Attempt>,
    /// Whether an interface waits until tc expects packets from XDP.
    waits: bool,
    /// Whether an interface has the program, or is about to get it.
    may_be_on: bool,
}

impl Accelerator {
    /// Makes an accelerator that counts the interfaces of an earlier run as attached until they are inspected.
    pub(super) fn after(datapath: &impl Attach) -> Self {
        Self { may_be_on: datapath.is_accelerating(), ..Self::default() }
    }

    /// Attaches the program to the interfaces that can have it, once tc expects packets from XDP
    /// ([`Accelerator::may_be_on`]). Returns whether anything changed.
    pub(super) fn apply(
        &mut self,
        setting: Acceleration,
        external: &[&Link],
        datapath: &mut impl Attach,
        tc_knows: bool,
    ) -> bool {
        self.waits = false;
        let before = self.attempts.len();
        self.attempts.retain(|index, _| {
            let stays = external.iter().any(|link| link.index == *index);
            if !stays && let Err(error) = datapath.decelerate(*index) {
                warn!(index, error, "XDP program could not be detached");
            }
            stays
        });
        let mut changed = before != self.attempts.len();
        for link in external {
            // Another XDP program may have been detached without a notification (the kernel sends none for links), and
            // ours may have been removed.
            let is_new = |last: &Attempt| {
                let is_changed = last.is_tried_again(setting) || last.found != link.xdp;
                last.device != link.name || is_changed && !last.is_left(setting)
            };
            if self.attempts.get(&link.index).is_none_or(is_new) {
                changed |= self.try_interface(setting, link, datapath, tc_knows);
            }
            changed |= self.look_out(setting, link.index, datapath);
        }
        let may = |attempt: &Attempt| attempt.refused.is_none() || attempt.is_tried_again(setting);
        // A program that could not be detached, or one of an earlier run on another interface, is still attached.
        self.may_be_on = self.waits
            || self.attempts.values().any(may)
            || self.may_be_on && datapath.is_accelerating();
        changed
    }

    /// Updates whether an interface takes redirected frames, which can change at any time. Returns whether it did.
    fn look_out(&mut self, setting: Acceleration, index: u32, datapath: &impl Attach) -> bool {
        let Some(attempt) = self.attempts.get_mut(&index) else { return false };
        // Only interfaces with XDP are reported.
        let keeps = if attempt.refused.is_some() {
            None
        } else if setting == Acceleration::Native {
            datapath.takes_frames(index).err()
        } else {
            Some("only `acceleration: native` redirects past netfilter".to_owned())
        };
        let changed = attempt.keeps != keeps;
        attempt.keeps = keeps;
        changed
    }

    /// Reports whether an interface has the program, or is about to get it. tc must then expect packets from XDP.
    pub(super) const fn may_be_on(&self) -> bool {
        self.may_be_on
    }

    /// Reports whether an interface waits until tc expects packets from XDP.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }

    /// Returns the indices of the interfaces that XDP may redirect to.
    pub(super) fn redirect_targets(&self) -> BTreeSet<u32> {
        let redirects = |attempt: &Attempt| attempt.refused.is_none() && attempt.keeps.is_none();
        self.attempts.iter().filter(|(_, it)| redirects(it)).map(|(index, _)| *index).collect()
    }

    fn try_interface(
        &mut self,
        setting: Acceleration,
        link: &Link,
        datapath: &mut impl Attach,
        tc_knows: bool,
    ) -> bool {
        let (driver, bus) = match syscall::driver(&link.name) {
            Ok(known) => known,
            // Without file descriptors or memory nothing is known. Many drivers interrupt traffic when a program is
            // detached and attached again, so the one in place stays, and the next turn asks again.
            Err(error) if is_short_of_resources(&error) => return false,
            Err(_) => Default::default(),
        };
        let has_calico = Path::new(CALICO).exists();
        let refused = match refusal(setting, link, &Hardware { driver, bus }, has_calico) {
            Some(why) => {
                // The setting or the driver may have changed since an earlier run attached it.
                let removed = datapath.decelerate(link.index);
                Some(removed.err().unwrap_or(why))
            }
            // tc must expect packets from XDP first: only the flow shows it that XDP has translated a packet (ADR
            // 0012).
            None if !tc_knows => {
                self.waits = true;
                return false;
            }
            None => datapath.accelerate(link.index).err(),
        };
        let device = link.name.clone();
        let last = self.attempts.remove(&link.index);
        // `status` finds the attempt by the name of the interface.
        let is_same = |last: &Attempt| last.refused == refused && last.device == device;
        let changed = !last.as_ref().is_some_and(is_same);
        let is_lost = refused.is_some() && last.as_ref().is_some_and(|last| last.is_lost);
        let keeps = last.and_then(|last| last.keeps);
        let attempt = Attempt { device: device.clone(), found: link.xdp, refused, keeps, is_lost };
        if changed {
            match &attempt.refused {
                None => info!(interface = device, "XDP in use"),
                Some(why) => {
                    info!(interface = device, why, "XDP not in use; tc handles every packet");
                }
            }
        }
        drop(self.attempts.insert(link.index, attempt));
        changed
    }

    /// Records that an interface lost the program, and why it was not attached again. Returns whether the reason is
    /// new.
    pub(super) fn lose(&mut self, index: u32, why: String) -> bool {
        let Some(attempt) = self.attempts.get_mut(&index) else { return false };
        let is_news = attempt.refused.as_ref() != Some(&why);
        if is_news {
            let device = &attempt.device;
            warn!(interface = device, why, "XDP no longer in use; tc handles every packet");
        }
        (attempt.refused, attempt.is_lost) = (Some(why), true);
        is_news
    }

    /// Returns by interface name: empty if the program is attached and redirects, else why not.
    pub(super) fn refusals(&self) -> BTreeMap<String, String> {
        let why = |it: &Attempt| it.refused.clone().or_else(|| it.keeps.clone());
        let attempts = self.attempts.values();
        attempts.map(|it| (it.device.clone(), why(it).unwrap_or_default())).collect()
    }
}

fn is_short_of_resources(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

#[cfg(test)]
mod tests;
