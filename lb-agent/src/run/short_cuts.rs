//! Decides where packets may go past the stack (ADR 0021), and says why not elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::config::Settings;
use tracing::info;

use crate::config::{Config, Masquerade, ShortCuts as Setting};
use crate::datapath::Role;
use crate::node::{Assignment, bystanders};

/// What was found last.
#[derive(Debug)]
pub(super) struct ShortCuts {
    /// An earlier run left some.
    had: bool,
    /// Devices that packets may take short cuts by.
    by: BTreeSet<u32>,
    /// For people: whether there are short cuts, then devices without.
    shown: Vec<String>,
    /// It is another than was last taken.
    is_news: bool,
}

impl ShortCuts {
    /// What an earlier run left holds until the first look.
    pub(super) const fn after(before: &Settings) -> Self {
        Self {
            had: before.has(Settings::SHORT_CUTS),
            by: BTreeSet::new(),
            shown: Vec::new(),
            is_news: false,
        }
    }

    /// Looks again.
    pub(super) fn look(&mut self, config: &Config, attached: &BTreeMap<u32, Assignment>) {
        let (by, shown) = match obstacle(config) {
            Some(why) => (BTreeSet::new(), vec![format!("off: {why}")]),
            None => open(attached),
        };
        if shown.first() != self.shown.first() {
            let state = shown.first();
            info!(state, "short cuts past the stack");
        }
        self.is_news |= shown != self.shown;
        (self.by, self.shown) = (by, shown);
    }

    /// Whether there are any.
    pub(super) fn exist(&self) -> bool {
        if self.shown.is_empty() { self.had } else { !self.by.is_empty() }
    }

    /// Devices that packets may take short cuts by.
    pub(super) const fn by(&self) -> &BTreeSet<u32> {
        &self.by
    }

    /// For people, as [`ShortCuts::shown`]; nothing when it was taken before.
    pub(super) fn take_shown(&mut self) -> Option<Vec<String>> {
        std::mem::take(&mut self.is_news).then(|| self.shown.clone())
    }
}

/// What is against short cuts on the whole node.
fn obstacle(config: &Config) -> Option<String> {
    if config.masquerade.value == Masquerade::KubeProxy {
        return Some("masquerade is kube-proxy".to_owned());
    }
    match config.short_cuts.value {
        Setting::Off => Some("shortCuts is off".to_owned()),
        Setting::Always => None,
        Setting::Auto => bystanders::of_node(),
    }
}

/// The devices that nobody else cares for, and why the others have none.
fn open(attached: &BTreeMap<u32, Assignment>) -> (BTreeSet<u32>, Vec<String>) {
    let roles = attached.iter().map(|(index, device)| (*index, device.role)).collect();
    let mut taken = match bystanders::of_devices(&roles) {
        Ok(taken) => taken,
        Err(error) => {
            return (BTreeSet::new(), vec![format!("off: devices cannot be asked: {error}")]);
        }
    };
    let bare = attached.values().filter(|it| it.role == Role::Bare);
    taken.extend(bare.map(|it| (it.index, "it has no link-layer header".to_owned())));
    let by = attached.keys().filter(|index| !taken.contains_key(index)).copied().collect();
    let name = |index| attached.get(index).map_or("", |device| device.name.as_str());
    let others = taken.iter().map(|(index, why)| format!("not by {}: {why}", name(index)));
    (by, std::iter::once("on".to_owned()).chain(others).collect())
}
