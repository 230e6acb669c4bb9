//! Carries out the decisions of `node`: attaches programs to interfaces, and writes the interfaces and addresses that
//! the programs look up.

mod acceleration;
mod addresses;
mod attachment;
mod failures;
mod flags;
mod removal;
mod reports;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::{AddressFilter, Prefix};
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
    Assignment, ChangeSource, Identity, Primary, View, addresses, assignments, hidden,
    settings as node_settings,
};
use crate::snapshot::NodeSpec;

/// The attached and the wanted interfaces, with the data path.
#[derive(Debug)]
pub(super) struct Devices {
    datapath: Datapath,
    maps: Maps,
    identity: Identity,
    netns_cookie: u64,
    /// Prefixes of local pods; those of an earlier run until the Node object is known.
    local: [Prefix; 2],
    /// Prefixes of the cluster's pods; those of an earlier run until the Node object is known.
    pods: [Prefix; 2],
    config: Arc<Config>,
    view: Option<View>,
    /// How the current view was learnt.
    source: ChangeSource,
    attached: BTreeMap<u32, Assignment>,
    /// Interfaces of new pods, which a thread of its own attaches first.
    newcomers: Arc<Newcomers>,
    /// Interfaces that refused their programs.
    failed: Failures,
    addresses: BTreeMap<Ip, u32>,
    /// Filter of the addresses that this node has or had: flows may still have an old one as their source.
    own: AddressFilter,
    /// `NodeSettings::secret`. It is as old as the maps, so that all fragments of a datagram are treated alike.
    secret: u32,
    /// Whether another layout's programs serve. Nothing is attached then until ours have everything.
    is_held: bool,
    reports: Reports,
    /// Problems that the last inspection found and could not repair for good.
    attachment_problems: Vec<String>,
    /// Time since which pins are missing and cannot be restored.
    unpinned: Option<Instant>,
    accelerator: Accelerator,
    /// Whether the state of XDP differs from what was last reported.
    acceleration_changed: bool,
    flags: DeviceFlags,
    /// Whether the links of an earlier run were compared with the wanted ones.
    is_pruned: bool,
}

impl Devices {
    /// Starts with the node's addresses and prefixes from an earlier run's maps, until the Node object is known.
    pub(super) fn new(
        mut datapath: Datapath,
        config: Arc<Config>,
        maps: &Maps,
        (views, numbers): (watch::Receiver<Shown>, Arc<Numbers>),
    ) -> Result<Self, Error> {
        let before = maps.settings()?.node;
        let primary = Primary { v4: address(before.address4), v6: address(before.address6) };
        let identity = config.identity(primary);
        Ok(Self {
            addresses: maps.addresses()?.into_iter().collect(),
            maps: datapath.maps()?,
            newcomers: Newcomers::start(&mut datapath, views, numbers)?,
            is_held: datapath.is_upgrading(),
            accelerator: Accelerator::after(&datapath),
            datapath,
            identity,
            netns_cookie: node_settings::netns_cookie()?,
            local: before.local,
            pods: before.pods,
            own: before.own,
            secret: if before.secret == 0 { node_settings::secret() } else { before.secret },
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

    /// Opens another set of handles to the maps.
    pub(super) fn maps(&self) -> Result<Maps, Error> {
        Ok(self.datapath.maps()?)
    }

    /// Sets the current links and addresses.
    pub(super) fn set_view(&mut self, view: View, source: ChangeSource) {
        (self.view, self.source) = (Some(view), source);
    }

    /// Sets the current Node object; an unknown one leaves everything as it is.
    pub(super) fn set_node(
        &mut self,
        node: Option<&NodeSpec>,
        ips: (Option<IpAddr>, Option<IpAddr>),
    ) {
        // A Node object that is missing for a moment must not change the roles of interfaces.
        if let Some(node) = node {
            self.identity.addresses = node.addresses.to_vec();
            self.identity.pod_ranges = self.config.pod_ranges(node);
            self.identity.primary = self.config.primary(Primary { v4: ips.0, v6: ips.1 });
            self.local = self.config.local(Some(node));
            self.pods = self.config.pods(Some(node));
        }
    }

    /// Reports whether every interface that should have programs has them, or has refused them for long, and no other
    /// has.
    pub(super) fn is_complete(&self) -> bool {
        self.is_pruned && self.failed.are_old(Instant::now())
    }

    /// Copies the entries that packets wrote into an earlier run's maps while programs were replaced, and removes that
    /// run's programs. Returns false if something remains, to be retried.
    pub(super) fn finish_upgrade(&mut self) -> bool {
        let finished = self.datapath.finish_upgrade();
        if let Err(error) = &finished {
            warn!(error = %crate::chain(error), "leftovers of an earlier run could not be removed; retrying");
        }
        finished.is_ok()
    }

    /// Updates interfaces and addresses. Programs that an earlier run attached are only detached when the Node is
    /// known.
    pub(super) fn apply(&mut self, is_known: bool, numbers: &Numbers) {
        let Some(view) = self.view.as_ref().filter(|_| !self.is_held) else { return };
        let wanted = assignments(view, &self.identity);
        let own = addresses(view, &self.identity);
        let reports = Reports::of(view, &self.identity);
        // Right before the first programs are replaced, so that few entries are missing afterwards.
        if !self.is_pruned
            && let Err(error) = self.datapath.carry()
        {
            warn!(error = %crate::chain(&error), "some entries of the previous layout were not copied yet; retrying");
        }
        // New interfaces first: the packets of a pod without programs are lost, whereas a vanished interface costs
        // nothing.
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
        // An interface that vanished while it was attached may have only one of its two links.
        let others = [self.failed.take_others(&indices), self.newcomers.take_others(&indices)];
        for index in others.concat() {
            if let Err(error) = self.forget(index) {
                warn!(index, error, "removing the interface failed");
            }
        }
        // Roles depend on the Node's addresses: without them, an external interface of an earlier run could seem to be
        // none.
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

    /// Returns the names of interfaces whose role is a guess.
    pub(super) fn ambiguous(&self) -> &[String] {
        &self.reports.ambiguous
    }

    /// Returns the problems of interfaces, attachments and source ports, for operators.
    pub(super) fn problems(&self) -> Vec<String> {
        let failed = self.failed.problems(Instant::now());
        let ports = node_settings::shared_ports();
        let Reports { unserved, hidden, .. } = &self.reports;
        [failed.as_slice(), &self.attachment_problems, unserved, hidden, ports.as_slice()].concat()
    }

    /// Finds interfaces of pods by which packets to these networks of Services bypass the programs.
    pub(super) fn look_at_hidden(&mut self, networks: impl FnOnce() -> BTreeSet<IpNet>) {
        let problems = self.view.as_ref().map(|view| hidden::problems(view, networks));
        self.reports.hide(problems.unwrap_or_default());
    }

    /// Reports whether another layout's programs still serve.
    pub(super) const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Replaces the programs of another layout, once everything is programmed.
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

    /// Retries interfaces that failed, and the flags that depend on them.
    pub(super) fn retry(&mut self, is_known: bool, numbers: &Numbers) {
        if self.newcomers.count() > 0 || !self.failed.is_empty() || (is_known && !self.is_pruned) {
            // The metric of attached interfaces tells retries from events.
            self.source = ChangeSource::Retry;
            self.apply(is_known, numbers);
        } else {
            self.accelerate();
            self.write_flags();
        }
    }
}

pub(super) fn address(ip: Ip) -> Option<IpAddr> {
    (ip != Ip::UNSPECIFIED).then(|| crate::show::words::ip(ip))
}
