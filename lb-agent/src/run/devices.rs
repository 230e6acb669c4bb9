//! Carries out the decisions of `node`: attaches programs to interfaces, and writes the interfaces and addresses that
//! the programs look up.

mod acceleration;
mod addresses;
mod attached;
mod attachments;
mod facts;
mod failures;
mod reports;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::config::Settings;
use lb_common::config::address::NODE_PORTS;
use tokio::sync::watch;

use self::acceleration::AccelerationState;
use self::addresses::Addresses;
use self::attachments::Attachments;
use self::facts::Facts;
pub(super) use self::facts::address;
use self::reports::Reports;
use super::error::Error;
use crate::config::Config;
use crate::datapath::{Datapath, InterfaceRole};
use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::node::host::{conntrack, forwarding};
use crate::node::watch::{Published, PublishedView};
use crate::node::{
    Identity, NetnsView, Primary, addresses, assignments, hidden, kept, settings as node_settings,
    stranded,
};
use crate::snapshot::NodeSpec;
use crate::sweep::OwnAddresses;

/// The interfaces and addresses of the node, as they are and as the data path has them.
#[derive(Debug)]
pub(super) struct Devices {
    maps: Maps,
    facts: Facts,
    view: Option<Arc<NetnsView>>,
    attachments: Attachments,
    addresses: Addresses,
    /// Addresses at which no answer can arrive.
    stranded: BTreeSet<Ip>,
    acceleration: AccelerationState,
    reports: Reports,
}

impl Devices {
    /// Starts with the node's addresses and prefixes from an earlier run's maps, until the Node object is known.
    pub(super) fn new(
        datapath: Datapath,
        config: Arc<Config>,
        maps: &Maps,
        views: watch::Receiver<PublishedView>,
        numbers: Arc<Numbers>,
    ) -> Result<Self, Error> {
        let before = maps.settings()?.node;
        Ok(Self {
            facts: Facts::after(&before, config)?,
            view: None,
            addresses: Addresses::after(maps, &before)?,
            stranded: BTreeSet::new(),
            acceleration: AccelerationState::after(&datapath),
            maps: datapath.maps()?,
            attachments: Attachments::after(datapath, views, numbers)?,
            reports: Reports::default(),
        })
    }

    /// Opens another set of handles to the maps.
    pub(super) fn maps(&self) -> Result<Maps, Error> {
        self.attachments.maps()
    }

    /// Sets the current links and addresses.
    pub(super) fn set_view(&mut self, Published { view, source, at }: Published) {
        self.view = Some(view);
        self.attachments.follow(source, at);
    }

    /// Sets the current Node object; an unknown one leaves everything as it is.
    pub(super) fn set_node(&mut self, node: Option<&NodeSpec>, primary: Primary) {
        // A Node object that is missing for a moment must not change the roles of interfaces.
        if let Some(node) = node {
            self.facts.learn(node, primary);
        }
    }

    /// Reports whether every interface that should have programs has them, or has refused them for long, and no other
    /// interface has any.
    pub(super) fn is_complete(&self) -> bool {
        self.attachments.is_complete()
    }

    /// Copies the entries that packets wrote into an earlier run's maps while programs were replaced, and removes that
    /// run's programs. Returns false if something remains, to be retried.
    pub(super) fn finish_upgrade(&mut self) -> bool {
        self.attachments.finish_upgrade()
    }

    /// Updates interfaces and addresses. Programs that an earlier run attached are only detached when the Node is
    /// known.
    pub(super) fn apply(&mut self, is_known: bool, numbers: &Numbers) {
        let Some(view) = self.view.as_ref().filter(|_| !self.attachments.is_held()) else { return };
        let identity = &self.facts.identity;
        let mut wanted = assignments(view, identity);
        let own = addresses(view, identity);
        self.stranded = stranded(view, &wanted);
        let reports = Reports::of(view, identity, &wanted);
        // The reports and the stranded addresses above are about interfaces with a role: no answer arrives by one that
        // is only kept.
        wanted.extend(kept(view, identity, self.attachments.all(), &wanted));
        self.attachments.apply(wanted, is_known, &mut self.maps, numbers);
        self.attachments.open(identity);
        self.addresses.put(&own, &mut self.maps);
        reports.replace(&mut self.reports);
        self.accelerate();
        self.attachments.count(numbers);
    }

    /// Tries again what failed: interfaces without programs, XDP, and flags that were not written.
    pub(super) fn retry(&mut self, is_known: bool, numbers: &Numbers) {
        if self.attachments.is_unfinished(is_known) {
            self.attachments.retry();
            self.apply(is_known, numbers);
        } else {
            self.accelerate();
        }
    }

    /// Attaches XDP where possible, and writes the flags of the interfaces.
    fn accelerate(&mut self) {
        self.attach_xdp();
        let redirect_targets = self.acceleration.redirect_targets();
        let (_, attached) = self.attachments.parts();
        attached.write_flags(&redirect_targets, self.facts.config.has_bypass(), &mut self.maps);
    }

    fn attach_xdp(&mut self) {
        let Some(view) = &self.view else { return };
        let (datapath, attached) = self.attachments.parts();
        let setting = self.facts.config.acceleration.value;
        let settings = self.maps.settings();
        // The map is read, because the write of the settings may still wait: before tc knows of XDP, it could translate
        // a packet once more whose backend is a frontend itself (ADR 0012).
        let tc_knows = settings.is_ok_and(|settings| settings.has(Settings::ACCELERATED));
        let external = attached.external().filter_map(|device| view.links.get(&device.index));
        self.acceleration.apply(setting, &external.collect::<Vec<_>>(), datapath, tc_knows);
    }

    /// Attaches XDP to the interfaces that waited for the settings.
    pub(super) fn accelerate_waiting(&mut self) {
        if self.acceleration.waits() {
            self.attach_xdp();
        }
    }

    /// Returns the state of XDP by interface, empty if attached and else the reason why not; `None` if it was reported
    /// before.
    pub(super) fn take_acceleration(&mut self) -> Option<BTreeMap<String, String>> {
        self.acceleration.take()
    }

    /// Repairs our attachments after changes by other programs. Returns whether anything was repaired.
    pub(super) fn inspect(&mut self, numbers: &Numbers) -> bool {
        let (is_repaired, decelerated) = self.attachments.inspect(&mut self.maps, numbers);
        self.acceleration.lose(decelerated);
        is_repaired
    }

    /// Returns the time since when pins are missing and cannot be restored.
    pub(super) const fn unpinned_since(&self) -> Option<Instant> {
        self.attachments.unpinned_since()
    }

    /// Returns the addresses of all interfaces, and those at which no answer can arrive.
    pub(super) fn own(&self) -> OwnAddresses {
        let view = self.view.iter();
        let all = view.flat_map(|view| view.addresses.iter().map(|own| Ip::from(own.ip)));
        OwnAddresses { all: all.collect(), stranded: self.stranded.clone() }
    }

    /// Returns the names of interfaces whose role is a guess.
    pub(super) fn ambiguous(&self) -> &[String] {
        &self.reports.ambiguous
    }

    /// Returns the problems of interfaces, addresses, attachments, source ports, timeouts of netfilter and forwarding.
    pub(super) fn problems(&self) -> Vec<String> {
        let (attachments, ports) = (self.attachments.problems(), node_settings::overlap_of_ports());
        let Reports { unserved, hidden, .. } = &self.reports;
        let addresses = self.addresses.problem().map_or(&[][..], slice::from_ref);
        let forgotten = conntrack::problem(&self.facts.config.lifetimes());
        let external = self.attachments.external();
        let primary = self.primary();
        let serves = [primary.v4.is_some(), primary.v6.is_some()];
        let closed = forwarding::problem(&external, serves);
        let of_node = [ports.as_slice(), forgotten.as_slice(), closed.as_slice()].concat();
        [attachments.as_slice(), addresses, unserved, hidden, &of_node].concat()
    }

    /// Finds interfaces of pods by which packets to these networks of Services bypass the programs.
    pub(super) fn look_at_hidden(&mut self, networks: impl FnOnce() -> BTreeSet<IpNet>) {
        let problems = self.view.as_ref().map(|view| hidden::problems(view, networks));
        self.reports.hide(problems.unwrap_or_default());
    }

    /// Reports whether another layout's programs still serve.
    pub(super) const fn is_held(&self) -> bool {
        self.attachments.is_held()
    }

    /// Replaces the programs of another layout, once everything is programmed.
    pub(super) fn switch(&mut self) {
        if self.attachments.is_held() && self.view.is_some() {
            self.attachments.switch(&self.facts.config.cgroup());
        }
    }

    /// Returns the node's addresses for health checks, and whether any address is meant: for IPv4, then for IPv6. They
    /// are those that serve `NodePorts`, and loopback addresses that `nodePortAddresses` lists, as in kube-proxy
    /// (`GetNodeIPs` in `pkg/proxy/util/nodeport_addresses.go`).
    pub(super) fn probed(&self) -> (Vec<IpAddr>, [bool; 2]) {
        let is_probed = |ip: &IpAddr, bits: u32| {
            bits & NODE_PORTS != 0 || ip.is_loopback() && self.facts.identity.node_ports.lists(*ip)
        };
        let own = self.addresses.written().iter();
        let own = own.filter_map(|(ip, bits)| address(*ip).filter(|ip| is_probed(ip, *bits)));
        (own.collect(), self.facts.identity.serves_node_ports_everywhere())
    }

    /// Returns the node's primary addresses, one of each family.
    pub(super) const fn primary(&self) -> Primary {
        self.facts.identity.primary
    }

    /// Returns the facts about the node that do not come from its links.
    pub(super) const fn identity(&self) -> &Identity {
        &self.facts.identity
    }

    /// Reports whether an interface has the primary address, for each family.
    pub(super) fn has_primary(&self) -> [bool; 2] {
        let Primary { v4, v6 } = self.primary();
        let addresses = self.view.as_ref().map_or(&[][..], |view| &view.addresses);
        [v4, v6].map(|primary| addresses.iter().any(|own| Some(own.ip) == primary))
    }

    /// Returns the indices of the external interfaces that have a link-layer header.
    pub(super) fn external(&self) -> BTreeSet<u32> {
        let all = self.attachments.all().values();
        all.filter(|device| device.role == InterfaceRole::External)
            .map(|device| device.index)
            .collect()
    }

    /// Reports whether an address is one of the node's.
    pub(super) fn is_own(&self, ip: &Ip) -> bool {
        self.addresses.written().contains_key(ip)
    }

    /// Reports whether an address is one of the node's, or may be: at a first start, objects may come before the
    /// interfaces are listed.
    pub(super) fn may_be_own(&self, ip: &Ip) -> bool {
        self.addresses.written().is_empty() || self.is_own(ip)
    }

    /// Returns the node's addresses on which a process may listen.
    pub(super) fn listening(&self) -> BTreeSet<Ip> {
        self.view.as_ref().map(|view| view.listening()).unwrap_or_default()
    }
}
