//! Selects the endpoints of a service port (contract 2.1 to 2.4).

use std::collections::BTreeMap;
use std::net::IpAddr;

use lb_common::addr::Protocol;

use crate::plan::{EndpointPlan, Family};
use crate::snapshot::{EndpointSpec, Hints, NodeContext, SliceSpec};

/// The sets that a service port needs (contract 2.1, 2.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Uses {
    /// Whether the Cluster set is needed.
    pub(super) cluster: bool,
    /// Whether the Local set is needed.
    pub(super) local: bool,
}

/// The ports of the slices of a family, by name and protocol: the slice and the number of each, in the order of the
/// slices.
///
/// A Service may have thousands of ports, and its slices the same: they are sorted once for all of them.
#[derive(Debug)]
pub(super) struct SlicePorts<'a>(BTreeMap<(&'a str, Protocol), Vec<(&'a SliceSpec, u16)>>);

/// The distinct endpoints of a service port in a family, by address and port.
#[derive(Debug)]
pub(super) struct Candidates<'a>(BTreeMap<(IpAddr, u16), &'a EndpointSpec>);

/// The meaning of the hints of all ready endpoints (contract 2.3).
#[derive(Clone, Copy, Debug)]
enum Topology {
    /// All endpoints are used.
    None,
    /// Only endpoints with a hint for this node are used.
    SameNode,
    /// Only endpoints with a hint for this node's zone are used.
    SameZone,
}

impl<'a> SlicePorts<'a> {
    /// Sorts the ports of the slices of this family.
    pub(super) fn of(slices: &[&'a SliceSpec], family: Family) -> Self {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        // A dual-stack Service has slices of both address types (contract 1.5).
        for slice in slices.iter().copied().filter(|slice| slice.family == Some(family)) {
            for port in &*slice.ports {
                let named = found.entry((&*port.name, port.protocol)).or_default();
                named.push((slice, port.port));
            }
        }
        Self(found)
    }

    /// Returns the endpoints of the ports with this name.
    pub(super) fn candidates(&self, name: &str, protocol: Protocol) -> Candidates<'a> {
        let ports = self.0.get(&(name, protocol));
        Candidates::of(ports.map(Vec::as_slice).unwrap_or_default())
    }

    /// Returns the endpoints of each name and protocol, also of those that the Service does not have.
    pub(super) fn all(&self) -> impl Iterator<Item = Candidates<'a>> {
        self.0.values().map(|ports| Candidates::of(ports))
    }
}

impl<'a> Candidates<'a> {
    /// Collects the endpoints of the slices' ports of one name, in the order of the names of the slices.
    ///
    /// Among several endpoints with one address and port, the last one that does not terminate counts, else the first
    /// one (`pkg/proxy/endpointslicecache.go`, `addEndpoints`; contract 1.5).
    fn of(ports: &[(&'a SliceSpec, u16)]) -> Self {
        let mut found = BTreeMap::new();
        for (slice, number) in ports {
            for endpoint in &*slice.endpoints {
                let at = (endpoint.ip, *number);
                // A pod that runs and one that terminates may have one address for a moment.
                if !endpoint.terminating || !found.contains_key(&at) {
                    found.insert(at, endpoint);
                }
            }
        }
        Self(found)
    }

    /// Returns the endpoints with the sets they belong to, and whether any endpoint in the cluster is usable.
    pub(super) fn choose(&self, uses: Uses, node: &NodeContext) -> (Vec<EndpointPlan>, bool) {
        let topology = self.topology(node);
        let any_cluster = self.any(|e| e.ready && available(e, topology, node));
        // Hints do not apply to the Local set (contract 2.2).
        let any_local = self.any(|e| e.ready && is_here(e, node));
        let mut chosen = Vec::with_capacity(self.0.len());
        for (&(ip, port), endpoint) in &self.0 {
            // Terminating endpoints replace a set without ready ones, and hints do not apply to them (contract 2.1,
            // 2.2).
            let draining = endpoint.serving && endpoint.terminating;
            let here = is_here(endpoint, node);
            let in_cluster = if any_cluster {
                endpoint.ready && available(endpoint, topology, node)
            } else {
                draining
            };
            let in_local = here && if any_local { endpoint.ready } else { draining };
            let (cluster, local) = (uses.cluster && in_cluster, uses.local && in_local);
            // Serving endpoints outside of the sets keep their row: flows to them continue.
            if endpoint.serving || cluster || local {
                chosen.push(EndpointPlan { ip, port, on_this_node: here, cluster, local });
            }
        }
        let somewhere = || self.any(|e| e.ready || (e.serving && e.terminating));
        // Decides between refused and dropped for an empty Local set (contract 2.4).
        let anywhere = chosen.iter().any(|e| e.cluster) || (uses.local && somewhere());
        (chosen, anywhere)
    }

    /// Returns the addresses of ready endpoints on this node.
    pub(super) fn ready_here(&self, node: &NodeContext) -> impl Iterator<Item = IpAddr> {
        let here = self.0.values().filter(|endpoint| endpoint.ready && is_here(endpoint, node));
        here.map(|endpoint| endpoint.ip)
    }

    fn any(&self, is: impl Fn(&EndpointSpec) -> bool) -> bool {
        self.0.values().any(|endpoint| is(endpoint))
    }

    fn topology(&self, node: &NodeContext) -> Topology {
        let mut ready = self.0.values().filter(|endpoint| endpoint.ready).peekable();
        // Hints of endpoints that are not ready do not count, as for kube-proxy (contract 2.3).
        if ready.peek().is_none() {
            return Topology::None;
        }
        let (mut all_nodes, mut our_node, mut all_zones, mut our_zone) = (true, false, true, false);
        for endpoint in ready {
            let hints = endpoint.hints.as_deref();
            all_nodes &= hints.is_some_and(|hints| !hints.nodes.is_empty());
            all_zones &= hints.is_some_and(|hints| !hints.zones.is_empty());
            our_node |= hints.is_some_and(|hints| for_node(hints, node));
            our_zone |= hints.is_some_and(|hints| for_zone(hints, node));
        }
        // Hints for nodes precede those for zones (contract 2.3).
        if all_nodes && our_node {
            Topology::SameNode
        } else if all_zones && our_zone {
            Topology::SameZone
        } else {
            Topology::None
        }
    }
}

fn available(endpoint: &EndpointSpec, topology: Topology, node: &NodeContext) -> bool {
    let hints = endpoint.hints.as_deref();
    match topology {
        Topology::None => true,
        Topology::SameNode => hints.is_some_and(|hints| for_node(hints, node)),
        Topology::SameZone => hints.is_some_and(|hints| for_zone(hints, node)),
    }
}

fn is_here(endpoint: &EndpointSpec, node: &NodeContext) -> bool {
    // An endpoint without `nodeName` is never local (contract 1.5).
    endpoint.node.as_ref() == Some(&node.name)
}

fn for_node(hints: &Hints, node: &NodeContext) -> bool {
    hints.nodes.contains(&node.name)
}

fn for_zone(hints: &Hints, node: &NodeContext) -> bool {
    node.zone.as_ref().is_some_and(|zone| hints.zones.contains(zone))
}
