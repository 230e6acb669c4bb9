//! The facts about this node, and the differences that Services can depend on.

use crate::snapshot::{NodeContext, NodeSpec};

/// The facts about this node, and its Node object.
#[derive(Debug)]
pub(super) struct TrackedNode {
    pub(super) context: NodeContext,
    pub(super) spec: Option<NodeSpec>,
    /// Whether the object was in the list that is being read.
    pub(super) listed: bool,
}

/// The differences between two states of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeChange {
    /// Whether the zone differs: zone hints may select other endpoints (contract 2.3).
    pub(super) zone: bool,
    /// Whether a node IP differs: a source range may contain it now (contract 3.8).
    pub(super) address: bool,
}

impl TrackedNode {
    pub(super) const fn new(context: NodeContext) -> Self {
        Self { context, spec: None, listed: false }
    }

    /// Sets the object or its absence. `None` if nothing changed, or if the object is another node's.
    pub(super) fn set(&mut self, spec: Option<NodeSpec>) -> Option<NodeChange> {
        // Manifests may contain all nodes of a cluster.
        if spec.as_ref().is_some_and(|spec| *spec.name != *self.context.name) {
            return None;
        }
        self.listed = spec.is_some();
        if self.spec == spec {
            return None;
        }
        let context = self.context.with(spec.as_ref());
        let before = &self.context;
        let change = NodeChange {
            zone: before.zone != context.zone,
            address: (before.ipv4, before.ipv6) != (context.ipv4, context.ipv6),
        };
        self.context = context;
        self.spec = spec;
        Some(change)
    }
}
