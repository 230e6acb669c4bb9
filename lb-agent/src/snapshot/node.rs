//! This node, as its Node object describes it.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::address::{address, prefix};
use super::finding::{Finding, Findings, quoted};
use super::object::Node;
use crate::plan::Family;

/// The fields of a Node in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSpec {
    /// `metadata.name`.
    pub name: Box<str>,
    /// `status.addresses`: every `InternalIP`, then every `ExternalIP` (contract 8.3).
    pub addresses: Box<[IpAddr]>,
    /// Label `topology.kubernetes.io/zone`; `None` if missing or empty.
    pub zone: Option<Arc<str>>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Box<[IpNet]>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The taint `ToBeDeletedByClusterAutoscaler` is set.
    pub to_be_deleted: bool,
    /// Fields that were left out because they are invalid; `status` and an Event name them.
    pub problems: Box<[Finding]>,
}

/// Taint on a node that the cluster autoscaler is about to remove.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

impl NodeSpec {
    /// Reduces a Node to the fields in use. `None` if it has no name.
    pub(crate) fn of(object: &Node) -> Option<Self> {
        let name = Some(&*object.metadata.name).filter(|name| !name.is_empty())?;
        let mut findings = Findings::of("Node", "", name);
        let zone = object.metadata.labels.zone.as_ref();
        Some(Self {
            name: name.into(),
            addresses: addresses(object, &mut findings),
            zone: zone.filter(|zone| !zone.is_empty()).map(|zone| Arc::from(zone.as_str())),
            pod_cidrs: pod_cidrs(object, &mut findings),
            deleting: object.metadata.deletion_timestamp.is_some(),
            to_be_deleted: object.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED),
            problems: findings.into_list().into(),
        })
    }

    /// Returns the node IP of a family: the first of its addresses (contract 8.3).
    pub fn ip(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|ip| Family::of(*ip) == family)
    }
}

fn addresses(object: &Node, findings: &mut Findings) -> Box<[IpAddr]> {
    let mut found = Vec::new();
    // Internal addresses of both families come before external ones, whatever the order in the object.
    for wanted in ["InternalIP", "ExternalIP"] {
        for (at, entry) in object.status.addresses.iter().enumerate() {
            if entry.kind != wanted {
                continue;
            }
            match address(&entry.address) {
                Some(ip) if !found.contains(&ip) => found.push(ip),
                Some(_) => {}
                None => findings.wrong(
                    format_args!("status.addresses[{at}]"),
                    format_args!("{} is not an address", quoted(&entry.address)),
                    "write an IPv4 or IPv6 address",
                ),
            }
        }
    }
    found.into()
}

fn pod_cidrs(object: &Node, findings: &mut Findings) -> Box<[IpNet]> {
    let list = &object.spec.pod_cidrs;
    // `podCIDR` is the older field with a single family; `podCIDRs` repeats it where both are set.
    let single = object.spec.pod_cidr.as_ref().filter(|_| list.is_empty());
    let mut found = Vec::new();
    for (at, text) in list.iter().chain(single).enumerate() {
        match prefix(text) {
            Some(cidr) => found.push(cidr),
            None => findings.wrong(
                format_args!("spec.podCIDRs[{at}]"),
                format_args!("{} is not a prefix", quoted(text)),
                "write it as 10.244.1.0/24 or fd00:10:244:1::/64",
            ),
        }
    }
    found.into()
}

/// The facts about this node that the translation of a Service needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    /// The name of this node.
    pub name: Arc<str>,
    pub zone: Option<Arc<str>>,
    /// The node IP of IPv4.
    pub ipv4: Option<IpAddr>,
    /// The node IP of IPv6.
    pub ipv6: Option<IpAddr>,
    /// A specific `bindAddress`.
    pub bound: Option<IpAddr>,
    /// Selects the Services to serve: those with this value of the proxy-name label. With `None`, those without the
    /// label.
    pub service_proxy_name: Option<Arc<str>>,
    /// The feature gate `AllowServiceExternalIPs` is off.
    pub ignores_external_ips: bool,
}

impl NodeContext {
    /// Makes the context of a node with a known name and no other facts.
    pub fn named(name: &str) -> Self {
        Self { name: Arc::from(name), ..Self::default() }
    }

    /// Returns a copy with the facts of the Node object. Without an object, everything stays as it was, and a family of
    /// which the object names no address keeps its node IP.
    #[must_use]
    pub fn with(&self, node: Option<&NodeSpec>) -> Self {
        Self {
            name: Arc::clone(&self.name),
            zone: node.map_or_else(|| self.zone.clone(), |node| node.zone.clone()),
            ipv4: node.and_then(|node| node.ip(Family::V4)).or(self.ipv4),
            ipv6: node.and_then(|node| node.ip(Family::V6)).or(self.ipv6),
            bound: self.bound,
            service_proxy_name: self.service_proxy_name.clone(),
            ignores_external_ips: self.ignores_external_ips,
        }
    }

    /// Returns the address that source ranges are compared with (contract 3.8): the node IP of a family, or the
    /// `bindAddress` that overrides it, even if that is a loopback address (contract 8.3).
    pub fn bound_ip(&self, family: Family) -> Option<IpAddr> {
        self.bound.filter(|ip| Family::of(*ip) == family).or_else(|| self.ip(family))
    }

    /// Returns the node IP of a family.
    pub const fn ip(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(object: serde_json::Value) -> NodeSpec {
        NodeSpec::of(&serde_json::from_value(object).expect("a Node")).expect("a name")
    }

    #[test]
    fn internal_addresses_come_before_external_ones() {
        let node = node(serde_json::json!({
            "metadata": { "name": "a", "labels": { "topology.kubernetes.io/zone": "z1" } },
            "spec": { "podCIDRs": ["10.244.1.0/24", "fd00:1::/64"] },
            "status": { "addresses": [
                { "type": "ExternalIP", "address": "198.51.100.7" },
                { "type": "Hostname", "address": "a" },
                { "type": "InternalIP", "address": "fd00::7" },
                { "type": "InternalIP", "address": "10.0.0.07" },
                { "type": "InternalIP", "address": "ten" },
            ]},
        }));
        let context = NodeContext::named("a").with(Some(&node));
        assert_eq!(context.ip(Family::V4), address("10.0.0.7"));
        assert_eq!(context.ip(Family::V6), address("fd00::7"));
        assert_eq!(context.zone.as_deref(), Some("z1"));
        assert_eq!(node.addresses.len(), 3);
        assert_eq!(node.pod_cidrs.len(), 2);
        assert_eq!(node.problems.len(), 1);
    }

    #[test]
    fn a_family_without_an_address_keeps_its_node_ip() {
        let of = |addresses: &[&str]| NodeSpec {
            addresses: addresses.iter().copied().filter_map(address).collect(),
            ..NodeSpec::default()
        };
        let both = NodeContext::named("a").with(Some(&of(&["10.0.0.7", "fd00::7"])));
        let less = both.with(Some(&of(&["10.0.0.8"])));
        assert_eq!((less.ipv4, less.ipv6), (address("10.0.0.8"), address("fd00::7")));
        for node in [Some(&of(&[])), None] {
            let lost = both.with(node);
            assert_eq!((lost.ipv4, lost.ipv6), (both.ipv4, both.ipv6));
        }
    }

    #[test]
    fn an_empty_zone_label_is_no_zone() {
        let node = node(serde_json::json!({
            "metadata": { "name": "a", "labels": { "topology.kubernetes.io/zone": "" } },
        }));
        assert_eq!(node.zone, None);
    }

    #[test]
    fn a_node_about_to_go_is_known() {
        let node = node(serde_json::json!({
            "metadata": { "name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "taints": [
                { "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" },
            ]},
        }));
        assert!(node.deleting && node.to_be_deleted);
    }
}
