//! The programs on interfaces: attaches and detaches them, and repairs changes by other programs.

mod earlier;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::attached::Attached;
use super::failures::Failures;
use crate::datapath::{Datapath, Inspection, InterfaceRole};
use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::node::watch::PublishedView;
use crate::node::{Assignment, ChangeSource, Identity};
use crate::run::error::Error;
use crate::run::newcomers::Newcomers;
use crate::syscall::device_name;

/// The attachments, and the problems of those that are missing.
#[derive(Debug)]
pub(super) struct Attachments {
    datapath: Datapath,
    attached: Attached,
    /// Source of the current change of interfaces, for the metrics.
    source: ChangeSource,
    /// Interfaces of new pods that a separate thread attaches.
    newcomers: Arc<Newcomers>,
    /// Interfaces to which programs could not be attached.
    failed: Failures,
    /// Whether another layout's programs still serve. Nothing is attached before all Services are in our maps.
    is_held: bool,
    /// The time of the state of interfaces that is applied.
    as_of: Instant,
    /// Whether the links and entries of an earlier run were compared with the wanted ones.
    is_pruned: bool,
    /// Problems from the last inspection: faults that are not repaired, or that recur.
    problems: Vec<String>,
    /// Time since when pins are missing and cannot be restored.
    unpinned: Option<Instant>,
}

impl Attachments {
    /// Takes over the data path, and starts the thread for interfaces of new pods.
    pub(super) fn after(
        mut datapath: Datapath,
        views: watch::Receiver<PublishedView>,
        numbers: Arc<Numbers>,
    ) -> Result<Self, Error> {
        Ok(Self {
            newcomers: Newcomers::start(&mut datapath, views, numbers)?,
            is_held: datapath.is_upgrading(),
            datapath,
            attached: Attached::default(),
            source: ChangeSource::List,
            failed: Failures::default(),
            as_of: Instant::now(),
            is_pruned: false,
            problems: Vec::new(),
            unpinned: None,
        })
    }

    /// Returns the data path and the interfaces with programs, both mutable.
    pub(super) const fn parts(&mut self) -> (&mut Datapath, &mut Attached) {
        (&mut self.datapath, &mut self.attached)
    }

    /// Returns the assignments of all interfaces with programs, by interface index.
    pub(super) const fn all(&self) -> &BTreeMap<u32, Assignment> {
        self.attached.all()
    }

    /// Opens another set of handles to the maps.
    pub(super) fn maps(&self) -> Result<Maps, Error> {
        Ok(self.datapath.maps()?)
    }

    /// Sets the source of the next changes, and the time of the state of interfaces that has them.
    pub(super) const fn follow(&mut self, source: ChangeSource, at: Instant) {
        (self.source, self.as_of) = (source, at);
    }

    /// Makes the next changes count as retries.
    pub(super) const fn retry(&mut self) {
        self.source = ChangeSource::Retry;
    }

    /// Brings the attachments up to date. Programs that an earlier run attached are only detached when the Node is
    /// known.
    pub(super) fn apply(
        &mut self,
        wanted: Vec<Assignment>,
        is_known: bool,
        maps: &mut Maps,
        numbers: &Numbers,
    ) {
        if !self.is_pruned
            && let Err(error) = self.datapath.carry()
        {
            warn!(error = %crate::chain(&error), "some entries of the previous layout were not copied yet; retrying");
        }
        // New interfaces come first: packets of a pod without programs reach no Service, while an interface that is
        // gone costs nothing.
        let indices: BTreeSet<u32> = wanted.iter().map(|device| device.index).collect();
        let external = wanted.iter().filter(|device| device.role.is_external());
        let external: BTreeSet<u32> = external.map(|device| device.index).collect();
        for device in wanted {
            if !self.attached.has(&device) && !self.newcomers.keeps(&device) {
                self.attach(device, maps, numbers);
            }
        }
        for index in self.attached.others(&indices) {
            self.detach(index, maps);
        }
        // An interface that disappeared while it was being attached may have one of its two links.
        let others =
            [self.failed.take_others(&indices), self.newcomers.take_others(&indices, self.as_of)];
        for index in others.concat() {
            if let Err(error) = self.forget(index, maps) {
                warn!(index, error, "programs of the interface could not be removed");
            }
        }
        // Roles depend on the Node's addresses: without them, an external interface may not be recognized as one.
        if is_known && !self.is_pruned {
            self.prune(&indices, &external, maps);
        }
    }

    /// Lets the thread for new pods attach interfaces, once no program of an earlier run remains beside ours.
    pub(super) fn open(&self, identity: &Identity) {
        if self.is_pruned && self.datapath.is_alone() {
            self.newcomers.open(identity);
        }
    }

    /// Returns the names of the external interfaces with programs.
    pub(super) fn external(&self) -> Vec<String> {
        self.attached.external().map(|device| device.name.clone()).collect()
    }

    /// Sets the metrics of interfaces with programs.
    pub(super) fn count(&self, numbers: &Numbers) {
        let [pods, external] = &numbers.devices;
        Numbers::set(pods, self.attached.count(InterfaceRole::Pod) + self.newcomers.count());
        Numbers::set(external, self.attached.external().count());
    }

    fn attach(&mut self, device: Assignment, maps: &mut Maps, numbers: &Numbers) {
        self.attached.forget_flags(device.index);
        // The links of an earlier interface with this index are lost.
        let is_another = self.datapath.forget_if_another(device.index);
        let was_early = self.newcomers.take(device.index);
        let is_new = !was_early && (is_another || !self.attached.has_programs(&device));
        // The entry comes before the programs: without it a detector by interface would not know the pod (contract
        // 3.4).
        let put = maps.put_device(device.index, &device.device);
        let attached = put
            .map_err(Into::into)
            .and_then(|()| self.datapath.attach(device.index, &device.name, device.role));
        match attached {
            Ok(()) => {
                self.failed.forget(device.index);
                if is_new {
                    let (name, index) = (&device.name, device.index);
                    numbers.attached(self.source);
                    info!(interface = name, index, role = device.role.name(), "programs attached");
                }
                self.attached.insert(device);
            }
            Err(error) => {
                let error = crate::chain(&error);
                if self.failed.record(device.index, &device.name, &error, Instant::now()) {
                    // A pod that ended before its interface was attached is no fault, so no warning.
                    if device_name(device.index).is_none() {
                        debug!(
                            interface = device.name,
                            error, "interface disappeared before it was attached"
                        );
                    } else {
                        warn!(
                            interface = device.name,
                            error, "programs could not be attached yet; retrying"
                        );
                    }
                }
            }
        }
    }

    /// Attaches programs to the interfaces that were recreated with the same index, if no event reported it. The check
    /// takes RTNL twice for each interface, and new pods wait for the same lock.
    fn attach_recreated(&mut self, maps: &mut Maps, numbers: &Numbers) {
        for device in self.attached.extract(|index| self.datapath.forget_if_another(index)) {
            self.attach(device, maps, numbers);
        }
    }

    fn detach(&mut self, index: u32, maps: &mut Maps) {
        let Some(device) = self.attached.remove(index) else { return };
        match self.forget(index, maps) {
            Ok(()) => info!(interface = device.name, index, "interface is no longer served"),
            Err(error) => {
                warn!(
                    interface = device.name,
                    index, error, "programs of the interface could not be removed"
                );
            }
        }
    }

    /// Removes the links and the entry of an interface. A failure of one does not prevent the removal of the other.
    fn forget(&mut self, index: u32, maps: &mut Maps) -> Result<(), String> {
        self.attached.forget_flags(index);
        let detached = self.datapath.detach(index).map_err(|error| crate::chain(&error));
        let removed = maps.remove_device(index).map_err(|error| crate::chain(&error));
        self.newcomers.release(index);
        detached.and(removed)
    }

    /// Repairs our attachments after changes by other programs. Returns whether anything was repaired, and the
    /// interfaces that lost the XDP program, with the reason why it was not attached again.
    pub(super) fn inspect(
        &mut self,
        maps: &mut Maps,
        numbers: &Numbers,
    ) -> (bool, Vec<(u32, String)>) {
        // The missing links of a recreated interface are not a fault that another program caused.
        self.attach_recreated(maps, numbers);
        let Inspection { repaired, failed, decelerated, unrepaired, recurring, is_unpinned } =
            self.datapath.inspect();
        for (index, error) in failed {
            if let Some(device) = self.attached.remove(index) {
                self.failed.record(index, &device.name, &error, Instant::now());
            }
        }
        for fault in &repaired {
            numbers.repaired(*fault);
        }
        // The next inspection, two seconds later, finds the same.
        for problem in unrepaired.iter().filter(|it| !self.problems.contains(it)) {
            warn!(problem, "repair failed");
        }
        self.problems = [unrepaired, recurring].concat();
        self.unpinned = is_unpinned.then(|| self.unpinned.unwrap_or_else(Instant::now));
        (!repaired.is_empty(), decelerated)
    }

    /// Returns the time since when pins are missing and cannot be restored.
    pub(super) const fn unpinned_since(&self) -> Option<Instant> {
        self.unpinned
    }

    /// Returns the problems of interfaces without their programs, and of attachments, for operators.
    pub(super) fn problems(&self) -> Vec<String> {
        [self.failed.problems(Instant::now()).as_slice(), &self.problems].concat()
    }

    /// Reports whether every interface that should have programs has them, or has refused them for long, and no other
    /// interface has any.
    pub(super) fn is_complete(&self) -> bool {
        self.is_pruned && self.failed.are_old(Instant::now())
    }

    /// Reports whether [`Attachments::apply`] must be called again without a change.
    pub(super) fn is_unfinished(&self, is_known: bool) -> bool {
        self.newcomers.count() > 0 || !self.failed.is_empty() || (is_known && !self.is_pruned)
    }
}
