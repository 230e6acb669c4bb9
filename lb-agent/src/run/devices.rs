//! Carries out the decisions of `node`: programs of interfaces, the interfaces and addresses that the programs know.

mod acceleration;
mod addresses;
mod attachment;
mod failures;
mod flags;
mod removal;
mod reports;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::{Prefix, Settings};
use tokio::sync::watch;
use tracing::{info, warn};

use self::failures::Failures;
use self::flags::DeviceFlags;
use self::reports::Reports;
use super::Error;
use super::accelerator::Accelerator;
use super::newcomers::Newcomers;
use crate::config::Config;
use crate::datapath::{Datapath, Role};
use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::node::watch::Shown;
use crate::node::{
    Assignment, ChangeSource, Identity, Primary, View, addresses, assignments, hidden, settings,
};
use crate::snapshot::NodeSpec;
use crate::syscall::netns_cookie;

/// The attachments, and those that should be there.
#[derive(Debug)]
pub(super) struct Devices {
    datapath: Datapath,
    maps: Maps,
    identity: Identity,
    netns_cookie: u64,
    /// Sources that count as pods of this node; an earlier run's until the Node object is known.
    local: [Prefix; 2],
    /// Where pods of the cluster have their addresses; an earlier run's until the Node object is known.
    pods: [Prefix; 2],
    config: Arc<Config>,
    view: Option<View>,
    /// The source of the news of it.
    source: ChangeSource,
    attached: BTreeMap<u32, Assignment>,
    /// Devices that another thread attaches before this one knows of them.
    newcomers: Arc<Newcomers>,
    /// Devices that took no programs.
    failed: Failures,
    addresses: BTreeMap<Ip, u32>,
    /// The filter of addresses that are this node's, or were: flows may still have one of those as their source.
    own: [u64; 4],
    /// [`Settings::secret`]: as long as the maps are there, so that pieces of one datagram stay alike.
    secret: u32,
    /// Another layout's programs serve: nothing is attached before ours have everything.
    is_held: bool,
    reports: Reports,
    /// The problems that the last inspection of attachments found and could not put right for good.
    attachment_problems: Vec<String>,
    /// Since when pins are missing that cannot be put back.
    unpinned: Option<Instant>,
    accelerator: Accelerator,
    /// Where XDP is, or why it is not, is another than was last shown.
    acceleration_changed: bool,
    flags: DeviceFlags,
    /// The links of an earlier run were compared with the wanted ones.
    is_pruned: bool,
}

impl Devices {
    /// Until the Node object is known, the node is what an earlier run took it for.
    pub(super) fn new(
        mut datapath: Datapath,
        config: Arc<Config>,
        maps: &Maps,
        (views, numbers): (watch::Receiver<Shown>, Arc<Numbers>),
    ) -> Result<Self, Error> {
        let before = maps.settings()?;
        let primary = Primary { v4: address(before.node4), v6: address(before.node6) };
        let identity = Identity::of(&config, primary);
        Ok(Self {
            addresses: maps.addresses()?.into_iter().collect(),
            maps: datapath.maps()?,
            newcomers: Newcomers::start(&mut datapath, views, numbers)?,
            is_held: datapath.is_upgrading(),
            accelerator: Accelerator::after(&datapath),
            datapath,
            identity,
            netns_cookie: netns_cookie()?,
            local: before.local,
            pods: before.pods,
            own: before.own,
            secret: if before.secret == 0 { settings::secret() } else { before.secret },
            config,
            view: None,
            source: ChangeSource::List,
            attached: BTreeMap::new(),
            failed: Failures::default(),
            reports: Reports::default(),
            attachment_problems: Vec::new(),
            unpinned: None,
            acceleration_changed: false,
            flags: DeviceFlags::default(),
            is_pruned: false,
        })
    }

    /// Another set of handles to the maps.
    pub(super) fn maps(&self) -> Result<Maps, Error> {
        Ok(self.datapath.maps()?)
    }

    /// Links and addresses are these now.
    pub(super) fn set_view(&mut self, view: View, source: ChangeSource) {
        (self.view, self.source) = (Some(view), source);
    }

    /// The Node object is this now.
    pub(super) fn set_node(
        &mut self,
        node: Option<&NodeSpec>,
        ips: (Option<IpAddr>, Option<IpAddr>),
    ) {
        if let Some(node) = node {
            self.identity.learn(&self.config, node, Primary { v4: ips.0, v6: ips.1 });
            self.local = self.config.local(Some(node));
            self.pods = self.config.pods(Some(node));
        }
    }

    /// The settings that follow from the node.
    pub(super) fn settings(&self) -> Settings {
        let settings = settings::settings(self.identity.primary, self.netns_cookie, &self.config);
        let short_cuts = if self.has_short_cuts() { Settings::SHORT_CUTS } else { 0 };
        let accelerated = if self.accelerator.may_be_on() { Settings::ACCELERATED } else { 0 };
        let flags = settings.flags | short_cuts | accelerated;
        let mut settings = Settings {
            local: self.local,
            pods: self.pods,
            own: self.own,
            secret: self.secret,
            flags,
            ..settings
        };
        // Before programs come that must know which answers are to this node.
        if let Some(view) = &self.view {
            for ip in addresses(view, &self.identity).keys() {
                settings.add_own(ip);
            }
        }
        settings
    }

    /// Whether every device that should has its programs, or has refused them for long, and nothing else has.
    pub(super) fn is_complete(&self) -> bool {
        self.is_pruned && self.failed.are_old(Instant::now())
    }

    /// Copies entries that went into maps of an earlier run while programs were replaced, and removes that run's programs.
    /// False where something of that run is left, to be tried again.
    pub(super) fn finish_upgrade(&mut self) -> bool {
        let finished = self.datapath.finish_upgrade();
        if let Err(error) = &finished {
            warn!(error = %crate::chain(error), "leftovers of an earlier run could not be removed; retrying");
        }
        finished.is_ok()
    }

    /// Brings devices and addresses up to date. Programs that an earlier run attached are taken off only when the
    /// Node is known.
    pub(super) fn apply(&mut self, is_known: bool, numbers: &Numbers) {
        let Some(view) = self.view.as_ref().filter(|_| !self.is_held) else { return };
        let wanted = assignments(view, &self.identity);
        let own = addresses(view, &self.identity);
        let reports = Reports::of(view, &self.identity);
        if !self.is_pruned
            && let Err(error) = self.datapath.carry()
        {
            warn!(error = %crate::chain(&error), "some entries of the previous layout were not copied yet; retrying");
        }
        // New interfaces first: a pod without programs loses packets, a vanished one costs nothing.
        let indices: BTreeSet<u32> = wanted.iter().map(|device| device.index).collect();
        for device in wanted {
            if self.attached.get(&device.index) != Some(&device) && !self.newcomers.keeps(&device) {
                self.attach(device, numbers);
            }
        }
        let gone: Vec<u32> =
            self.attached.keys().filter(|it| !indices.contains(it)).copied().collect();
        for index in gone {
            self.detach(index);
        }
        self.attach_made_anew(numbers);
        // One that vanished while it was being attached may have one of its two links.
        let others = [self.failed.take_others(&indices), self.newcomers.take_others(&indices)];
        for index in others.concat() {
            if let Err(error) = self.forget(index) {
                warn!(index, error, "removing the interface failed");
            }
        }
        // Roles depend on the Node's addresses: without them a served interface could seem to be no external one.
        if is_known && !self.is_pruned {
            self.prune(&indices);
        }
        if self.is_pruned && self.datapath.is_alone() {
            self.newcomers.open(&self.identity);
        }
        self.put_addresses(&own);
        reports.replace(&mut self.reports);
        self.accelerate();
        self.write_flags();
        let of = |role| self.attached.values().filter(|it| it.role == role).count();
        let [pods, edges] = &numbers.devices;
        Numbers::set(pods, of(Role::Pod) + self.newcomers.count());
        Numbers::set(edges, of(Role::Edge) + of(Role::L3));
    }

    /// Names of interfaces whose role is a guess.
    pub(super) fn ambiguous(&self) -> &[String] {
        &self.reports.ambiguous
    }

    /// The problems of interfaces, attachments and source ports, for an operator.
    pub(super) fn problems(&self) -> Vec<String> {
        let failed = self.failed.problems(Instant::now());
        let ports = settings::shared_ports();
        let Reports { unserved, hidden, .. } = &self.reports;
        [failed.as_slice(), &self.attachment_problems, unserved, hidden, ports.as_slice()].concat()
    }

    /// Finds the interfaces of pods by which packets to these networks of Services bypass the programs.
    pub(super) fn look_at_hidden(&mut self, networks: impl FnOnce() -> BTreeSet<IpNet>) {
        let problems = self.view.as_ref().map(|view| hidden::problems(view, networks));
        self.reports.hide(problems.unwrap_or_default());
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
                info!("data path of another version replaced");
            }
            Err(error) => {
                warn!(error = %crate::chain(&error), "socket hooks could not be attached yet; retrying");
            }
        }
    }

    /// Tries again what failed.
    pub(super) fn retry(&mut self, is_known: bool, numbers: &Numbers) {
        if self.newcomers.count() > 0 || !self.failed.is_empty() || (is_known && !self.is_pruned) {
            self.source = ChangeSource::Retry;
            self.apply(is_known, numbers);
        } else {
            self.accelerate();
            self.write_flags();
        }
    }
}

pub(super) fn address(ip: Ip) -> Option<IpAddr> {
    (ip != Ip::UNSPECIFIED).then(|| IpAddr::from(ip))
}
