//! Holds the current objects, and returns the Services whose translation has changed.
//!
//! Events mark Services as dirty. [`Tracker::take`] translates the dirty ones and returns those whose translation
//! differs from the last one returned: a change that is undone, or that does not matter here, returns nothing. The
//! tracker keeps only a fingerprint of 128 bits of a returned plan, so plans exist only where they are programmed. The
//! cost is proportional to the change.

mod changes;
mod demand;
mod index;
mod no_local;
mod node;
mod take;
mod triggers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ipnet::IpNet;
use jiff::Timestamp;

pub use self::changes::{Changes, Counts, Effect};
use self::index::Index;
pub use self::no_local::NoLocal;
use self::node::TrackedNode;
use self::triggers::Triggers;
use crate::plan::{Family, ServiceName};
use crate::snapshot::{Event, Finding, NodeContext, NodeSpec, ObjectKind};

/// The objects of a source, and what has been returned of them.
#[derive(Debug)]
pub struct Tracker {
    index: Index,
    node: TrackedNode,
    service_cidrs: Vec<IpNet>,
    synced: BTreeSet<ObjectKind>,
    dirty: BTreeSet<ServiceName>,
    dirty_since: Option<Instant>,
    findings: BTreeMap<ServiceName, Vec<Finding>>,
    /// Findings that their Services did not have before, until they are taken.
    new_findings: Vec<(ServiceName, Finding)>,
    no_local: NoLocal,
    triggers: Triggers,
    totals: Changes,
    pending: Changes,
}

impl Tracker {
    /// Makes a tracker that knows of this node only what its configuration says.
    pub fn new(node: NodeContext) -> Self {
        Self {
            index: Index::default(),
            node: TrackedNode::new(node),
            service_cidrs: Vec::new(),
            synced: BTreeSet::new(),
            dirty: BTreeSet::new(),
            dirty_since: None,
            findings: BTreeMap::new(),
            new_findings: Vec::new(),
            no_local: NoLocal::default(),
            triggers: Triggers::new(),
            totals: Changes::default(),
            pending: Changes::default(),
        }
    }

    /// Takes in an event.
    pub fn apply(&mut self, event: Event) -> Effect {
        let changes = match event {
            Event::ServiceApplied(spec) => self.index.apply_service(*spec),
            Event::ServiceDeleted(name) => self.index.delete_service(&name),
            Event::SliceApplied(slice) => {
                // The trigger is read before the slice moves into the index.
                let trigger = self.triggers.of(&slice);
                let changes = self.index.apply_slice(*slice);
                if let (Some(owner), Some(trigger)) = (changes.dirty.last(), trigger) {
                    self.triggers.add(owner, trigger);
                }
                changes
            }
            Event::SliceDeleted(name) => {
                let changes = self.index.delete_slice(&name);
                // The remaining triggers of the Service would measure another change.
                changes.dirty.iter().for_each(|owner| self.triggers.forget(owner));
                changes
            }
            Event::NodeApplied(spec) => return self.set_node(Some(*spec)),
            Event::NodeDeleted(name) if *name == *self.node.context.name => {
                return self.set_node(None);
            }
            Event::NodeDeleted(_) => return Effect::Nothing,
            Event::ServiceKept(name) => {
                self.index.keep_service(&name);
                return Effect::Nothing;
            }
            Event::SliceKept(name) => {
                self.index.keep_slice(&name);
                return Effect::Nothing;
            }
            Event::NodeKept(name) => {
                self.node.listed |= *name == *self.node.context.name && self.node.spec.is_some();
                return Effect::Nothing;
            }
            Event::ServiceCidrs(cidrs) => return self.set_service_cidrs(cidrs),
            Event::ListBegan(kind) => {
                self.begin(kind);
                return Effect::Nothing;
            }
            Event::Synced(kind) => return self.end(kind),
            // Nothing is removed: an object whose name could not be read may be any of those that the list lacks.
            Event::SyncedInPart(kind) => return self.complete(kind, Effect::Nothing),
        };
        self.record(changes)
    }

    /// Reports whether Services, slices and Nodes have been listed completely for the first time.
    pub fn is_synced(&self) -> bool {
        [ObjectKind::Service, ObjectKind::Slice, ObjectKind::Node]
            .iter()
            .all(|kind| self.synced.contains(kind))
    }

    /// Returns the time since which a change waits. Before the initial sync none counts as waiting (contract 6.2): the
    /// sync may take as long as it needs.
    pub const fn dirty_since(&self) -> Option<Instant> {
        self.dirty_since
    }

    /// Returns the facts about this node that translations use.
    pub const fn context(&self) -> &NodeContext {
        &self.node.context
    }

    /// Returns the Node object of this node.
    pub const fn node(&self) -> Option<&NodeSpec> {
        self.node.spec.as_ref()
    }

    /// Returns `metadata.uid` of a Service, if the Service exists.
    pub fn uid(&self, service: &ServiceName) -> Option<&str> {
        self.index.get(service).map(|(spec, _)| &*spec.uid)
    }

    /// Returns the prefixes of all `ServiceCIDR` objects; none if the agent serves only Services with its proxy name.
    ///
    /// Then most addresses of the prefixes belong to Services of another proxy on this node, which may translate their
    /// packets after the programs: none of them may be dropped as unused.
    pub fn service_cidrs(&self) -> &[IpNet] {
        if self.context().service_proxy_name.is_some() { &[] } else { &self.service_cidrs }
    }

    /// Returns the faults of the Node, and of the Services that were returned.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let of_node = self.node().into_iter().flat_map(|node| &*node.problems);
        of_node.chain(self.findings.values().flatten())
    }

    /// Returns the findings that came since the last call. A Service that changes keeps its earlier ones.
    pub fn new_findings(&mut self) -> Vec<(ServiceName, Finding)> {
        std::mem::take(&mut self.new_findings)
    }

    /// Returns the numbers of service ports without a local endpoint, of all Services that were returned.
    pub const fn no_local(&self) -> &NoLocal {
        &self.no_local
    }

    /// Returns the number of changed objects so far.
    pub const fn totals(&self) -> Changes {
        self.totals
    }

    /// Returns the number of changed objects since the last take.
    pub const fn pending(&self) -> Changes {
        self.pending
    }

    /// Returns the number of objects.
    pub fn counts(&self) -> Counts {
        self.index.counts()
    }

    /// Returns the trigger times of the changes that were taken since the last call (contract 7). Compare them with the
    /// clock once the changes are programmed.
    pub fn triggers(&mut self) -> Vec<(Family, Timestamp)> {
        self.triggers.take()
    }

    fn record(&mut self, changes: index::Touched) -> Effect {
        self.totals += changes.counted;
        self.pending += changes.counted;
        let effect = if changes.dirty.is_empty() { Effect::Nothing } else { Effect::Services };
        for name in changes.dirty {
            self.mark(name);
        }
        effect
    }

    fn mark(&mut self, name: ServiceName) {
        self.dirty.insert(name);
        self.record_waiting();
    }

    /// Starts the clock of waiting changes, if there is one and it may be taken.
    fn record_waiting(&mut self) {
        if self.dirty_since.is_none() && !self.dirty.is_empty() && self.is_synced() {
            self.dirty_since = Some(Instant::now());
        }
    }

    const fn begin(&mut self, kind: ObjectKind) {
        match kind {
            ObjectKind::Service => self.index.begin_services(),
            ObjectKind::Slice => self.index.begin_slices(),
            ObjectKind::Node => self.node.listed = false,
            // One event carries all ranges, so none of them has to be marked as seen.
            ObjectKind::ServiceCidr => {}
        }
    }

    fn end(&mut self, kind: ObjectKind) -> Effect {
        let effect = match kind {
            ObjectKind::Service => {
                let changes = self.index.end_services();
                self.record(changes)
            }
            ObjectKind::Slice => {
                let changes = self.index.end_slices();
                self.record(changes)
            }
            // A complete list without this node means that its object is gone.
            ObjectKind::Node if !self.node.listed => self.set_node(None),
            ObjectKind::Node | ObjectKind::ServiceCidr => Effect::Nothing,
        };
        self.complete(kind, effect)
    }

    /// Records that a list of this kind was read to its end.
    fn complete(&mut self, kind: ObjectKind, effect: Effect) -> Effect {
        let first = self.synced.insert(kind);
        self.record_waiting();
        if first && self.is_synced() { Effect::Services } else { effect }
    }

    fn set_node(&mut self, spec: Option<NodeSpec>) -> Effect {
        let Some(changed) = self.node.set(spec) else {
            return Effect::Nothing;
        };
        for name in self.index.heeding(changed) {
            self.mark(name);
        }
        Effect::Node
    }

    fn set_service_cidrs(&mut self, mut cidrs: Vec<IpNet>) -> Effect {
        // The order of the objects has no meaning.
        cidrs.sort_unstable();
        cidrs.dedup();
        if self.service_cidrs == cidrs {
            return Effect::Nothing;
        }
        self.service_cidrs = cidrs;
        Effect::ServiceCidrs
    }
}

#[cfg(test)]
mod tests;
