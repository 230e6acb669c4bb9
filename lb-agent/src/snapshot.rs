//! The Kubernetes objects that a service proxy needs, reduced to the fields it reads.
//!
//! Both sources (`watch` and `manifests`) convert whole objects into these structs at once and send them as [`Event`]s.
//! No later part of the program sees a Kubernetes type.
//!
//! Addresses are parsed here, so a field with a wrong value becomes a [`Finding`] of its object and stops nothing else.

mod address;
mod finding;
#[cfg(test)]
pub(crate) mod fixtures;
mod names;
mod node;
pub(crate) mod object;
mod service;
mod slice;
mod view;

use ipnet::IpNet;

pub use self::address::{address, prefix};
pub(crate) use self::finding::quoted;
pub use self::finding::{Finding, Findings, ObjectName};
pub use self::names::{Hints, Interner};
pub use self::node::{NodeContext, NodeSpec};
pub use self::object::{HEADLESS_LABEL, PROXY_NAME_LABEL, SERVICE_NAME_LABEL};
pub use self::service::{ClusterIps, PortSpec, ServiceKind, ServiceSpec};
pub use self::slice::{EndpointSpec, SliceName, SlicePort, SliceSpec};
pub use self::view::{KindView, Stale, ViewHealth};
use crate::plan::ServiceName;

/// A change of what a source shows. Applying the same event twice changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A Service was added or changed.
    ServiceApplied(Box<ServiceSpec>),
    /// A Service is gone, or no longer belongs to this proxy.
    ServiceDeleted(ServiceName),
    /// A Service exists but cannot be read: its last readable version stays.
    ServiceKept(ServiceName),
    /// An `EndpointSlice` was added or changed.
    SliceApplied(Box<SliceSpec>),
    /// An `EndpointSlice` is gone.
    SliceDeleted(SliceName),
    /// An `EndpointSlice` exists but cannot be read: its last readable version stays.
    SliceKept(SliceName),
    /// A Node was added or changed.
    NodeApplied(Box<NodeSpec>),
    /// A Node is gone.
    NodeDeleted(Box<str>),
    /// A Node exists but cannot be read: its last readable version stays.
    NodeKept(Box<str>),
    /// The prefixes of all `ServiceCIDR` objects.
    ServiceCidrs(Vec<IpNet>),
    /// A complete list begins: objects that are not applied before its [`Event::Synced`] are gone.
    ListBegan(ObjectKind),
    /// A complete list has ended.
    Synced(ObjectKind),
    /// A list has ended that had objects without a readable name. Objects that it lacks are therefore not deleted.
    SyncedInPart(ObjectKind),
}

/// The kinds of objects that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// `v1/Service`.
    Service,
    /// `discovery.k8s.io/v1/EndpointSlice`.
    Slice,
    /// `v1/Node`, this node's only.
    Node,
    /// `networking.k8s.io/v1/ServiceCIDR`.
    ServiceCidr,
}

impl ObjectKind {
    pub const ALL: [Self; 4] = [Self::Service, Self::Slice, Self::Node, Self::ServiceCidr];

    /// Returns the kind, as manifests write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Slice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }

    /// Returns the resource name in API paths.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::Slice => "endpointslices",
            Self::Node => "nodes",
            Self::ServiceCidr => "servicecidrs",
        }
    }
}

/// Returns the valid prefixes of one `ServiceCIDR`, and a finding for each of the others.
pub(crate) fn service_cidrs(object: &object::ServiceCidr) -> (Vec<IpNet>, Vec<Finding>) {
    let name = &object.metadata.name;
    let mut findings = Findings::of("ServiceCIDR", "", name);
    let texts = &object.spec.cidrs;
    let mut cidrs = Vec::with_capacity(texts.len());
    for (at, text) in texts.iter().enumerate() {
        match prefix(text) {
            Some(cidr) => cidrs.push(cidr),
            None => findings.wrong(
                format_args!("spec.cidrs[{at}]"),
                format_args!("{} is not a prefix", quoted(text)),
                "write it as 10.96.0.0/16 or fd00:10:96::/112",
            ),
        }
    }
    (cidrs, findings.into_list())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_prefix_of_a_service_cidr_leaves_the_other() {
        let object: object::ServiceCidr = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "kubernetes" },
            "spec": { "cidrs": ["10.96.0.0/12", "fd00::/1000"] },
        }))
        .expect("a ServiceCIDR");
        let (cidrs, findings) = service_cidrs(&object);
        assert_eq!(cidrs, ["10.96.0.0/12".parse::<IpNet>().expect("a prefix")]);
        assert_eq!(
            findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["ServiceCIDR kubernetes: spec.cidrs[1]: \"fd00::/1000\" is not a prefix; \
              write it as 10.96.0.0/16 or fd00:10:96::/112"]
        );
    }
}
