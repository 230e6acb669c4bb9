//! Holds the current objects and says which Services ask for something else than before.
//!
//! Events make Services dirty, [`Tracker::take`] translates the dirty ones and gives out those whose
//! translation differs from the one given out last: a change that is taken back, or that does not
//! matter here, yields nothing. A plan that was given out is remembered by a fingerprint of 128 bits, so
//! the plans themselves live only where they are programmed. Cost is that of the change.

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
use self::node::Node;
use self::triggers::Triggers;
use crate::plan::{Family, ServiceName};
use crate::snapshot::{Event, Finding, Kind, NodeContext, NodeSpec};

/// The objects of a source, and the part of them that has been given out.
#[derive(Debug)]
pub struct Tracker {
    index: Index,
    node: Node,
    service_cidrs: Vec<IpNet>,
    synced: BTreeSet<Kind>,
    dirty: BTreeSet<ServiceName>,
    dirty_since: Option<Instant>,
    findings: BTreeMap<ServiceName, Vec<Finding>>,
    no_local: NoLocal,
    triggers: Triggers,
    totals: Changes,
    pending: Changes,
}

impl Tracker {
    /// Nothing known yet but the name of this node and which Services are ours.
    pub fn new(node: NodeContext) -> Self {
        Self {
            index: Index::default(),
            node: Node::new(node),
            service_cidrs: Vec::new(),
            synced: BTreeSet::new(),
            dirty: BTreeSet::new(),
            dirty_since: None,
            findings: BTreeMap::new(),
            no_local: NoLocal::default(),
            triggers: Triggers::new(),
            totals: Changes::default(),
            pending: Changes::default(),
        }
    }

    /// Takes an event in.
    pub fn apply(&mut self, event: Event) -> Effect {
        let changes = match event {
            Event::ServiceApplied(spec) => self.index.apply_service(*spec),
            Event::ServiceDeleted(name) => self.index.delete_service(&name),
            Event::SliceApplied(slice) => {
                let trigger = self.triggers.of(&slice);
                let changes = self.index.apply_slice(*slice);
                if let (Some(owner), Some(trigger)) = (changes.dirty.last(), trigger) {
                    self.triggers.add(owner, trigger);
                }
                changes
            }
            Event::SliceDeleted(name) => {
                let changes = self.index.delete_slice(&name);
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
            Event::SyncedInPart(kind) => return self.complete(kind, Effect::Nothing),
        };
        self.note(changes)
    }

    /// Whether the first complete lists are in.
    pub fn is_synced(&self) -> bool {
        [Kind::Service, Kind::Slice, Kind::Node].iter().all(|kind| self.synced.contains(kind))
    }

    /// Since when a change waits to be taken. None does before the initial sync is complete: what they lack may take
    /// as long as it likes (contract 6.2).
    pub const fn dirty_since(&self) -> Option<Instant> {
        self.dirty_since
    }

    /// The facts about this node that translations use.
    pub const fn context(&self) -> &NodeContext {
        &self.node.context
    }

    /// This node's object.
    pub const fn node(&self) -> Option<&NodeSpec> {
        self.node.spec.as_ref()
    }

    /// `metadata.uid` of a Service, if it is there.
    pub fn uid(&self, service: &ServiceName) -> Option<&str> {
        self.index.get(service).map(|(spec, _)| &*spec.uid)
    }

    /// The prefixes of all `ServiceCIDR` objects.
    pub fn service_cidrs(&self) -> &[IpNet] {
        &self.service_cidrs
    }

    /// The faults of our Node and of the Services given out.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        let of_node = self.node().into_iter().flat_map(|node| &*node.problems);
        of_node.chain(self.findings.values().flatten())
    }

    /// Service ports without local endpoint (contract 7), of all Services given out.
    pub const fn no_local(&self) -> &NoLocal {
        &self.no_local
    }

    /// Changes of objects so far.
    pub const fn totals(&self) -> Changes {
        self.totals
    }

    /// Changes of objects since the last take.
    pub const fn pending(&self) -> Changes {
        self.pending
    }

    /// How many objects there are.
    pub fn counts(&self) -> Counts {
        self.index.counts()
    }

    /// When the changes were made that were taken since this was asked last (contract 7): measure
    /// them against the clock once they are programmed.
    pub fn triggers(&mut self) -> Vec<(Family, Timestamp)> {
        self.triggers.take()
    }

    fn note(&mut self, changes: index::Touched) -> Effect {
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
        self.note_waiting();
    }

    /// From now on the change waits, if any does and may be taken.
    fn note_waiting(&mut self) {
        if self.dirty_since.is_none() && !self.dirty.is_empty() && self.is_synced() {
            self.dirty_since = Some(Instant::now());
        }
    }

    const fn begin(&mut self, kind: Kind) {
        match kind {
            Kind::Service => self.index.begin_services(),
            Kind::Slice => self.index.begin_slices(),
            Kind::Node => self.node.listed = false,
            Kind::ServiceCidr => {}
        }
    }

    fn end(&mut self, kind: Kind) -> Effect {
        let effect = match kind {
            Kind::Service => {
                let changes = self.index.end_services();
                self.note(changes)
            }
            Kind::Slice => {
                let changes = self.index.end_slices();
                self.note(changes)
            }
            Kind::Node if !self.node.listed => self.set_node(None),
            Kind::Node | Kind::ServiceCidr => Effect::Nothing,
        };
        self.complete(kind, effect)
    }

    /// A list of this kind was read to its end.
    fn complete(&mut self, kind: Kind, effect: Effect) -> Effect {
        let first = self.synced.insert(kind);
        self.note_waiting();
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
