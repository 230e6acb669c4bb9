//! Carries out what `node` decides: programs on devices, what the programs know of them, the node's addresses.

mod acceleration;
mod addresses;
mod attachment;
mod doubts;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lb_common::addr::Ip;
use lb_common::config::{Prefix, Settings};
use tracing::{info, warn};

use super::Error;
use super::accelerator::Accelerator;
use super::short_cuts::ShortCuts;
use crate::config::Config;
use crate::datapath::{Datapath, Role};
use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::node::{
    Assignment, Identity, Primary, Told, View, addresses, assignments, doubtful, settings,
    unreadable,
};
use crate::snapshot::NodeSpec;

/// How long the others wait for a device that takes no programs; it is tried every second for as long as it is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is attached, and what should be.
#[derive(Debug)]
pub(super) struct Devices {
    datapath: Datapath,
    maps: Maps,
    identity: Identity,
    netns_cookie: u64,
    /// Sources that count as pods of this node; an earlier run's until the Node object is known.
    local: [Prefix; 2],
    config: Arc<Config>,
    view: Option<View>,
    /// What told of it.
    told: Told,
    attached: BTreeMap<u32, Assignment>,
    /// Devices that took no programs, and since when.
    failed: BTreeMap<u32, Instant>,
    addresses: BTreeMap<Ip, u32>,
    /// Another layout's programs serve: nothing is attached before ours have everything.
    is_held: bool,
    /// Devices whose role is a guess.
    doubtful: Vec<String>,
    /// Devices whose packets the programs could not read.
    unreadable: Vec<String>,
    accelerator: Accelerator,
    /// Where XDP is, or why it is not, is another than was last shown.
    acceleration_changed: bool,
    short_cuts: ShortCuts,
    /// What the programs know may be done with devices: flags of `Device` beside those of [`Assignment`].
    told_flags: BTreeMap<u32, u32>,
    /// What an earlier run left was compared with what should be.
    is_pruned: bool,
}

impl Devices {
    /// Until the Node object is known, the node is what an earlier run took it for.
    pub(super) fn new(datapath: Datapath, config: Arc<Config>, maps: &Maps) -> Result<Self, Error> {
        let before = maps.settings()?;
        let primary = Primary { v4: address(before.node4), v6: address(before.node6) };
        let identity = config.identity(primary);
        Ok(Self {
            addresses: maps.addresses()?.into_iter().collect(),
            maps: datapath.maps()?,
            is_held: datapath.is_beside(),
            accelerator: Accelerator::after(&datapath),
            datapath,
            identity,
            netns_cookie: settings::netns_cookie()?,
            local: before.local,
            config,
            view: None,
            told: Told::List,
            attached: BTreeMap::new(),
            failed: BTreeMap::new(),
            doubtful: Vec::new(),
            unreadable: Vec::new(),
            acceleration_changed: false,
            short_cuts: ShortCuts::after(&before),
            told_flags: BTreeMap::new(),
            is_pruned: false,
        })
    }

    /// Another set of handles to the maps.
    pub(super) fn maps(&self) -> Result<Maps, Error> {
        Ok(self.datapath.maps()?)
    }

    /// Links and addresses are these now.
    pub(super) fn set_view(&mut self, view: View, told: Told) {
        (self.view, self.told) = (Some(view), told);
    }

    /// The Node object is this now.
    pub(super) fn set_node(
        &mut self,
        node: Option<&NodeSpec>,
        ips: (Option<IpAddr>, Option<IpAddr>),
    ) {
        if let Some(node) = node {
            self.identity.addresses = node.addresses.to_vec();
            self.identity.pod_ranges = self.config.pod_ranges(node);
            self.identity.primary = self.config.primary(Primary { v4: ips.0, v6: ips.1 });
            self.local = self.config.local(Some(node));
        }
    }

    /// The settings that follow from the node.
    pub(super) fn settings(&self) -> Settings {
        let settings = settings::settings(self.identity.primary, self.netns_cookie, &self.config);
        let short_cuts = if self.short_cuts.exist() { Settings::SHORT_CUTS } else { 0 };
        let accelerated = if self.accelerator.may_be_on() { Settings::ACCELERATED } else { 0 };
        let flags = settings.flags | short_cuts | accelerated;
        Settings { local: self.local, flags, ..settings }
    }

    /// Whether every device that should has its programs, or has refused them for long, and nothing else has.
    pub(super) fn is_complete(&self) -> bool {
        self.is_pruned && self.failed.values().all(|since| since.elapsed() >= PATIENCE)
    }

    /// Moves over what went into maps of an earlier run while programs were replaced. False where something of that
    /// run is left, to be tried again.
    pub(super) fn settle(&mut self) -> bool {
        let settled = self.datapath.settle();
        if let Err(error) = &settled {
            warn!(error = %crate::chain(error), "something of an earlier run is left; trying again");
        }
        settled.is_ok()
    }

    /// Brings devices and addresses up to date. What an earlier run attached is taken off only when the
    /// Node is known.
    pub(super) fn apply(&mut self, is_known: bool, numbers: &Numbers) {
        let Some(view) = self.view.as_ref().filter(|_| !self.is_held) else { return };
        let wanted = assignments(view, &self.identity);
        let own = addresses(view, &self.identity);
        let in_doubt = doubtful(view, &self.identity);
        let unreadable = unreadable(view, &self.identity);
        if !self.is_pruned
            && let Err(error) = self.datapath.carry()
        {
            warn!(error = %crate::chain(&error), "some entries were not carried over yet");
        }
        let indices: BTreeSet<u32> = wanted.iter().map(|device| device.index).collect();
        let mut is_changed = false;
        for device in wanted {
            if self.attached.get(&device.index) != Some(&device) {
                self.attach(device, numbers);
                is_changed = true;
            }
        }
        let gone: Vec<u32> =
            self.attached.keys().filter(|it| !indices.contains(it)).copied().collect();
        is_changed |= !gone.is_empty();
        for index in gone {
            self.detach(index);
        }
        // One that vanished while it was being attached may have one of its two links.
        let gone: Vec<u32> =
            self.failed.extract_if(.., |it, _| !indices.contains(it)).map(|(it, _)| it).collect();
        for index in gone {
            if let Err(error) = self.forget(index) {
                warn!(index, error, "device was not forgotten");
            }
        }
        if is_known && !self.is_pruned {
            self.prune(&indices);
        }
        self.put_addresses(&own);
        self.doubt(in_doubt);
        self.leave_out(unreadable);
        self.accelerate();
        // Services change more often than devices: who else is there is asked for these, and once a second.
        if is_changed {
            self.look_around();
        }
        self.tell();
        let of = |role| self.attached.values().filter(|it| it.role == role).count();
        let [pods, edges] = &numbers.devices;
        Numbers::set(pods, of(Role::Pod));
        Numbers::set(edges, of(Role::Edge) + of(Role::Bare));
    }

    /// Whether another layout's programs serve still.
    pub(super) const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Everything is programmed: what another layout served is served by ours from now on.
    pub(super) fn switch(&mut self) {
        if !self.is_held || self.view.is_none() {
            return;
        }
        match self.datapath.attach_sockets(&self.config.cgroup()) {
            Ok(()) => {
                self.is_held = false;
                info!("the data path of another version is taken over");
            }
            Err(error) => {
                warn!(error = %crate::chain(&error), "socket hooks are not attached yet");
            }
        }
    }

    /// Tries again what failed.
    pub(super) fn retry(&mut self, is_known: bool, numbers: &Numbers) {
        if !self.failed.is_empty() || (is_known && !self.is_pruned) {
            self.told = Told::Retry;
            self.apply(is_known, numbers);
        } else {
            self.accelerate();
            self.look_around();
            self.tell();
        }
    }
}

pub(super) fn address(ip: Ip) -> Option<IpAddr> {
    (ip != Ip::UNSPECIFIED).then(|| crate::show::words::ip(ip))
}
